"""Parsers of generated text, which arrives in pieces: reasoning, tool calls and content."""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol

from typing_extensions import override

from kvcast.spec.text_files import whole_characters

if TYPE_CHECKING:
    from kvcast.chat.tool_calls import ToolForm

BEGIN = "<think>"
END = "</think>"


class ReasoningParser:
    """Divides one text, in pieces, into reasoning and answer, without white space around either."""

    def __init__(self, *, begun: bool = False) -> None:
        """`begun`: the prompt itself ends with `BEGIN`."""
        self._awaits = END if begun else BEGIN  # nothing in the answer
        self._held = ""
        self._strips = begun  # white space that comes next

    @property
    def reasons(self) -> bool:
        return self._awaits == END

    def push(self, piece: str, *, last: bool = False) -> tuple[str, str]:
        """Return the reasoning and the answer that are certain after a piece."""
        self._held += piece
        if self._awaits == BEGIN:
            begun = self._held.lstrip()
            if begun.startswith(BEGIN):
                self._held = begun.removeprefix(BEGIN)
                self._awaits, self._strips = END, True
            elif last or not BEGIN.startswith(begun):
                self._awaits = ""
            else:
                return "", ""
        reasoning = ""
        if self._awaits == END:
            reasoning, ended, rest = self._held.partition(END)
            kept = _spaces(reasoning) if ended or last else _uncertain(reasoning)
            certain = len(reasoning) - kept
            self._held = rest if ended else reasoning[certain:]
            reasoning = self._strip(reasoning[:certain])
            if not ended:
                return reasoning, ""
            self._awaits, self._strips = "", True
        answer, self._held = self._strip(self._held), ""
        return reasoning, answer

    def _strip(self, text: str) -> str:
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        return text


def _uncertain(text: str) -> int:
    """Return how many trailing characters are white space, or may begin `END`."""
    for length in range(min(len(END) - 1, len(text)), 0, -1):
        if END.startswith(text[-length:]):
            return length + _spaces(text[:-length])
    return _spaces(text)


def _spaces(text: str) -> int:
    return len(text) - len(text.rstrip())


_LONGEST_HEAD = 256
"""Maximum characters between the opening of a call and its JSON."""


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A call: the tool's name, and its arguments as JSON."""

    name: str
    arguments: str


class TextParser(Protocol):
    """Divides one text, in pieces, into content and calls."""

    def push(self, piece: str) -> list[str | ToolCall]:
        """Take a piece; return the parts that are certain now."""

    def finish(self) -> list[str | ToolCall]:
        """Return the rest, when no more is coming."""


class ToolCallParser(TextParser):
    """Divides one text, in pieces, into content and calls; malformed calls are content."""

    def __init__(self, form: "ToolForm", names: Collection[str]) -> None:
        self._form = form
        self._head = re.compile(form.head)
        self._names = frozenset(names)
        self._text = ""  # not yet returned
        self._step = self._content
        self._may_be_bare = form.bare
        self._json: _JsonEnd | None = None
        self._body = 0  # where in the text the opening ends
        self._called: re.Match[str] | None = None

    @override
    def push(self, piece: str) -> list[str | ToolCall]:
        self._text += piece
        return self._steps(final=False)

    @override
    def finish(self) -> list[str | ToolCall]:
        return self._steps(final=True)

    def _steps(self, *, final: bool) -> list[str | ToolCall]:
        parts: list[str | ToolCall] = []
        while self._text and (step_parts := self._step(final)) is not None:
            parts += step_parts
        return parts

    # A step returns its matches, or None where it needs more text.

    def _content(self, final: bool) -> list[str | ToolCall] | None:
        text, form = self._text, self._form
        begun = text.lstrip()
        if self._may_be_bare and begun.startswith("{"):
            self._body = len(text) - len(begun)
            self._step = self._call
            return []
        if (at := text.find(form.opening)) >= 0:
            before = text[:at].rstrip()
            self._text = text[len(before) :]  # the white space is content if this is no call
            self._body = at - len(before) + len(form.opening)
            self._step = self._call
            return [before] if before else []
        certain = len(text) if final else self._certain(text)
        if not certain:
            return None
        self._may_be_bare = False
        return [self._take(certain)]

    def _certain(self, text: str) -> int:
        opening = self._form.opening
        for length in range(min(len(text), len(opening) - 1), 0, -1):
            if text.endswith(opening[:length]):
                text = text[:-length]
                break
        return len(text.rstrip())

    def _call(self, final: bool) -> list[str | ToolCall] | None:
        text = self._text
        if self._json is None:
            self._called = self._head.match(text, self._body)
            if self._called is None:
                hopeless = final or len(text) > self._body + _LONGEST_HEAD
                return self._no_call(self._body) if hopeless else None
            self._json = _JsonEnd(self._called.end())
        end = self._json.find(text)
        if end is None:
            return self._no_call(len(text)) if final else None
        assert self._called is not None
        calls = self._calls(self._called, text[self._called.end() : end])
        if not calls:
            return self._no_call(end)
        self._take(end)
        self._json, self._step = None, self._closing
        return [*calls]

    def _no_call(self, length: int) -> list[str | ToolCall]:
        self._json, self._step = None, self._content
        self._may_be_bare = False
        return [text] if (text := self._take(length)) else []

    def _closing(self, final: bool) -> list[str | ToolCall] | None:
        self._text, closing = self._text.lstrip(), self._form.closing
        if closing.startswith(self._text) and self._text != closing:
            if final:
                self._text = ""
            return None
        self._text = self._text.removeprefix(closing)
        self._step = self._between
        return []

    def _between(self, final: bool) -> list[str | ToolCall] | None:  # noqa: ARG002
        self._text = re.sub(rf"^[\s{self._form.separators}]+", "", self._text)
        if not self._text:
            return None
        self._step, self._may_be_bare = self._content, self._form.bare
        return []

    def _take(self, length: int) -> str:
        text, self._text = self._text[:length], self._text[length:]
        return text

    def _calls(self, head: re.Match[str], source: str) -> list[ToolCall]:
        try:
            value = json.loads(source, parse_constant=_refuse)
            if "name" in head.groupdict():
                value = {"name": head["name"], "arguments": value}
            return [self._call_of(call) for call in (value if isinstance(value, list) else [value])]
        except (ValueError, RecursionError):
            return []

    def _call_of(self, value: object) -> ToolCall:
        match value:
            case {"name": str(name), **rest} if name in self._names:
                arguments = rest.get("arguments", rest.get("parameters")) or {}
                if isinstance(arguments, str):
                    arguments = json.loads(arguments, parse_constant=_refuse)
                if isinstance(arguments, dict):
                    arguments_text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
                    return ToolCall(name=name, arguments=arguments_text)
        raise ValueError("no call")


class AnswerParser(TextParser):
    """Extracts an answer from its JSON string; other texts go to the parser of calls."""

    # Of a character in two escapes, the second is waited for.
    _PARTS = re.compile(
        r"""(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}"""
        r"""|\\u[0-9a-fA-F]{4}(?:\\u[0-9a-fA-F]{4}|(?=[^\\]|\\[^u])))*""",
        re.DOTALL,
    )

    def __init__(self, answer: str, calls: ToolCallParser) -> None:
        self._beginning = f'{answer}"'
        self._calls = calls
        self._text = ""  # not yet returned
        self._state: Literal["begun", "answer", "over", "calls"] = "begun"

    @override
    def push(self, piece: str) -> list[str | ToolCall]:
        if self._state == "calls":
            return self._calls.push(piece)
        self._text += piece
        if self._state == "begun":
            begun = self._text.lstrip()
            if begun.startswith(self._beginning):
                self._text, self._state = begun.removeprefix(self._beginning), "answer"
            elif not self._beginning.startswith(begun):
                self._state = "calls"
                return self._calls.push(self._text)
        return self._answer() if self._state == "answer" else []

    @override
    def finish(self) -> list[str | ToolCall]:
        if self._state == "begun":
            return self._calls.push(self._text) + self._calls.finish()
        return self._calls.finish() if self._state == "calls" else []

    def _answer(self) -> list[str | ToolCall]:
        match = self._PARTS.match(self._text)
        assert match is not None  # it may be empty
        self._text = self._text[match.end() :]
        if self._text.startswith('"'):
            self._state = "over"
        try:
            text = json.loads(f'"{match[0]}"', strict=False)
        except ValueError:  # an escape that is none
            text = match[0]
        return [whole_characters(text)] if text else []


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


class _JsonEnd:
    """Finds the end of JSON in a growing text, in linear time; if invalid, of its brackets."""

    _OUTSIDE = re.compile(r'["{}\[\]]')
    _INSIDE = re.compile(r'["\\]')

    def __init__(self, begin: int) -> None:
        self._at = begin
        self._depth = 0
        self._in_string = False

    def find(self, text: str) -> int | None:
        while match := (self._INSIDE if self._in_string else self._OUTSIDE).search(text, self._at):
            self._at = match.end()
            if match[0] == '"':
                self._in_string = not self._in_string
            elif match[0] == "\\":
                self._at += 1  # whatever it is
            elif match[0] in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    return self._at
        self._at = max(self._at, len(text))
        return None
