"""Arguments of all commands: spelling, declared options, checked values.

Options that the Python API has too are declared in dataclasses (`kvcast.options`). Options may be
spelled with hyphens or underscores. A mistake is a UsageError of one line.
"""

import argparse
import math
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, Protocol

from typing_extensions import override

from kvcast.cli.console import emit
from kvcast.errors import UsageError
from kvcast.options import Bounds, Check, Choice, Declared, Params, seconds_of

GIVEN = "given_options"  # where a namespace has the names of options that were given

SWITCHES = {
    "--condition-on-previous-text": "--no-condition-on-previous-text",
    "--word-timestamps": None,
    "--highlight-words": None,
}
"""Options that take no value here and True or False in Whisper's command line.

Each with its word for False; None leaves the option out.
"""

_INDENT = 4  # of a command in the list of commands
_SECONDS = "SECONDS"  # the metavar of times, which may also be given as 1:30


_CONTINUATION_INDENT = "    "
_PIECES = re.compile(r'(?:"[^"]*"|[^\s,])+(?:,\s*|\s*)|\s+')


def _broken(line: str, width: int) -> str:
    """Break a line after spaces and commas; a command goes on after a backslash."""
    end = " \\" if line.strip().startswith("kvcast ") else ""
    indent = f"{line[: len(line) - len(line.lstrip())]}{_CONTINUATION_INDENT}"
    lines, room = [""], width
    for piece in _PIECES.findall(line):
        if lines[-1].strip() and len((lines[-1] + piece).rstrip()) > room:
            lines.append(indent)
        lines[-1] += piece
        room = width - len(end)
    return f"{end}\n".join(each.rstrip() for each in lines)


class _Formatter(argparse.HelpFormatter):
    """Keeps to the width of the terminal, or COLUMNS.

    Fills paragraphs, except those with indented lines, of which it breaks the longer ones.
    """

    @override
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            "\n".join(_broken(line, width) for line in paragraph.split("\n"))
            if "\n " in f"\n{paragraph}"
            else textwrap.fill(paragraph, width)
            for paragraph in text.rstrip().split("\n\n")
        )

    @override
    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Return the names with the values once, as Python 3.13 does, on several lines if long."""
        text = ", ".join(action.option_strings)
        if not text:
            metavar = self._get_default_metavar_for_positional(action)
            (text,) = self._metavar_formatter(action, metavar)(1)
        elif action.nargs != 0:
            metavar = self._get_default_metavar_for_optional(action)
            text = f"{text} {self._format_args(action, metavar)}"
        indent = " " * self._current_indent
        return _broken(f"{indent}{text}", self._width).removeprefix(indent)

    @override
    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        for command in getattr(action, "_choices_actions", ()):  # argparse forgets their indent
            self._action_max_length = max(self._action_max_length, len(command.dest) + _INDENT)


class Parser(argparse.ArgumentParser):
    """argparse, with no guessing from abbreviations, and errors raised instead of printed.

    `--help` shows the arguments that `brief` names, if it names any, and `examples`; `--help-all`
    shows all.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False, formatter_class=_Formatter)
        self.color = False  # of newer versions of Python; `emit` would show the escapes
        self.brief: Collection[str] = ()
        self.examples = ""

    @property
    def arguments(self) -> list[argparse.Action]:
        return list(self._actions)

    @override
    def format_usage(self) -> str:
        return f"usage: {self._calls()}\n"

    @override
    def format_help(self) -> str:
        """Return the whole help."""
        self.usage = self._calls()
        return super().format_help()

    def print_help(self, file: object = None) -> None:  # noqa: ARG002 - always the same stream
        """Print on standard output, where a reader may leave early."""
        emit(self._brief_help() if self.brief else self.format_help())

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")

    def meant(self, option: str) -> str:
        """Return the option that an unknown one resembles; empty if there is none."""
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        return next(iter(get_close_matches(option.partition("=")[0], known, n=1, cutoff=0.75)), "")

    def show_all(self) -> None:
        """Declare `--help-all`, which is `--help` where that shows all."""
        told = "show all options" if self.brief else argparse.SUPPRESS
        self.add_argument("--help-all", action=_HelpAll, help=told)

    def _calls(self) -> str:
        words = [self.prog]
        for action in self._actions:
            if not action.option_strings and action.metavar is not None:
                name = f"{action.metavar}{'…' if action.nargs in ('+', '*') else ''}"
                words.append(f"[{name}]" if action.nargs in ("?", "*") else name)
        return " ".join([*words, "[options]"]).replace("%", "%%")

    def _brief_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_text(f"usage: {self._calls()}")
        formatter.add_text(self.description)
        formatter.add_text(self.examples)
        formatter.start_section("common options")
        formatter.add_arguments([action for action in self._actions if action.dest in self.brief])
        formatter.end_section()
        count = len({id(action) for action in self._option_string_actions.values()})
        formatter.add_text(f"{self.prog} --help-all shows all {count} options, and exit codes.")
        return formatter.format_help()


class _HelpAll(argparse.Action):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, nargs=0, default=argparse.SUPPRESS)

    @override
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        emit(parser.format_help())
        parser.exit()


class Heading(Protocol):
    def add_argument(self, *flags: str, **settings: Any) -> argparse.Action:
        """Declare an argument, as argparse does."""


def headings(parser: argparse.ArgumentParser, *titles: str) -> dict[str, Heading]:
    return {title: parser.add_argument_group(title) for title in titles}


def add_options(
    under: Mapping[str, Heading], params: type[Params], *, leave_out: Collection[str] = ()
) -> None:
    """Declare an argument for every option of these, each under the heading of its group."""
    for option in params.declared():
        if option.name not in leave_out:
            group = under[option.option.group]
            group.add_argument(*option.flags, dest=option.name, **_settings(option))


def keywords(args: argparse.Namespace, params: type[Params]) -> dict[str, Any]:
    """Return the parsed values of these options that the command has, by keyword."""
    given = vars(args)
    return {option.name: given[option.name] for option in params.declared() if option.name in given}


def left_open(args: argparse.Namespace, names: Collection[str]) -> set[str]:
    """Return the options, numbers and switches, that nobody gave."""
    return {*names} - getattr(args, GIVEN, frozenset())


class _Given(argparse.Action):
    @override
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        setattr(namespace, GIVEN, getattr(namespace, GIVEN, frozenset()) | {self.dest})


class _Switch(_Given):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, nargs=0, default=False)

    @override
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        super().__call__(parser, namespace, True, option_string)


class _WithFiles(tuple[str, ...]):
    """Words to choose from, and files with the ending of the last of them."""

    __slots__ = ()

    @override
    def __contains__(self, value: object) -> bool:
        return super().__contains__(value) or Path(str(value)).suffix == Path(self[-1]).suffix


def _settings(option: Declared) -> dict[str, Any]:
    text = option.help.replace("%", "%%")
    if option.kind is bool and not option.default:
        return {"action": _Switch, "help": text}
    text += f" (default: {option.default_in_words.replace('%', '%%')})"
    if option.kind is bool:
        return {"action": argparse.BooleanOptionalAction, "default": True, "help": text}
    settings: dict[str, Any] = {"default": option.default, "help": text}
    if isinstance(check := option.option.check, Choice):
        words = tuple(check.words())
        return settings | {"choices": _WithFiles((*words, check.file)) if check.file else words}
    settings["metavar"] = option.option.metavar
    if option.many and option.kind is str:
        return settings | {"type": _reader(option), "action": "append", "default": []}
    if option.kind in (int, float):
        settings["action"] = _Given
    return settings | {"type": _reader(option)}


def _reader(option: Declared) -> Callable[[str], Any]:
    check = option.option.check
    if not isinstance(check, Bounds):
        return _checked(check)
    read: Callable[[str], Any]
    if option.kind is int:
        read = whole_number(int(check.least or 0), int(check.most or 2**32 - 1))
    else:
        lowest, highest = (
            unbounded if bound is None else bound
            for bound, unbounded in ((check.least, -math.inf), (check.most, math.inf))
        )
        seconds = option.option.metavar == _SECONDS
        read = number(lowest, highest, above=check.above, parse=seconds_of if seconds else float)
    if option.many:
        return several(read)
    return or_none(read) if option.optional else read


def _checked(check: Check | None) -> Callable[[str], str]:
    def read(text: str) -> str:
        if check is not None and (problem := check.problem(text, str)):
            raise argparse.ArgumentTypeError(problem)
        return text

    return read


def normalise(words: Sequence[str]) -> list[str]:
    """Rewrite a command line into the spelling that the parsers know.

    `--best_of 3` becomes `--best-of 3`; `--suppress-tokens -1,7` one word, or argparse would take
    -1,7 for an option; `--condition_on_previous_text False` `--no-condition-on-previous-text`.
    Words after a lone `--` are unchanged.
    """
    end = words.index("--") if "--" in words else len(words)
    spelled: list[str] = []
    for word in map(_hyphenated, words[:end]):
        if spelled and _belongs_to(word, spelled[-1]):
            spelled.append(f"{spelled.pop()}={word}")
        else:
            spelled.append(word)
    switched = [word for word in map(_switched, spelled) if word is not None]
    return [*switched, *words[end:]]


def _hyphenated(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _belongs_to(word: str, option_name: str) -> bool:
    if option_name in SWITCHES:
        return word in {"True", "False"}
    is_bare_option = option_name.startswith("--") and "=" not in option_name
    return is_bare_option and re.match(r"-[\d.]", word) is not None


def _switched(word: str) -> str | None:
    name, _, value = word.partition("=")
    if name in SWITCHES and value in {"True", "False"}:
        return name if value == "True" else SWITCHES[name]
    return word


def whole_number(minimum: int, maximum: int = 2**31 - 1) -> Callable[[str], int]:
    """Return a parser of integers within bounds, for argparse's `type`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if not minimum <= value <= maximum:
            raise argparse.ArgumentTypeError(
                f"must be a whole number from {minimum} to {maximum}, not {text!r}"
            )
        return value

    return read


def number(
    minimum: float = -math.inf,
    maximum: float = math.inf,
    *,
    above: float | None = None,
    parse: Callable[[str], float] = float,
) -> Callable[[str], float]:
    """Return a parser of finite floats within bounds; `above` is an exclusive bound."""
    bounds = [f"above {above:g}"] if above is not None else []
    bounds += [f"of at least {minimum:g}"] if minimum > -math.inf else []
    bounds += [f"{'' if bounds else 'of '}at most {maximum:g}"] if maximum < math.inf else []
    wanted = " and ".join(["a number", *bounds]).replace(" and ", " ", 1)

    def read(text: str) -> float:
        try:
            value = parse(text)
        except ValueError:
            value = math.nan
        low_enough = minimum <= value <= maximum and math.isfinite(value)
        if not low_enough or (above is not None and value <= above):
            raise argparse.ArgumentTypeError(f"must be {wanted}, not {text!r}")
        return value

    return read


def or_none(read: Callable[[str], float]) -> Callable[[str], float | None]:
    """Return a reader that also takes None, as Whisper's command line spells "off"."""

    def read_or_none(text: str) -> float | None:
        return None if text.lower() == "none" else read(text)

    return read_or_none


def several(read: Callable[[str], float]) -> Callable[[str], tuple[float, ...]]:
    """Return a reader of a list, by commas or spaces, of at least one value."""

    def read_all(text: str) -> tuple[float, ...]:
        values = tuple(read(part) for part in text.replace(",", " ").split())
        if not values:
            raise argparse.ArgumentTypeError("is empty")
        return values

    return read_all


def filled(text: str) -> str:
    """Check that a value is not the empty string, as an unset shell variable gives."""
    if not text:
        raise argparse.ArgumentTypeError("is empty")
    return text
