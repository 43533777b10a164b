"""`POST /v1/chat/completions`: a conversation in, a message out, at once or as it is written.

Knows no engine's inside and no model.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from kvcast.server.calls import State
from kvcast.server.errors import ApiError
from kvcast.server.events import DONE, event, streamed
from kvcast.server.reading import AnswerReader, MadePrompt
from kvcast.server.requests import ChatRequest
from kvcast.server.served import Served
from kvcast.server.tools import CalledTool, Tools, tools_of
from kvcast.server.writing import (
    NOT_WRITING,
    check_converses,
    conversation,
    copied,
    keywords,
    logprobs,
    shape,
    usage,
    values_of,
)
from kvcast.text.caller import TextDelta
from kvcast.text.texts import TextGeneration


async def chat_completions(state: State, request: Request, body: ChatRequest) -> Response:
    """Answer a conversation."""
    served = state.models.of_kind(body.model, NOT_WRITING)
    check_converses(served, body.tools, body.tool_choice)
    state.check_texts(served, body.n)
    tools = await state.calls.beside(
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
    options, copies = copied(_options(body, served, tools))
    if state.limits.reasoning_budget is not None:
        options.setdefault("reasoning_budget", state.limits.reasoning_budget)
    job = await state.write(request, served, prompt, options)
    state.journal.content(request, asked=body.messages)
    splits = body.reasoning_format != "none"
    reader = partial(AnswerReader, served, tools, prompt, splits=splits)
    answer = _ChatAnswer(served, body, reader)
    if body.stream:

        def events(delta: TextDelta) -> list[str]:
            return [text for copy in copies.deltas(delta) for text in answer.events(copy)]

        def ended(result: Any, cached: int) -> list[str]:
            return answer.ended(copies.texts(state.wrote(request, result)), cached)

        return await streamed(state.calls, request, job, events, ended)
    texts = copies.texts(state.wrote(request, await state.calls.result(request, job)))
    return await state.calls.answer(
        lambda: answer.whole(texts, job.cached_tokens), values_of(texts)
    )


def _options(body: ChatRequest, served: Served, tools: Tools) -> dict[str, Any]:
    most = body.max_completion_tokens or body.max_tokens
    options = keywords(body, served, most)
    if body.logprobs:
        options |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    elif body.top_logprobs:
        raise ApiError(400, "top_logprobs needs logprobs", param="top_logprobs")
    return {**options, **tools.shape}


@dataclass
class _ChatAnswer:
    """One answer, which may have several texts."""

    served: Served
    body: ChatRequest
    reader: Callable[[], AnswerReader]
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(14)}")
    created: int = field(default_factory=lambda: int(time.time()))
    readers: dict[int, AnswerReader] = field(default_factory=dict)

    def whole(self, texts: Sequence[TextGeneration], cached: int) -> dict[str, Any]:
        """Return the document that has all texts."""
        choices = [self._choice(index, text) for index, text in enumerate(texts)]
        return self._head("chat.completion") | {
            "choices": choices,
            "usage": usage(texts, cached),
        }

    def events(self, delta: TextDelta) -> list[str]:
        """Return the events for a step's delta."""
        reader = self.readers.get(delta.index)
        begun = reader is not None
        reader = self.readers.setdefault(delta.index, reader or self.reader())
        thought, content, calls = reader.push(delta.text, last=delta.finish_reason is not None)
        message: dict[str, Any] = {} if begun else {"role": "assistant", "content": ""}
        if thought:
            message["reasoning_content"] = thought
        if content:
            message["content"] = content
        if calls:
            message["tool_calls"] = [{"index": call.index, **call.document} for call in calls]
        reason = delta.finish_reason
        logprobs = self._logprobs(delta.tokens, delta.logprobs or (), delta.top_logprobs)
        if not message and not reason and not logprobs:
            return []
        choice = {
            "index": delta.index,
            "delta": message,
            "logprobs": logprobs,
            "finish_reason": _reason(reason, reader.calls),
        }
        return [self._chunk([choice])]

    def ended(self, texts: Sequence[TextGeneration], cached: int) -> list[str]:
        """Return the last events."""
        options = self.body.stream_options
        if options is None or not options.include_usage:
            return [DONE]
        return [self._chunk([], usage(texts, cached)), DONE]

    def _chunk(self, choices: Sequence[Any], used: Mapping[str, Any] | None = None) -> str:
        document = self._head("chat.completion.chunk") | {"choices": choices}
        options = self.body.stream_options
        if options is not None and options.include_usage:
            document["usage"] = used
        return event(document)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.served.name,
            "system_fingerprint": None,
        }

    def _choice(self, index: int, text: TextGeneration) -> dict[str, Any]:
        thought, content, calls = self.reader().push(text.text, last=True)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message |= {
                "content": content or None,
                "tool_calls": [call.document for call in calls],
            }
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(text.tokens, text.logprobs or (), text.top_logprobs),
            "finish_reason": _reason(text.finish_reason, calls),
        }

    def _logprobs(
        self, tokens: Sequence[int], values: Sequence[float], tops: Any
    ) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        tokenizer = self.served.model.tokenizer
        return {"content": logprobs(tokenizer, tokens, values, tops), "refusal": None}


def _reason(reason: str | None, calls: Sequence[CalledTool]) -> str | None:
    return "tool_calls" if reason == "stop" and calls else reason
