"""`POST /v1/responses`: the part of OpenAI's newer interface that text needs; nothing is stored."""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from kvcast.server.dispatch import State
from kvcast.server.errors import ApiError
from kvcast.server.model_registry import Served
from kvcast.server.prompts import (
    NOT_GENERATING,
    Tools,
    check_converses,
    conversation,
    keywords,
    structure,
    tools_of,
)
from kvcast.server.request_models import ResponsesRequest
from kvcast.server.text_responses import Answer, CalledTool, event
from kvcast.text.requests import TextDelta
from kvcast.text.texts import TextGeneration

_STORED = ("previous_response_id", "conversation", "background")
_LOGPROBS = "message.output_text.logprobs"
_INCLUDED = {_LOGPROBS, "reasoning.encrypted_content"}
"""Known to `include`; there is no reasoning that could be encrypted, and clients ask always."""


async def responses(state: State, request: Request, body: ResponsesRequest) -> Response:
    served = state.models.of_kind(body.model, NOT_GENERATING)
    for name in _STORED:
        if getattr(body, name):
            raise ApiError(400, f"{name} is not supported: nothing is stored", param=name)
    _check_include(body)
    check_converses(served, body.tools, body.tool_choice)
    tools = await state.calls.off_loop(
        lambda: tools_of(
            served.model.tokenizer,
            [_tool(tool) for tool in body.tools or ()],
            body.tool_choice,
            parallel=body.parallel_tool_calls is not False,
            shape=_shape(body),
        ),
        bool(body.tools),
    )
    prompt = conversation(served, _messages(body), tools.offered, state.limits.max_prompt)
    job = await state.generate(request, served, prompt, _options(body, served, tools))
    state.journal.content(request, asked=body.input)
    return await _ResponseAnswer(served, body, tools).send(
        state, request, [job], stream=body.stream
    )


def _options(body: ResponsesRequest, served: Served, tools: Tools) -> dict[str, Any]:
    options = keywords(body, served, body.max_output_tokens) | {"n": 1}
    if _wants_logprobs(body):
        options |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    return {**options, **tools.shape}


def _shape(body: ResponsesRequest) -> dict[str, Any]:
    form = body.text.format if body.text is not None else None
    return {} if form is None else structure(form.type, form.schema_, param="text")


def _wants_logprobs(body: ResponsesRequest) -> bool:
    return bool(body.top_logprobs) or _LOGPROBS in (body.include or ())


def _check_include(body: ResponsesRequest) -> None:
    for name in body.include or ():
        if name not in _INCLUDED:
            raise ApiError(400, f"include: {name[:100]!r} is not supported", param="include")


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    if "function" in tool or tool.get("type") != "function":
        return tool
    names = ("name", "description", "parameters")
    return {"type": "function", "function": {name: tool.get(name) for name in names}}


def _messages(body: ResponsesRequest) -> list[Mapping[str, Any]]:
    begun: list[Mapping[str, Any]] = []
    if body.instructions is not None:
        begun = [{"role": "system", "content": body.instructions}]
    if isinstance(body.input, str):
        return [*begun, {"role": "user", "content": body.input}]
    return [*begun, *map(_message, body.input)]


def _message(item: Mapping[str, Any]) -> Mapping[str, Any]:
    match item:
        case {"type": "function_call", "call_id": call, "name": name, "arguments": arguments}:
            function = {"name": name, "arguments": arguments}
            calls = [{"id": call, "type": "function", "function": function}]
            return {"role": "assistant", "content": None, "tool_calls": calls}
        case {"type": "function_call_output", "call_id": call, "output": output}:
            return {"role": "tool", "tool_call_id": call, "content": _content(output)}
        case {"role": role, "content": content}:
            return {"role": role, "content": _content(content)}
    raise ApiError(400, "an item of input is of a type that is not supported", param="input")


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    kinds = {"input_text": "text", "output_text": "text"}
    return [
        {**part, "type": kinds.get(str(part.get("type")), part.get("type"))}
        if isinstance(part, dict)
        else part
        for part in content
    ]


class _ResponseAnswer(Answer):
    def __init__(self, served: Served, body: ResponsesRequest, tools: Tools) -> None:
        super().__init__(served, tools, logprobs=_wants_logprobs(body))
        self._body = body
        self._id, self._message_id = f"resp_{secrets.token_hex(16)}", _new_message_id()
        self._created = int(time.time())
        self._sequence = count()
        self._open = False  # a message
        self._content = ""
        self._logprobs: list[dict[str, Any]] = []  # of the open message
        self._items: list[dict[str, Any]] = []

    @override
    def whole(self, texts: Sequence[list[TextGeneration]], cached: Sequence[int]) -> Any:
        [[text]], [hits] = texts, cached
        part = self.read(text)
        if part.content or not part.calls:
            self._items.append(self._message(part.content, part.logprobs or []))
        self._items += map(_call_item, part.calls)
        return self._finished(text, hits)

    @override
    def ended(self, texts: list[TextGeneration], cached: int) -> list[str]:
        [text] = texts
        done = self._finished(text, cached)
        return [self._event(f"response.{done['status']}", response=done)]

    @override
    def events(self, delta: TextDelta) -> Iterator[str]:
        part = self.read(delta)
        if part.is_first:
            begun = self._document("in_progress")
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)
        last = part.finish_reason is not None
        nothing = not (self._items or self._open or part.calls)
        logprobs = part.logprobs or []
        self._logprobs += logprobs
        if part.content or (last and nothing):
            yield from self._content_events(part.content, logprobs)
        if part.calls or last:
            yield from self._close_message()
        for call in part.calls:
            yield from self._call_events(call)

    def _content_events(self, content: str, logprobs: list[dict[str, Any]]) -> Iterator[str]:
        place: dict[str, Any] = {"output_index": len(self._items), "item_id": self._message_id}
        if not self._open:
            self._open = True
            item = self._message("", [], "in_progress") | {"content": []}
            yield self._event(
                "response.output_item.added", output_index=len(self._items), item=item
            )
            yield self._event(
                "response.content_part.added", **place, content_index=0, part=_part("", [])
            )
        if content:
            self._content += content
            yield self._event(
                "response.output_text.delta",
                **place,
                content_index=0,
                delta=content,
                logprobs=logprobs,
            )

    def _close_message(self) -> Iterator[str]:
        if not self._open:
            return
        self._open = False
        index, text, logprobs = len(self._items), self._content, self._logprobs
        item = self._message(text, logprobs)
        place: dict[str, Any] = {
            "output_index": index,
            "item_id": self._message_id,
            "content_index": 0,
        }
        yield self._event("response.output_text.done", **place, text=text, logprobs=logprobs)
        yield self._event("response.content_part.done", **place, part=_part(text, logprobs))
        self._items.append(item)
        yield self._event("response.output_item.done", output_index=index, item=item)
        self._message_id = _new_message_id()
        self._content, self._logprobs = "", []

    def _call_events(self, call: CalledTool) -> Iterator[str]:
        item, index = _call_item(call), len(self._items)
        place: dict[str, Any] = {"output_index": index, "item_id": item["id"]}
        begun = item | {"arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        name = "response.function_call_arguments"
        yield self._event(f"{name}.delta", **place, delta=call.arguments)
        yield self._event(f"{name}.done", **place, name=call.name, arguments=call.arguments)
        self._items.append(item)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _event(self, kind: str, **fields: Any) -> str:
        document = {"type": kind, "sequence_number": next(self._sequence), **fields}
        return event(document, kind)

    def _message(
        self, text: str, logprobs: list[dict[str, Any]], status: str = "completed"
    ) -> dict[str, Any]:
        return {
            "id": self._message_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [_part(text, logprobs)],
        }

    def _finished(self, text: TextGeneration, cached: int) -> dict[str, Any]:
        cut = text.finish_reason == "length"
        document = self._document("incomplete" if cut else "completed")
        prompt, generated = text.prompt_tokens, len(text.tokens)
        return document | {
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._items,
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
                "output_tokens": generated,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + generated,
            },
        }

    def _document(self, status: str) -> dict[str, Any]:
        body = self._body
        text = {} if body.text is None else body.text.model_dump(by_alias=True, exclude_none=True)
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self.served.name,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"}} | text,
            "tool_choice": body.tool_choice or "auto",
            "tools": list(body.tools or ()),
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None,
        }


def _part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _call_item(call: CalledTool) -> dict[str, Any]:
    return {
        "id": f"fc_{secrets.token_hex(16)}",
        "type": "function_call",
        "status": "completed",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def _new_message_id() -> str:
    return f"msg_{secrets.token_hex(16)}"
