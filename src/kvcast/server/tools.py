"""Tools in chat completions and responses: the grammar of a choice, and the calls in a text.

Knows how OpenAI writes tools, not how models write calls: that is `kvcast.chat.tool_calls`.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from kvcast.chat.tool_calls import ToolCall, ToolForm
from kvcast.decoding.grammar import Grammar
from kvcast.errors import UsageError
from kvcast.server.errors import ApiError


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The tools of a request.

    Attributes:
        offered: the tools that the model may call, as OpenAI's chat completions describe them.
        form: how the model writes calls; None without tools.
        shape: keywords that hold the text to a form, if it must be a call, or answers have a form.
        parallel: whether it may call several.

    """

    offered: Sequence[Mapping[str, Any]] = ()
    form: ToolForm | None = None
    shape: Mapping[str, Any] = field(default_factory=dict)
    parallel: bool = True

    def reader(self) -> "Reader":
        """Return a reader of one text."""
        return Reader(self)


def tools_of(
    tokenizer: Any,
    tools: Sequence[Mapping[str, Any]] | None,
    choice: str | Mapping[str, Any] | None,
    *,
    parallel: bool,
    shape: Mapping[str, Any] | None = None,
) -> Tools:
    """Return the tools of a request.

    Args:
        tokenizer: of the model.
        tools: as OpenAI's chat completions describe them.
        choice: "auto", "none", "required", or a description of one of the tools.
        parallel: whether the model may call several.
        shape: keywords that hold a text which is no call to a format.

    Raises:
        ApiError: for a choice that names no tool, a tool that must be called with a schema that
            cannot be kept, and where the model's template has a form that is not known.

    """
    shape = shape or {}
    if not tools:
        if choice in (None, "none", "auto"):
            return Tools(shape=shape)
        raise ApiError(400, "tool_choice needs tools", param="tool_choice")
    if choice == "none":
        return Tools(shape=shape)
    named = [(_name(tool), tool) for tool in tools]
    try:
        form: ToolForm = tokenizer.tool_form
    except UsageError as error:
        raise ApiError(400, str(error), param="tools") from None
    called = _called(named, choice)
    if called is None and shape:
        answered = form.answered(_schema(shape))
        form = replace(form, answer="")  # the JSON itself is the answer
    else:
        answered = form.answered()
    if called is None and not answered:
        return Tools(offered=tools, form=form, parallel=parallel)
    texts = (*form.enforced(tools), *answered) if called is None else form.enforced(called)
    special = tokenizer.control_tokens(form.markers)
    try:
        grammar = Grammar.tool_call(texts, special)
    except UsageError as error:
        raise ApiError(400, str(error), param="tools") from None
    return Tools(offered=tools, form=form, shape={"grammar": grammar}, parallel=parallel)


def _schema(shape: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of texts that are held to a format; raises UsageError if it cannot be kept.

    Raises ApiError for a pattern.
    """
    if "regex" in shape:
        raise ApiError(
            400, 'regex with tools that may be called needs tool_choice "none"', param="regex"
        )
    schema: Mapping[str, Any] = shape.get("json_schema", {"type": "object"})
    Grammar.json_schema(schema)
    return schema


def _called(
    named: Sequence[tuple[str, Mapping[str, Any]]], choice: str | Mapping[str, Any] | None
) -> Sequence[Mapping[str, Any]] | None:
    """Return the tools of which one must be called; None if none must."""
    if choice in (None, "auto"):
        return None
    if choice == "required":
        return [tool for _, tool in named]
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            pass
        case {"type": "function", "name": str(name)}:
            pass
        case _:
            raise ApiError(
                400,
                "tool_choice must be auto, none, required or a function",
                param="tool_choice",
            )
    chosen = [tool for known, tool in named if known == name]
    if not chosen:
        raise ApiError(400, f"tool_choice names {name!r}, which is no tool", param="tool_choice")
    return chosen


def _name(tool: Mapping[str, Any]) -> str:
    match tool:
        case {"function": {"name": str(name)}}:
            return name
    raise UsageError('a tool must be like {"type": "function", "function": {"name": …}}')


@dataclass(frozen=True, kw_only=True)
class CalledTool:
    """A call with its id and its place among the calls of a text."""

    index: int
    id: str
    name: str
    arguments: str

    @property
    def document(self) -> dict[str, Any]:
        """As chat completions have it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass
class Reader:
    """Divides one text into content and calls, piece by piece.

    Attributes:
        calls: found so far.

    """

    tools: Tools
    calls: list[CalledTool] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Prepare for the first piece."""
        form = self.tools.form
        names = [_name(tool) for tool in self.tools.offered]
        self._parser = None if form is None else form.parser(names)
        self._count = count()

    def push(self, piece: str, *, last: bool) -> tuple[str, list[CalledTool]]:
        """Take a piece; return content and calls that are certain now."""
        if self._parser is None:
            return piece, []
        parts = self._parser.push(piece)
        if last:
            parts += self._parser.finish()
        content = "".join(part for part in parts if isinstance(part, str))
        fresh = [self._called(part) for part in parts if isinstance(part, ToolCall)]
        if not self.tools.parallel:
            fresh = fresh[: 1 - len(self.calls)]
        self.calls += fresh
        return content, fresh

    def _called(self, call: ToolCall) -> CalledTool:
        return CalledTool(
            index=next(self._count),
            id=f"call_{secrets.token_hex(12)}",
            name=call.name,
            arguments=call.arguments,
        )
