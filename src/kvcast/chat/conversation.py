"""Validates conversations in OpenAI's chat format, and converts them for templates.

Templates turn roles and names into control text, so these are restricted. Where a template has no
tools, `in_words` describes them in a system message, as llama.cpp does.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from kvcast.chat.tool_calls import IN_WORDS
from kvcast.errors import UsageError
from kvcast.options import shown
from kvcast.spec.text_files import whole_characters

Message = Mapping[str, Any]
"""One turn of a conversation, as OpenAI's chat completions have it: "role", "content" and so on."""

Tool = Mapping[str, Any]
"""A function that the model may call, as OpenAI's chat completions describe it."""

ROLES = ("system", "user", "assistant", "tool", "developer")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Turns and tools for Hugging Face's templates; a call's arguments are an object, not text."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]

    @property
    def has_tools(self) -> bool:
        turns = ("tool_calls" in turn or turn["role"] == "tool" for turn in self.messages)
        return bool(self.tools) or any(turns)

    def map_strings(self, change: Callable[[str], str]) -> "Conversation":
        return Conversation(
            messages=_map_strings(self.messages, change), tools=_map_strings(self.tools, change)
        )

    def texts(self) -> list[str]:
        return [*_texts(self.messages), *_texts(self.tools)]

    def with_short_ids(self) -> "Conversation":
        """Renumber calls, unless their ids have Mistral's form."""
        calls = [call for message in self.messages for call in message.get("tool_calls", ())]
        ids = {call["id"]: f"{i:09}" for i, call in enumerate(calls)}
        if all(map(_SHORT_ID.fullmatch, ids)):
            return self
        messages = []
        for message in self.messages:
            renamed = dict(message)
            if "tool_calls" in message:
                renamed["tool_calls"] = [
                    call | {"id": ids[call["id"]]} for call in message["tool_calls"]
                ]
            if "tool_call_id" in message:
                renamed["tool_call_id"] = ids[message["tool_call_id"]]
            messages.append(renamed)
        return Conversation(messages=messages, tools=self.tools)


def check_conversation(
    messages: Sequence[Message], tools: Sequence[Tool] | None = None, *, parts: bool = False
) -> Conversation:
    """Return a valid conversation, without lone surrogates; `parts`: content parts are kept.

    Raises UsageError for an invalid one.
    """
    for name, given in ("messages", messages), ("tools", () if tools is None else tools):
        if not isinstance(given, list | tuple):
            raise UsageError(f"{name} must be a list, not {shown(given)}")
    if not messages:
        raise UsageError("the conversation is empty: give at least one message")
    try:
        called: dict[str, str] = {}
        turns = [
            _MessageReader(f"message {n}", m, parts=parts).read(called)
            for n, m in enumerate(messages, start=1)
        ]
        offered = [_tool(f"tool {n}", tool) for n, tool in enumerate(tools or (), start=1)]
        return Conversation(messages=turns, tools=offered).map_strings(whole_characters)
    except RecursionError:
        raise UsageError("the conversation is nested too deeply") from None


def _is_null(value: object) -> bool:
    return value is None or (isinstance(value, list | dict) and not value)


class _MessageReader:
    """Reads a message; `where` is its place, for errors."""

    def __init__(self, where: str, message: Message, *, parts: bool) -> None:
        if not isinstance(message, Mapping):
            raise UsageError(f'{where} must be like {{"role": "user", "content": "Hello"}}')
        # Answers that clients send back have null fields.
        self._given = {key: value for key, value in message.items() if not _is_null(value)}
        self._where = where
        self._keeps_parts = parts and message.get("role") == "user"

    def read(self, called: dict[str, str]) -> dict[str, Any]:
        """Return the turn; `called` maps ids to names of calls so far, and is extended."""
        given = self._given
        role = given.pop("role", None)
        if not isinstance(role, str) or role not in ROLES:
            self._refuse(f"role must be one of {', '.join(ROLES)}")
        turn: dict[str, Any] = {"role": "system" if role == "developer" else role}
        calls = given.pop("tool_calls", None) if role == "assistant" else None
        if not isinstance(calls, list | tuple | None):
            self._refuse("tool_calls must be a list")
        turn["content"] = self._content(given.pop("content", "" if calls else None))
        if calls:
            turn["tool_calls"] = [self._call(call) for call in calls]
            called |= {call["id"]: call["function"]["name"] for call in turn["tool_calls"]}
        if role == "tool":
            turn["tool_call_id"] = self._find_call(given.pop("tool_call_id", None), called)
            turn["name"] = called[turn["tool_call_id"]]
            given.pop("name", None)
        for key, value in given.items():
            if not isinstance(value, str):
                self._refuse(f"{key} is not supported for the role {role}")
            turn[key] = value
        return turn

    def _content(self, content: object) -> str | list[dict[str, str]]:
        if isinstance(content, str):
            return content
        if not isinstance(content, Sequence):
            self._refuse('content must be text, or a list of {"type": "text", "text": "Hello"}')
        texts = []
        for part in content:
            kind = part.get("type") if isinstance(part, Mapping) else part
            if not isinstance(kind, str) or kind != "text":
                what = f"content has a part of type {shown(kind)}"
                self._refuse(f"{what}: this model reads text alone")
            if not isinstance(part.get("text"), str):
                self._refuse("content has a part without text")
            texts.append(part["text"])
        if self._keeps_parts and len(texts) > 1:
            return [{"type": "text", "text": text} for text in texts]
        return "\n".join(texts)

    def _call(self, call: object) -> dict[str, Any]:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(call, Mapping):
            self._refuse("a call of tool_calls must have an id and a function")
        if call.get("type", "function") != "function":
            self._refuse(f"a call of tool_calls has the type {call['type']!r}, not function")
        if not isinstance(call.get("id"), str):
            self._refuse("a call of tool_calls has no id")
        name = _name_of(f"{self._where}: a call's function", function)
        arguments = self._arguments(name, function.get("arguments"))
        return {
            "id": call["id"],
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _arguments(self, name: str, arguments: object) -> dict[str, Any]:
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except ValueError:
                self._refuse(f"the arguments of the call of {name} are not JSON")
        if not isinstance(arguments, Mapping):
            self._refuse(f"the arguments of the call of {name} must be a JSON object")
        return _json_object(f"{self._where}: the arguments of the call of {name}", arguments)

    def _find_call(self, call: object, called: Mapping[str, str]) -> str:
        if not isinstance(call, str):
            self._refuse("a tool's answer needs the tool_call_id of the call")
        if call not in called:
            self._refuse(f"no call before it has the tool_call_id {call!r}")
        return call

    def _refuse(self, label: str) -> NoReturn:
        raise UsageError(f"{self._where}: {label}")


def _tool(where: str, tool: Tool) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or tool.get("type") != "function":
        raise UsageError(f'{where} must be like {{"type": "function", "function": {{"name": …}}}}')
    _name_of(f"{where}: its function", function)
    if not isinstance(function.get("description"), str | None):
        raise UsageError(f"{where}: its description must be text")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise UsageError(f"{where}: its parameters must be a JSON schema, an object")
    # Templates print it unchanged, in this order.
    described = {name: value for name, value in function.items() if value is not None}
    described["parameters"] = _json_object(f"{where}: its parameters", parameters)
    given = {**tool, "function": described}
    return _json_object(f"{where}: its fields", given)


def _name_of(where: str, function: Mapping[str, Any]) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{where} needs a name of at most 64 letters, digits, underscores and hyphens"
        )
    return name


def _json_object(where: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of JSON's types; raises UsageError for other types."""
    try:
        copied: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        raise UsageError(f"{where} are not JSON") from None
    return copied


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map_strings(item, change) for key, item in value.items()}
    return [_map_strings(item, change) for item in value] if isinstance(value, list) else value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


HEADING = "You can call these tools:"
"""The beginning of a description of tools."""

_FORM = (
    'Answer in JSON: either {"tool_call": {"name": "<the name of a tool>", "arguments": {...}}} to '
    'call a tool, or {"response": "<your answer>"}.'
)


def in_words(whole: Conversation) -> Conversation:
    """Return a conversation whose messages contain its tools and calls as text."""
    messages: list[dict[str, Any]] = []
    for message in map(_said, whole.messages):
        before = messages[-1] if messages else {}
        if "answers" in message and "answers" in before:  # roles take turns
            before["content"] += "\n" + message["content"]
        else:
            messages.append(message)
    turns = [{key: turn[key] for key in turn if key != "answers"} for turn in messages]
    if whole.tools:
        turns = _under_system(_description(whole.tools), turns)
    return Conversation(messages=turns, tools=[])


def without_system(whole: Conversation) -> Conversation:
    """Return a conversation whose system message is merged into the first user message."""
    first, *turns = whole.messages
    if first["role"] != "system" or not turns:
        return whole
    user, *others = turns
    content = f"{first['content']}\n\n{user['content']}"
    return Conversation(messages=[user | {"content": content}, *others], tools=whole.tools)


def _description(tools: Sequence[Mapping[str, Any]]) -> str:
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return f"{HEADING}\n{listed}\n\n{_FORM}"


def _under_system(text: str, turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if turns[0]["role"] == "system":
        return [turns[0] | {"content": f"{turns[0]['content']}\n\n{text}"}, *turns[1:]]
    return [{"role": "system", "content": text}, *turns]


def _said(message: Mapping[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        answer = {"name": message["name"], "content": message["content"]}
        content = json.dumps({"tool_response": answer}, ensure_ascii=False)
        return {"role": "user", "content": content, "answers": True}
    turn = {key: value for key, value in message.items() if key != "tool_calls"}
    if calls := message.get("tool_calls"):
        texts = [
            IN_WORDS.write_call(call["function"]["name"], call["function"]["arguments"])
            for call in calls
        ]
        turn["content"] = "\n".join(filter(None, [message["content"], *texts]))
    return turn
