"""`POST /v1/completions`: prompts that are continued as they are. Knows no engine's inside."""

import codecs
import secrets
import time
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from kvcast.engine import Job
from kvcast.server.calls import State, check_room
from kvcast.server.errors import ApiError
from kvcast.server.events import DONE, event, streamed
from kvcast.server.requests import CompletionRequest
from kvcast.server.served import Served
from kvcast.server.writing import (
    NOT_WRITING,
    copied,
    finite,
    keywords,
    limited,
    readable,
    shape,
    spelled,
    usage,
    values_of,
)
from kvcast.text.caller import TextDelta
from kvcast.text.texts import TextGeneration


async def completions(state: State, request: Request, body: CompletionRequest) -> Response:
    """Continue a prompt, or several."""
    served = state.models.of_kind(body.model, NOT_WRITING)
    state.check_texts(served, body.n)
    state.check_texts(served, body.best_of, "best_of")
    for name, harmless in (("echo", False), ("suffix", ""), ("best_of", body.n or 1)):
        if getattr(body, name) not in (None, harmless):
            raise ApiError(400, f"{name} is not supported", param=name)
    state.journal.content(request, asked=body.prompt)
    prompts = _prompts(body)
    options, copies = copied(keywords(body, served, body.max_tokens) | shape(body))
    if body.logprobs is not None:
        options |= {"logprobs": True, "top_logprobs": body.logprobs}
    check_room(served.engine, len(prompts))
    most = state.limits.max_prompt

    async def begin(prompt: str | Sequence[int]) -> Job[Any, Any]:
        made = limited(served, prompt, most, special_tokens=bool(body.add_special_tokens))
        return await state.write(request, served, made, options)

    answer = _CompletionAnswer(served, body)
    if body.stream:
        if len(prompts) > 1:
            raise ApiError(400, "a stream is of one prompt", param="prompt")
        job = await begin(prompts[0])

        def events(delta: TextDelta) -> list[str]:
            return [text for copy in copies.deltas(delta) for text in answer.events(copy)]

        def ended(result: Any, cached: int) -> list[str]:
            return answer.ended(copies.texts(state.wrote(request, result)), cached)

        return await streamed(state.calls, request, job, events, ended)
    jobs = await state.calls.all_begun([partial(begin, prompt) for prompt in prompts])
    results = await state.calls.results(request, jobs)
    texts = [copies.texts(state.wrote(request, result)) for result in results]
    return await state.calls.answer(
        lambda: answer.whole(texts, [job.cached_tokens for job in jobs]),
        sum(map(values_of, texts)),
    )


def _prompts(body: CompletionRequest) -> list[Any]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ApiError(400, "there is no prompt", param="prompt")
    return [list(prompt)] if isinstance(prompt[0], int) else list(prompt)


class _CompletionAnswer:
    """One answer, which may have several texts."""

    def __init__(self, served: Served, body: CompletionRequest) -> None:
        self._served, self._body = served, body
        self._head = {
            "id": f"cmpl-{secrets.token_hex(14)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": served.name,
        }
        self._lengths: dict[int, int] = {}

    def whole(self, texts: Sequence[list[TextGeneration]], cached: Sequence[int]) -> Any:
        """Return the document that has the texts of each prompt."""
        choices = [
            self._choice(text.text, text.tokens, text.logprobs, text.top_logprobs)
            | {"finish_reason": text.finish_reason}
            for some in texts
            for text in some
        ]
        used = [usage(some, hits) for some, hits in zip(texts, cached, strict=True)]
        total: dict[str, Any] = {
            name: sum(counts[name] for counts in used)
            for name in ("prompt_tokens", "completion_tokens", "total_tokens")
        }
        total["prompt_tokens_details"] = {"cached_tokens": sum(cached)}
        numbered = [{"index": index, **choice} for index, choice in enumerate(choices)]
        return self._head | {"choices": numbered, "usage": total}

    def events(self, delta: TextDelta) -> list[str]:
        """Return the events for a step's delta."""
        if not (delta.text or delta.finish_reason or self._body.logprobs is not None):
            return []
        begun = self._lengths.get(delta.index, 0)
        choice = self._choice(delta.text, delta.tokens, delta.logprobs, delta.top_logprobs, begun)
        self._lengths[delta.index] = begun + len(delta.text)
        choice |= {"index": delta.index, "finish_reason": delta.finish_reason}
        return [self._chunk([choice], None)]

    def ended(self, texts: Sequence[TextGeneration], cached: int) -> list[str]:
        """Return the last events."""
        if not self._includes_usage:
            return [DONE]
        return [self._chunk([], usage(texts, cached)), DONE]

    @property
    def _includes_usage(self) -> bool:
        options = self._body.stream_options
        return options is not None and bool(options.include_usage)

    def _chunk(self, choices: Sequence[Any], used: Any) -> str:
        extra = {"usage": used} if self._includes_usage else {}
        return event(self._head | {"choices": choices} | extra)

    def _choice(
        self, text: str, tokens: Sequence[int], values: Any, tops: Any, begun: int = 0
    ) -> dict[str, Any]:
        if self._body.logprobs is None:
            return {"text": text, "logprobs": None}
        tokenizer = self._served.model.tokenizer
        said = partial(readable, tokenizer)
        top = [{said(t): finite(value) for t, value in places} for places in tops or ()] or None
        logprobs = {
            "tokens": [said(token) for token in tokens],
            "token_logprobs": [finite(value) for value in values or ()],
            "top_logprobs": top,
            "text_offset": _offsets(tokenizer, tokens, begun),
        }
        return {"text": text, "logprobs": logprobs}


def _offsets(tokenizer: Any, tokens: Sequence[int], begun: int) -> list[int]:
    """Return each token's offset in the text, in characters."""
    whole = codecs.getincrementaldecoder("utf-8")(errors="ignore")
    lengths = [len(whole.decode(spelled(tokenizer, token))) for token in tokens]
    return [*accumulate(lengths[:-1], initial=begun)][: len(tokens)]
