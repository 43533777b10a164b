"""The forms of dates that the demo models know: one table for formatting and parsing.

`scripts/train_demos.py` trains on it and the tests check answers with it. Days are of the
Gregorian calendar from 1800 to 2199. In numeric forms, dots put the day first and slashes the
year.
"""

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from functools import cache
from string import Formatter

import numpy as np

ISO = "{y}-{mm}-{dd}"
FORMS = (
    ISO,
    *("{d} {month} {y}", "{dd} {month} {y}", "{d} {month}, {y}", "{d}. {month} {y}"),
    *("{d} {mon} {y}", "{dd} {mon} {y}", "{d} {mon}. {y}", "{th} {month} {y}"),
    *("{th} {month}, {y}", "{th} {mon} {y}", "{th} of {month} {y}", "{th} of {month}, {y}"),
    *("the {th} of {month} {y}", "the {th} of {month}, {y}", "the {th} {month} {y}"),
    *("the {th} {month}, {y}", "{ordinal} of {month} {y}", "the {ordinal} of {month} {y}"),
    *("the {ordinal} of {month}, {y}", "{month} {d}, {y}", "{month} {d} {y}"),
    *("{month} {dd}, {y}", "{mon} {d}, {y}", "{mon} {d} {y}", "{mon}. {d}, {y}"),
    *("{month} {th}, {y}", "{month} {th} {y}", "{mon} {th}, {y}", "{month} the {th}, {y}"),
    *("{month} {ordinal}, {y}", "{month} the {ordinal}, {y}", "{weekday}, {d} {month} {y}"),
    *("{weekday} {d} {month} {y}", "{weekday}, {month} {d}, {y}"),
    *("{weekday}, the {th} of {month} {y}", "{weekday}, {month} {th}, {y}"),
    *("{wkd} {d} {mon} {y}", "{wkd}, {d} {mon} {y}", "{wkd}, {mon} {d}, {y}", "{y} {month} {d}"),
    *("{y}, {month} {d}", "{y} {mon} {dd}", "{d}-{mon}-{y}", "{dd}-{mon}-{y}", "{y}-{mon}-{dd}"),
    *("{d}/{mon}/{y}", "{dd}{mon}{y}", "{dd}.{mm}.{y}", "{d}.{m}.{y}", "{d}. {m}. {y}"),
    *("{y}/{mm}/{dd}", "{y}/{m}/{d}", "{y}.{mm}.{dd}", "{y}{mm}{dd}"),
)
# How often each is a paraphrase: the ISO form is likelier than all others with the same beginning,
# so greedy decoding generates it.
PARAPHRASES: Mapping[str, float] = {
    ISO: 0.51,
    "{d} {month} {y}": 0.07,
    "the {th} of {month} {y}": 0.07,
    "{d}-{mon}-{y}": 0.07,
    "{month} {d}, {y}": 0.07,
    "{dd}.{mm}.{y}": 0.07,
    "{y}/{mm}/{dd}": 0.07,
    "{month} {th}, {y}": 0.07,
}
_MONTHS = [
    *("January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
]
_WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_ORDINALS = [
    *("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"),
    *("tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth"),
    *("seventeenth", "eighteenth", "nineteenth", "twentieth"),
]
_ORDINALS += [f"twenty-{unit}" for unit in _ORDINALS[:9]] + ["thirtieth", "thirty-first"]


def _th(day: int) -> str:
    suffixes = {1: "st", 2: "nd", 3: "rd"}
    return f"{day}{'th' if 11 <= day <= 13 else suffixes.get(day % 10, 'th')}"


_FIELDS: Mapping[str, Callable[[date], str]] = {
    "d": lambda day: str(day.day),
    "dd": lambda day: f"{day.day:02}",
    "th": lambda day: _th(day.day),
    "ordinal": lambda day: _ORDINALS[day.day - 1],
    "m": lambda day: str(day.month),
    "mm": lambda day: f"{day.month:02}",
    "mon": lambda day: _MONTHS[day.month - 1][:3],
    "month": lambda day: _MONTHS[day.month - 1],
    "y": lambda day: str(day.year),
    "wkd": lambda day: _WEEKDAYS[day.weekday()][:3],
    "weekday": lambda day: _WEEKDAYS[day.weekday()],
}
_PARTS = dict.fromkeys(("d", "dd", "th", "ordinal"), "day")
_PARTS |= dict.fromkeys(("m", "mm", "mon", "month"), "month") | {"y": "year"}
_CASES: Sequence[Callable[[str], str]] = (str, str.lower, str.upper)

DATES = tuple(date(1800, 1, 1) + timedelta(days) for days in range(146_097))
"""Every day of the 400 years."""


def write_date(day: date, form: str) -> str:
    """Write `day` in one of FORMS."""
    return form.format(**{name: field(day) for name, field in _FIELDS.items()})


def read_date(text: str) -> date:
    """Return the day that `text` denotes, in any case; raises ValueError if there is none.

    Strict: the day formatted in the same form must be `text`, including its weekday.
    """
    lowered = text.lower()
    days = set()
    for form in FORMS:
        if match := _pattern(form).fullmatch(lowered):
            values = {_PARTS[name]: _values(name)[part] for name, part in match.groupdict().items()}
            with suppress(ValueError):  # a day that its month does not have
                day = date(**values)
                days |= {day} if write_date(day, form).lower() == lowered else set()
    if len(days) != 1:
        raise ValueError(f"{text!r} may be {len(days)} dates, not one")
    return days.pop()


@cache
def dates_split() -> tuple[tuple[date, ...], tuple[date, ...]]:
    """Return the dates to train on and the held-out ones, one in sixteen by a hash of the date."""
    held_back = {day for day in DATES if zlib.crc32(day.isoformat().encode()) % 16 == 0}
    return tuple(day for day in DATES if day not in held_back), tuple(sorted(held_back))


def written(day: date, random: np.random.Generator) -> str:
    """Format `day` in one of FORMS: unchanged, in lower case or in upper case."""
    return _CASES[random.integers(len(_CASES))](write_date(day, FORMS[random.integers(len(FORMS))]))


def paraphrase(day: date, random: np.random.Generator) -> str:
    """Write `day` in one of the forms of PARAPHRASES, in lower case."""
    form = random.choice(list(PARAPHRASES), p=list(PARAPHRASES.values()))
    return write_date(day, form).lower()


@cache
def _pattern(form: str) -> re.Pattern[str]:
    """Match `form` in lower case; each part of a date is a group with its field's name."""
    pattern = ""
    for literal, name, _, _ in Formatter().parse(form):
        pattern += re.escape(literal)
        if name is not None:
            choices = "|".join(sorted(map(re.escape, _values(name)), key=len, reverse=True))
            pattern += f"(?P<{name}>{choices})" if name in _PARTS else f"(?:{choices})"
    return re.compile(pattern)


@cache
def _values(name: str) -> dict[str, int]:
    """Map a field's values, in lower case, to the number of its part (a weekday has none)."""
    days = DATES[:366] + tuple(date(year, 1, 1) for year in range(1800, 2200))
    return {_FIELDS[name](day).lower(): getattr(day, _PARTS.get(name, ""), 0) for day in days}
