"""Calls of tools in the text that a model writes, in the forms that open models were trained on.

A model's form follows from its chat template, which formats earlier calls in the same way. A parser
takes text in pieces and returns content and calls. Knows no tokens.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol

from typing_extensions import override

from kvcast.spec.text_files import whole_characters

UNKNOWN_FORM = "this model's template calls tools in a form that kvcast does not know"

_LONGEST_HEAD = 256
"""Maximum characters between the opening of a call and its JSON."""


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A call: the tool's name, and a JSON object with its arguments, as text."""

    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class EnforcedCall:
    """The text that calls one tool: a prefix, JSON that follows a schema, a suffix.

    `markers` are the parts of prefix and suffix that a vocabulary may have as special tokens.
    """

    prefix: str
    schema: Mapping[str, Any]
    suffix: str
    markers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ToolForm:
    """How a model writes calls.

    Attributes:
        opening: the text before a call.
        closing: the text after it; empty for none.
        head: pattern for what stands between opening and JSON; a group `name` is the tool's, whose
            arguments alone are the JSON then.
        separators: characters between calls, besides white space.
        bare: whether a call at the beginning of a text, or after another, needs no opening.
        markers: texts that a vocabulary may have as special tokens, which then count as text.
        call: the text of one call, with NAME and ARGUMENTS in it.
        answer: the text before the JSON string that an answer without calls is; empty where such
            answers are plain text.

    """

    opening: str
    closing: str = ""
    head: str = r"\s*(?=\{)"
    separators: str = ""
    bare: bool = False
    markers: tuple[str, ...]
    call: str
    answer: str = ""

    def parser(self, names: Collection[str]) -> "TextParser":
        """Return a parser for one text; a call of any other tool is content."""
        calls = ToolCallParser(self, names)
        return AnswerParser(self.answer, calls) if self.answer else calls

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the text of a call."""
        before, after = self.call.split("ARGUMENTS")
        return before.replace("NAME", name) + json.dumps(arguments, ensure_ascii=False) + after

    def answered(self, schema: Mapping[str, Any] | None = None) -> tuple[EnforcedCall, ...]:
        """Return the text of an answer without calls, where that has a form.

        `schema` is of answers that are JSON.
        """
        if schema is not None:
            return (EnforcedCall(prefix="", schema=schema, suffix="", markers=self.markers),)
        if not self.answer:
            return ()
        schema = {"type": "string"}
        return (EnforcedCall(prefix=self.answer, schema=schema, suffix="}", markers=self.markers),)

    def enforced(self, tools: Sequence[Mapping[str, Any]]) -> tuple[EnforcedCall, ...]:
        """Return the texts that call one of these tools, as OpenAI describes them."""
        return tuple(self._enforced(tool["function"]) for tool in tools)

    def _enforced(self, function: Mapping[str, Any]) -> EnforcedCall:
        before, suffix = self.call.split("ARGUMENTS")
        prefix = before.replace("NAME", function["name"])
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        return EnforcedCall(prefix=prefix, schema=schema, suffix=suffix, markers=self.markers)


HERMES = ToolForm(
    opening="<tool_call>",
    closing="</tool_call>",
    markers=("<tool_call>", "</tool_call>"),
    call='<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>',
)
"""Nous Hermes, Qwen 2.5 and 3, SmolLM 3."""

MISTRAL = ToolForm(
    opening="[TOOL_CALLS]",
    head=r"\s*(?=[\[{])",
    markers=("[TOOL_CALLS]",),
    call='[TOOL_CALLS][{"name": "NAME", "arguments": ARGUMENTS}]',
)
"""Mistral's up to version 7 of its formats: a list of calls."""

MISTRAL_NAMED = ToolForm(
    opening="[TOOL_CALLS]",
    head=r"\s*(?P<name>[\w-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)",
    markers=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    call="[TOOL_CALLS]NAME[ARGS]ARGUMENTS",
)
"""Mistral's from version 11 on: the name stands before the arguments."""

LLAMA = ToolForm(
    opening="<|python_tag|>",
    separators=";,",
    bare=True,
    markers=("<|python_tag|>",),
    call='{"name": "NAME", "parameters": ARGUMENTS}',
)
"""Llama 3.1 to 3.3."""


IN_WORDS = ToolForm(
    opening='{"tool_call": ',
    closing="}",
    markers=(),
    call='{"tool_call": {"name": "NAME", "arguments": ARGUMENTS}}',
    answer='{"response": ',
)
"""Models whose templates know no tools: they are told to write so."""


def knows_tools(template: str) -> bool:
    """Tell whether a chat template does anything with tools, beside those of a message."""
    return re.search(r"""(?<![\w.'"])tools\b(?!['"])""", template) is not None


def form_of(template: str) -> ToolForm | None:
    """Return the form in which a chat template writes calls; None if there is none that is known.

    Qwen's coders and GLM open calls as Hermes does, but write no JSON.
    """
    if not knows_tools(template):
        return None
    if "<tool_call>" in template:
        return None if "<function=" in template or "<arg_key>" in template else HERMES
    if "[TOOL_CALLS]" in template:
        return MISTRAL_NAMED if "[ARGS]" in template else MISTRAL
    other_marker = re.search(r"<[^<>\s]*tool[^<>\s]*>", template)
    described = re.search(r'"name\\?": .*"parameters\\?": ', template, re.DOTALL)
    return LLAMA if described and not other_marker else None


def lark(calls: Sequence[EnforcedCall], special: Mapping[str, int]) -> str:
    """Return a grammar in llguidance's Lark for a text that is one of these calls.

    `special` has the tokens of those markers that are special tokens of the vocabulary.
    """
    names = [f"call_{i}" for i in range(len(calls))]
    rules = [
        f"{name}: {_terms(call.prefix, call.markers, special)} "
        f"%json {json.dumps(call.schema)} {_terms(call.suffix, call.markers, special)}".rstrip()
        for name, call in zip(names, calls, strict=True)
    ]
    return "\n".join([f"start: {' | '.join(names)}", *rules, ""])


def _terms(text: str, markers: Sequence[str], special: Mapping[str, int]) -> str:
    parts = re.split("(" + "|".join(map(re.escape, markers)) + ")", text)
    return " ".join(
        f"<[{special[part]}]>" if part in special else json.dumps(part) for part in parts if part
    )


class TextParser(Protocol):
    """Divides one text into content and calls, however it is split into pieces."""

    def push(self, piece: str) -> list[str | ToolCall]:
        """Take a piece; return the parts that are certain now."""

    def finish(self) -> list[str | ToolCall]:
        """Return the rest, when no more is coming."""


class ToolCallParser(TextParser):
    """Divides one text into content and calls, however it is split into pieces.

    White space around calls is left out. Text that only looks like a call is content, as it was
    written.
    """

    def __init__(self, form: ToolForm, names: Collection[str]) -> None:
        self._form = form
        self._head = re.compile(form.head)
        self._names = frozenset(names)
        self._text = ""  # what is not yet told
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

    # A step returns what it has found, and None where it needs more text.

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
        return [self._taken(certain)]

    def _certain(self, text: str) -> int:
        """Return the length of the part that is certainly content."""
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
        self._taken(end)
        self._json, self._step = None, self._closing
        return [*calls]

    def _no_call(self, length: int) -> list[str | ToolCall]:
        self._json, self._step = None, self._content
        self._may_be_bare = False
        return [text] if (text := self._taken(length)) else []

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

    def _taken(self, length: int) -> str:
        text, self._text = self._text[:length], self._text[length:]
        return text

    def _calls(self, head: re.Match[str], written: str) -> list[ToolCall]:
        """Return the calls that a JSON value is; none if it is not one."""
        try:
            value = json.loads(written, parse_constant=_refuse)
            if "name" in head.groupdict():
                value = {"name": head["name"], "arguments": value}
            return [self._call_of(call) for call in (value if isinstance(value, list) else [value])]
        except (ValueError, RecursionError):
            return []

    def _call_of(self, value: object) -> ToolCall:
        """Return the call that an object is; raises ValueError if it is none."""
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
    """Takes an answer out of the JSON that it is written in; other texts are for calls."""

    # Of a character in two escapes, the second is waited for.
    _PARTS = re.compile(
        r"""(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}"""
        r"""|\\u[0-9a-fA-F]{4}(?:\\u[0-9a-fA-F]{4}|(?=[^\\]|\\[^u])))*""",
        re.DOTALL,
    )

    def __init__(self, answer: str, calls: ToolCallParser) -> None:
        """Begin; `answer` is the text before the JSON string."""
        self._beginning = f'{answer}"'
        self._calls = calls
        self._text = ""  # what is not yet told
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
        """Return the part of the answer that is certain."""
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
    """Finds where a JSON object or list ends, in a text that grows; looks at each character once.

    Invalid JSON ends where its brackets are even.
    """

    _OUTSIDE = re.compile(r'["{}\[\]]')
    _INSIDE = re.compile(r'["\\]')

    def __init__(self, begin: int) -> None:
        self._at = begin
        self._depth = 0
        self._in_string = False

    def find(self, text: str) -> int | None:
        """Return the place after the end, or None if it has not come."""
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
