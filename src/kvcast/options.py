"""Options, each declared once: a field of a frozen dataclass, with its bounds and its help.

`kvcast.keywords` turns such a dataclass into the keywords of a public method, the command line into
arguments (`kvcast.cli.arguments`), and the documentation shows it as a table. This module is
independent of any particular option.
"""

import dataclasses
import math
import numbers
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Protocol, TypeVar, get_args, get_origin, get_type_hints

from typing_extensions import override

from kvcast.errors import UsageError
from kvcast.foreign_options import ForeignOptions

__all__ = [
    "FILLED",
    "Bounds",
    "Check",
    "Choice",
    "Declared",
    "Group",
    "Option",
    "Params",
    "Text",
    "check_number",
    "check_path",
    "plain",
    "seconds_of",
    "shown",
]


def seconds_of(text: str) -> float:
    """Return seconds, given as such or as players show them: 90, 1:30, 1:02:03.5.

    Raises ValueError for a text that is neither.
    """
    if re.fullmatch(r"(\d+:)?\d+:\d\d(\.\d*)?", text.strip()) is None:
        return float(text)
    return sum(float(part) * 60.0**i for i, part in enumerate(reversed(text.split(":"))))


def plain(value: Any) -> Any:
    """Return NumPy's numbers and arrays as Python's numbers and lists."""
    return value.tolist() if hasattr(value, "tolist") else value


def shown(value: object) -> str:
    """Return a value as messages show it."""
    return textwrap.shorten(repr(value), 80, placeholder="…")


def check_path(name: str, value: object) -> None:
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{name} must be a path, not {shown(value)}")


def check_number(name: str, value: object, kind: type[int] | type[float], least: float) -> None:
    """Raise UsageError for a value that is not such a finite number."""
    problem = Bounds(least=least).problem(value, kind)
    if isinstance(value, bool) or problem is not None:
        raise UsageError(f"{name} {problem or f'must be a number, not {value}'}")


D = TypeVar("D")


class Check(Protocol):
    def problem(self, value: Any, kind: type) -> str | None:
        """Return the problem of a value of type `kind`, as in "must be 1 or more", or None."""


@dataclass(frozen=True, kw_only=True)
class Bounds(Check):
    """A finite number; `least` and `most` are inclusive bounds, `above` is exclusive."""

    least: float | None = None
    most: float | None = None
    above: float | None = None

    @override
    def problem(self, value: Any, kind: type) -> str | None:
        if kind is int and not isinstance(value, numbers.Integral):
            return f"must be a whole number, not {shown(value)}"
        if not isinstance(value, numbers.Real):
            return f"must be a number, not {shown(value)}"
        return None if self._admits(float(value)) else f"must be {self}, not {value}"

    def _admits(self, value: float) -> bool:
        low = self.least is not None and value < self.least
        high = self.most is not None and value > self.most
        below = self.above is not None and value <= self.above
        return math.isfinite(value) and not (low or high or below)

    @override
    def __str__(self) -> str:
        if self.above is not None:
            return f"above {self.above}" + (
                "" if self.most is None else f" and at most {self.most}"
            )
        if self.most is not None:
            return (
                f"at most {self.most}"
                if self.least is None
                else f"from {self.least} to {self.most}"
            )
        return "a finite number" if self.least is None else f"{self.least} or more"


@dataclass(frozen=True, kw_only=True)
class Text(Check):
    """Text that can be encoded as UTF-8; `filled`: and is not empty."""

    filled: bool = False

    @override
    def problem(self, value: Any, kind: type) -> str | None:
        if not isinstance(value, str):
            return f"must be a string, not {shown(value)}"
        if self.filled and not value:
            return "is empty"
        try:
            value.encode()
        except UnicodeEncodeError:
            return "is not valid UTF-8"
        return None


FILLED = Text(filled=True)


@dataclass(frozen=True)
class Choice(Check):
    """One of several words; `words` is called on every check, so tables may grow.

    `file` describes a file that may be named instead, such as NAME.json, recognized by its suffix.
    """

    words: Callable[[], Sequence[str]]
    file: str = ""

    @override
    def problem(self, value: Any, kind: type) -> str | None:
        words = self.words()
        if isinstance(value, str):
            is_file = self.file and Path(value).suffix == Path(self.file).suffix
            if value in words or is_file:
                return None
        files = f" or a file {self.file}" if self.file else ""
        return f"must be one of {', '.join(words)}{files}, not {shown(value)}"


@dataclass(frozen=True, kw_only=True)
class Option:
    """Settings of an option besides its name, type and default; calling it declares a field."""

    help: str | Callable[[], str]  # half a sentence
    group: str  # the heading under which it is listed
    check: Check | None = None
    metavar: str = "N"
    flags: tuple[str, ...] = ()  # on the command line; () derives one from the name
    shown: str | Callable[[], str] | None = None  # the default in words

    def __call__(self, default: D) -> D:
        """Return a field with this default, as type checkers expect of a dataclass."""
        return dataclasses.field(default=default, metadata={"option": self})


class Group(str):
    """A heading, which declares fields: `beam: int = SEARCH(5, least=1)("beams at once")`."""

    __slots__ = ()

    def __call__(
        self,
        default: D,
        *,
        check: Check | None = None,
        least: float | None = None,
        most: float | None = None,
        above: float | None = None,
        **settings: Any,
    ) -> Callable[[str | Callable[[], str]], D]:
        """Return a function that takes the help; `settings` are `Option`'s."""
        if (least, most, above) != (None, None, None):
            check = Bounds(least=least, most=most, above=above)
        return lambda help: Option(help=help, group=self, check=check, **settings)(default)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A field of a dataclass that has an `Option`."""

    name: str
    kind: type  # bool, int, float or str
    many: bool  # takes one or several values
    optional: bool  # takes None
    default: Any
    option: Option

    @property
    def flags(self) -> tuple[str, ...]:
        return self.option.flags or ("--" + self.name.replace("_", "-"),)

    @property
    def help(self) -> str:
        return self.option.help if isinstance(self.option.help, str) else self.option.help()

    @property
    def default_in_words(self) -> str:
        if (shown := self.option.shown) is not None:
            return shown if isinstance(shown, str) else shown()
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        values = self.default if isinstance(self.default, tuple) else (self.default,)
        return ",".join(map(_in_words, values)) or "none"

    def check(self, value: Any) -> None:
        if value is None and self.optional:
            return
        check = self.option.check
        single = not self.many or isinstance(value, str) or not isinstance(value, Iterable)
        for item in [value] if single else value:
            problem = self._of_another_kind(item, single)
            if problem is None and check is not None:
                problem = check.problem(item, self.kind)
            if problem is not None:
                raise UsageError(f"{self.name} {problem}")

    def _of_another_kind(self, value: Any, single: bool) -> str | None:
        """Return the problem of a value of another type that Python would accept.

        True is a number to Python, and every value true or false. Several numbers may be given as
        one string, but none of them may be a string or a list.
        """
        is_wrong = isinstance(value, bool) != (self.kind is bool)
        if self.kind in _KINDS and not single:
            is_wrong |= not isinstance(value, numbers.Real)
        return (
            f"must be {_KINDS.get(self.kind, 'a string')}, not {shown(value)}" if is_wrong else None
        )


_KINDS = {bool: "True or False", int: "a whole number", float: "a number"}


def _in_words(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, kw_only=True)
class Params:
    """Base of dataclasses whose fields are options.

    Raises:
        UsageError: a value is out of its bounds.

    """

    foreign: ClassVar[ForeignOptions] = {}
    """Options of other libraries, for users who call with one of them."""

    def __post_init__(self) -> None:
        for option in self.declared():
            given = getattr(self, option.name)
            if (value := plain(given)) is not given:
                object.__setattr__(self, option.name, value)
            option.check(value)

    @classmethod
    def declared(cls) -> tuple[Declared, ...]:
        return _declared(cls)  # type: ignore[arg-type]  # classes can be hashed

    def values(self, params: "type[Params]") -> dict[str, Any]:
        return {option.name: getattr(self, option.name) for option in params.declared()}

    def changed(self, group: str) -> list[str]:
        """Return the names of a group's options that differ from their defaults."""
        return [
            option.name
            for option in self.declared()
            if option.option.group == group and getattr(self, option.name) != option.default
        ]


@cache
def _declared(params: type[Params]) -> tuple[Declared, ...]:
    hints = get_type_hints(params)
    return tuple(
        _declare(field, hints[field.name])
        for field in dataclasses.fields(params)
        if "option" in field.metadata
    )


def _declare(field: "dataclasses.Field[Any]", hint: Any) -> Declared:
    members = get_args(hint) or (hint,)
    several = [member for member in members if get_origin(member) is Sequence]
    # Types after the first are only for Python.
    kind, *_ = (
        get_args(several[0])
        if several
        else [member for member in members if member is not NoneType]
    )
    return Declared(
        name=field.name,
        kind=kind,
        many=bool(several),
        optional=NoneType in members,
        default=field.default,
        option=field.metadata["option"],
    )
