"""`POST /v1/messages`: Anthropic's interface to conversations, with tools, at once or streamed.

Source: the Messages API reference of docs.anthropic.com, version 2023-06-01.
"""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import override

from kvcast.server.dispatch import State
from kvcast.server.errors import ApiError, messages_document
from kvcast.server.model_registry import Served
from kvcast.server.prompts import (
    NOT_GENERATING,
    Tools,
    check_converses,
    conversation,
    keywords,
    tools_of,
)
from kvcast.server.request_models import CountTokensRequest, MessagesRequest
from kvcast.server.text_responses import Answer, CalledTool, MadePrompt, event
from kvcast.text.requests import TextDelta
from kvcast.text.texts import TextGeneration

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_THOUGHT = frozenset({"thinking", "redacted_thinking"})  # of other models, sent back


async def messages(state: State, request: Request, body: MessagesRequest) -> Response:
    served, tools, prompt = await _asked_beside(state, body)
    counted = MadePrompt(prompt)
    options = keywords(body, served, body.max_tokens) | {"n": 1} | _thinking(body)
    if body.stop_sequences:
        options["stop"] = body.stop_sequences
    options |= tools.shape
    job = await state.generate(request, served, counted, options)
    state.journal.content(request, asked=body.messages)
    answer = _MessageAnswer(served, body, tools, counted)
    return await answer.send(state, request, [job], stream=body.stream)


async def count_tokens(state: State, body: CountTokensRequest) -> Response:
    _, _, prompt = await _asked_beside(state, body)
    counted = MadePrompt(prompt)
    await state.calls.in_thread(counted)
    return JSONResponse({"input_tokens": len(counted.tokens)})


def _thinking(body: MessagesRequest) -> dict[str, Any]:
    """Return the budget of reasoning: without `thinking` there is none."""
    match body.thinking:
        case {"type": "enabled", "budget_tokens": int(budget)} if budget >= 0:
            return {"reasoning_budget": budget}
        case {"type": "enabled" | "adaptive"}:
            return {}
    return {"reasoning_budget": 0}


async def _asked_beside(
    state: State, body: CountTokensRequest
) -> tuple[Served, Tools, Callable[[], Any]]:
    """Read a request; in a thread if there are tools, whose schemas may be large."""
    return await state.calls.off_loop(lambda: _asked(state, body), bool(body.tools))


def _asked(state: State, body: CountTokensRequest) -> tuple[Served, Tools, Callable[[], Any]]:
    served = state.models.of_kind(body.model, NOT_GENERATING)
    choice = body.tool_choice or {}
    described = [_tool(tool) for tool in body.tools or ()]
    chosen = _choice(choice)
    check_converses(served, described, chosen)
    tools = tools_of(
        served.model.tokenizer,
        described,
        chosen,
        parallel=choice.get("disable_parallel_tool_use") is not True,
    )
    turns = [*_system(body.system), *(turn for given in body.messages for turn in _turns(given))]
    if turns and turns[-1]["role"] == "assistant":
        raise ApiError(
            400,
            "the last message must be the user's: an answer cannot be prefilled",
            param="messages",
        )
    return served, tools, conversation(served, turns, tools.offered, state.limits.max_prompt)


def _system(system: Any) -> Iterator[dict[str, Any]]:
    if system:
        yield {"role": "system", "content": _text_of(system, "system")}


def _turns(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise ApiError(400, "role must be user or assistant", param="messages")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in content if isinstance(content, list) else [content]:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "tool_use", "id": str(id_), "name": name, "input": dict(given)}:
                function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
                calls.append({"id": id_, "type": "function", "function": function})
            case {"type": "tool_result", "tool_use_id": str(id_), **rest}:
                answered = _text_of(rest.get("content") or "", "messages")
                yield {"role": "tool", "tool_call_id": id_, "content": answered}
            case {"type": str(kind)} if kind in _THOUGHT:
                pass
            case {"type": str(kind)}:
                raise ApiError(
                    400, f"blocks of type {kind[:100]!r} are not supported", param="messages"
                )
            case _:
                raise ApiError(400, "content must be text, or blocks with a type", param="messages")
    if calls:
        yield {"role": role, "content": "\n".join(texts) or None, "tool_calls": calls}
    elif texts:
        yield {"role": role, "content": "\n".join(texts)}


def _text_of(content: Any, param: str) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [content]
    texts = [block.get("text") if isinstance(block, Mapping) else None for block in blocks]
    if not all(isinstance(text, str) for text in texts):
        raise ApiError(400, "content must be text, or blocks of text", param=param)
    return "\n".join(map(str, texts))


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type", "custom") != "custom":
        raise ApiError(
            400, f"tools of type {str(tool['type'])[:100]!r} are not supported", param="tools"
        )
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    return {"type": "function", "function": function}


def _choice(choice: Mapping[str, Any]) -> Any:
    match choice:
        case {"type": "tool", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case {"type": str(kind)} if kind in _CHOICES:
            return _CHOICES[kind]
    if choice:
        raise ApiError(
            400, "tool_choice must be of type auto, any, tool or none", param="tool_choice"
        )
    return None


class _MessageAnswer(Answer):
    def __init__(
        self, served: Served, body: MessagesRequest, tools: Tools, prompt: MadePrompt
    ) -> None:
        super().__init__(served, tools, prompt)
        self._stops = body.stop_sequences or ()
        self._prompt_tokens = len(prompt.tokens)
        self._id = f"msg_{secrets.token_hex(12)}"
        self._open: str | None = None  # the kind of the block that is being sent
        self._blocks = 0

    @override
    def whole(self, texts: Sequence[list[TextGeneration]], cached: Sequence[int]) -> Any:
        [[text]], [hits] = texts, cached
        part = self.read(text)
        blocks: list[dict[str, Any]] = []
        if part.reasoning:
            blocks.append({"type": "thinking", "thinking": part.reasoning, "signature": ""})
        if part.content or not (part.reasoning or part.calls):
            blocks.append({"type": "text", "text": part.content})
        return (
            self._message([*blocks, *map(_called, part.calls)])
            | self._end(text)
            | {"usage": self._usage(hits, len(text.tokens))}
        )

    @override
    def ended(self, texts: list[TextGeneration], cached: int) -> Iterator[str]:
        [text] = texts
        usage = self._usage(cached, len(text.tokens))
        yield _event("message_delta", delta=self._end(text), usage=usage)
        yield _event("message_stop")

    @override
    def failed(self, error: ApiError) -> str:
        return event(messages_document(error), "error")

    @override
    def events(self, delta: TextDelta) -> Iterator[str]:
        part = self.read(delta)
        if part.is_first:
            nothing = {"stop_reason": None, "stop_sequence": None, "usage": self._usage(0, 0)}
            yield _event("message_start", message=self._message([]) | nothing)
        for kind, piece in (("thinking", part.reasoning), ("text", part.content)):
            if piece:
                yield from self._piece_events(kind, piece)
        if part.calls or part.finish_reason:
            yield from self._stop_block()
        for call in part.calls:
            self._open = "tool_use"
            yield self._block_event("start", content_block=_called(call) | {"input": {}})
            given = {"type": "input_json_delta", "partial_json": call.arguments}
            yield self._block_event("delta", delta=given)
            yield from self._stop_block()

    def _piece_events(self, kind: str, piece: str) -> Iterator[str]:
        if self._open != kind:
            yield from self._stop_block()
            self._open = kind
            empty = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
            yield self._block_event("start", content_block=empty)
        yield self._block_event("delta", delta={"type": f"{kind}_delta", kind: piece})

    def _block_event(self, phase: str, **fields: Any) -> str:
        return _event(f"content_block_{phase}", index=self._blocks, **fields)

    def _stop_block(self) -> Iterator[str]:
        if self._open is not None:
            yield self._block_event("stop")
            self._open = None
            self._blocks += 1

    def _message(self, content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.served.name,
            "content": list(content),
        }

    def _end(self, text: TextGeneration) -> dict[str, Any]:
        stop = self._stop_sequence(text)
        if text.finish_reason == "length":
            reason = "max_tokens"
        elif self.reader().calls:
            reason = "tool_use"
        else:
            reason = "end_turn" if stop is None else "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": stop}

    def _stop_sequence(self, text: TextGeneration) -> str | None:
        """Return the stop string that ended a text; its tokens are among the text's."""
        if not self._stops or text.finish_reason != "stop":
            return None
        rest = self.served.model.tokenizer.decode(list(text.tokens))[len(text.text) :]
        stops = (stop for stop in self._stops if rest.lstrip().startswith(stop.lstrip()))
        return next(stops, None)

    def _usage(self, cached: int, generated: int) -> dict[str, int]:
        return {
            "input_tokens": self._prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": generated,
        }


def _called(call: CalledTool) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": call.id,
        "name": call.name,
        "input": json.loads(call.arguments or "{}"),
    }


def _event(kind: str, **fields: Any) -> str:
    return event({"type": kind, **fields}, kind)
