"""Tools for models whose templates know none: described in a system message, called in JSON.

llama.cpp has such a generic form, too. Knows no template and no tokens.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvcast.chat.conversation import Conversation
from kvcast.chat.tool_calls import IN_WORDS

HEADING = "You can call these tools:"
"""What a description of tools begins with."""

_FORM = (
    'Answer in JSON: either {"tool_call": {"name": "<the name of a tool>", "arguments": {...}}} to '
    'call a tool, or {"response": "<your answer>"}.'
)


def in_words(whole: Conversation) -> Conversation:
    """Return a conversation without tools and calls, which says the same in its messages."""
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
    """Return a conversation whose first user says first what a system message would say."""
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
    """Return a message with its calls, or the answer of a tool, in its content."""
    if message["role"] == "tool":
        answer = {"name": message["name"], "content": message["content"]}
        content = json.dumps({"tool_response": answer}, ensure_ascii=False)
        return {"role": "user", "content": content, "answers": True}
    turn = {key: value for key, value in message.items() if key != "tool_calls"}
    if calls := message.get("tool_calls"):
        written = [
            IN_WORDS.written(call["function"]["name"], call["function"]["arguments"])
            for call in calls
        ]
        turn["content"] = "\n".join(filter(None, [message["content"], *written]))
    return turn
