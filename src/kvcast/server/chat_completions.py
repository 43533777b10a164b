"""`POST /v1/chat/completions` and `/v1/completions`: conversations and plain prompts.

Both answer at once or stream.
"""

import codecs
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from kvcast.server.dispatch import State, check_room
from kvcast.server.errors import ApiError
from kvcast.server.model_registry import Served
from kvcast.server.prompts import (
    NOT_GENERATING,
    check_converses,
    conversation,
    copied,
    each,
    keywords,
    limited,
    shape,
    tools_of,
)
from kvcast.server.request_models import ChatRequest, CompletionRequest
from kvcast.server.text_responses import (
    DONE,
    Answer,
    MadePrompt,
    Part,
    event,
    finite,
    head,
    spelling,
    usage,
)
from kvcast.text.requests import TextDelta
from kvcast.text.texts import TextGeneration


async def chat_completions(state: State, request: Request, body: ChatRequest) -> Response:
    served = state.models.of_kind(body.model, NOT_GENERATING)
    check_converses(served, body.tools, body.tool_choice)
    state.check_texts(served, body.n)
    tools = await state.calls.off_loop(
        lambda: tools_of(
            served.model.tokenizer,
            body.tools,
            body.tool_choice,
            parallel=body.parallel_tool_calls is not False,
            shape=shape(body),
        ),
        bool(body.tools),
    )
    prompt = MadePrompt(conversation(served, body.messages, tools.offered, state.limits.max_prompt))
    options, copies = copied({**_chat_options(body, served), **tools.shape})
    if state.limits.reasoning_budget is not None:
        options.setdefault("reasoning_budget", state.limits.reasoning_budget)
    job = await state.generate(request, served, prompt, options)
    state.journal.content(request, asked=body.messages)
    divided = None if body.reasoning_format == "none" else prompt
    first = head("chatcmpl", "chat.completion", served) | {"system_fingerprint": None}
    logprobs = bool(body.logprobs)
    answer = _ChatAnswer(first, body, served, tools, divided, copies=copies, logprobs=logprobs)
    return await answer.send(state, request, [job], stream=body.stream)


async def completions(state: State, request: Request, body: CompletionRequest) -> Response:
    served = state.models.of_kind(body.model, NOT_GENERATING)
    state.check_texts(served, body.n)
    state.check_texts(served, body.best_of, "best_of")
    for name, harmless in (("echo", False), ("suffix", ""), ("best_of", body.n or 1)):
        if getattr(body, name) not in (None, harmless):
            raise ApiError(400, f"{name} is not supported", param=name)
    state.journal.content(request, asked=body.prompt)
    prompts = each(body.prompt, "prompt")
    options, copies = copied(keywords(body, served, body.max_tokens) | shape(body))
    if body.logprobs is not None:
        options |= {"logprobs": True, "top_logprobs": body.logprobs}
    check_room(served.engine, len(prompts))
    if body.stream and len(prompts) > 1:
        raise ApiError(400, "a stream is of one prompt", param="prompt")
    most, special = state.limits.max_prompt, bool(body.add_special_tokens)
    made = [limited(served, prompt, most, special_tokens=special) for prompt in prompts]
    jobs = await state.generate_each(request, served, made, options)
    first, logprobs = head("cmpl", "text_completion", served), body.logprobs is not None
    answer = _CompletionAnswer(first, body, served, copies=copies, logprobs=logprobs)
    return await answer.send(state, request, jobs, stream=body.stream)


def _chat_options(body: ChatRequest, served: Served) -> dict[str, Any]:
    options = keywords(body, served, body.max_completion_tokens or body.max_tokens)
    if body.logprobs:
        return options | {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    if body.top_logprobs:
        raise ApiError(400, "top_logprobs needs logprobs", param="top_logprobs")
    return options


class _OpenAIAnswer(Answer):
    _chunk_kind: str

    def __init__(
        self,
        first: dict[str, Any],
        body: ChatRequest | CompletionRequest,
        *args: Any,
        **keywords: Any,
    ) -> None:
        super().__init__(*args, **keywords)
        self._head = first
        options = body.stream_options
        self._has_usage = options is not None and bool(options.include_usage)
        self._lengths: dict[int, int] = {}  # characters of each text so far

    @override
    def ended(self, texts: list[TextGeneration], cached: int) -> list[str]:
        if not self._has_usage:
            return [DONE]
        return [self._chunk([], usage([texts], [cached])), DONE]

    def _chunk(self, choices: Sequence[Any], used: Any = None) -> str:
        document = self._head | {"object": self._chunk_kind, "choices": choices}
        return event(document | ({"usage": used} if self._has_usage else {}))


class _ChatAnswer(_OpenAIAnswer):
    _chunk_kind = "chat.completion.chunk"

    @override
    def whole(self, texts: Sequence[list[TextGeneration]], cached: Sequence[int]) -> Any:
        [several] = texts
        choices = [self._choice(index, text) for index, text in enumerate(several)]
        return self._head | {"choices": choices, "usage": usage(texts, cached)}

    @override
    def events(self, delta: TextDelta) -> list[str]:
        part = self.read(delta, delta.index)
        message: dict[str, Any] = {"role": "assistant", "content": ""} if part.is_first else {}
        if part.reasoning:
            message["reasoning_content"] = part.reasoning
        if part.content:
            message["content"] = part.content
        if part.calls:
            message["tool_calls"] = [{"index": call.index, **call.document} for call in part.calls]
        if not message and not part.finish_reason and part.logprobs is None:
            return []
        choice = {"index": delta.index, "delta": message, **_ends(part)}
        return [self._chunk([choice])]

    def _choice(self, index: int, text: TextGeneration) -> dict[str, Any]:
        part = self.read(text, index)
        message: dict[str, Any] = {"role": "assistant", "content": part.content, "refusal": None}
        if part.reasoning:
            message["reasoning_content"] = part.reasoning
        if part.calls:
            calls = [call.document for call in part.calls]
            message |= {"content": part.content or None, "tool_calls": calls}
        return {"index": index, "message": message, **_ends(part)}


def _ends(part: Part) -> dict[str, Any]:
    logprobs = None if part.logprobs is None else {"content": part.logprobs, "refusal": None}
    return {"logprobs": logprobs, "finish_reason": part.finish_reason}


class _CompletionAnswer(_OpenAIAnswer):
    _chunk_kind = "text_completion"

    @override
    def whole(self, texts: Sequence[list[TextGeneration]], cached: Sequence[int]) -> Any:
        every = [text for several in texts for text in several]
        choices = [
            {"index": index, **self._choice(text), "finish_reason": text.finish_reason}
            for index, text in enumerate(every)
        ]
        return self._head | {"choices": choices, "usage": usage(texts, cached)}

    @override
    def events(self, delta: TextDelta) -> list[str]:
        if not (delta.text or delta.finish_reason or self.has_logprobs):
            return []
        before = self._lengths.get(delta.index, 0)
        self._lengths[delta.index] = before + len(delta.text)
        ends = {"index": delta.index, "finish_reason": delta.finish_reason}
        return [self._chunk([self._choice(delta, before) | ends])]

    def _choice(self, text: TextDelta | TextGeneration, before: int = 0) -> dict[str, Any]:
        if not self.has_logprobs:
            return {"text": text.text, "logprobs": None}
        tokenizer = self.served.model.tokenizer
        top = [
            {spelling(tokenizer, token).text: finite(value) for token, value in places}
            for places in text.top_logprobs or ()
        ]
        logprobs = {
            "tokens": [spelling(tokenizer, token).text for token in text.tokens],
            "token_logprobs": [finite(value) for value in text.logprobs or ()],
            "top_logprobs": top or None,
            "text_offset": _offsets(tokenizer, text.tokens, before),
        }
        return {"text": text.text, "logprobs": logprobs}


def _offsets(tokenizer: Any, tokens: Sequence[int], before: int) -> list[int]:
    whole = codecs.getincrementaldecoder("utf-8")(errors="ignore")
    lengths = [len(whole.decode(spelling(tokenizer, token).spelled)) for token in tokens]
    return [*accumulate(lengths[:-1], initial=before)][: len(tokens)]
