"""`POST /v1/text2text` and `/v1/embeddings`: models that read a source whole."""

import base64
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from kvcast.server.dispatch import Check, State, check_room
from kvcast.server.errors import ApiError
from kvcast.server.model_registry import CHAT, COMPLETION, TEXT2TEXT, Served
from kvcast.server.prompts import NOT_GENERATING, PromptLimit, each, keywords, limited
from kvcast.server.request_models import EmbeddingsRequest, Text2TextRequest
from kvcast.server.text_responses import DONE, Answer, event, head, usage
from kvcast.text.generation import EncodedText
from kvcast.text.requests import TextDelta
from kvcast.text.texts import TextGeneration

_CONTINUES = "continues texts: use /v1/chat/completions or /v1/completions"
_AT_A_TIME = 512  # about how many tokens are embedded between two steps of the engine


async def text2text(state: State, request: Request, body: Text2TextRequest) -> Response:
    others = NOT_GENERATING | {CHAT: _CONTINUES, COMPLETION: _CONTINUES}
    served = state.models.of_kind(body.model, others)
    assert served.kind == TEXT2TEXT
    state.check_texts(served, body.n)
    sources = each(body.input, "input")
    if body.stream and (len(sources) > 1 or (body.n or 1) > 1):
        raise ApiError(400, "a stream is of one source and one text", param="stream")
    options = keywords(
        body,
        served,
        body.max_tokens,
        temperature=0.0,
        beam=body.beam,
        length_penalty=body.length_penalty,
        source_language=body.source_language,
        target_language=body.target_language,
        sentences=body.sentences,
    )
    state.journal.content(request, asked=body.input)
    check_room(served.engine, len(sources))
    made = [limited(served, source, state.limits.max_prompt) for source in sources]
    jobs = await state.generate_each(request, served, made, options)
    return await _SourceAnswer(served).send(state, request, jobs, stream=body.stream)


class _SourceAnswer(Answer):
    def __init__(self, served: Served) -> None:
        super().__init__(served)
        self._head = head("t2t", "text2text", served)

    @override
    def whole(self, texts: Sequence[list[TextGeneration]], cached: Sequence[int]) -> Any:
        choices = [
            {
                "input_index": source,
                "text": text.text,
                "score": text.score,
                "similarity": text.similarity,
                "finish_reason": text.finish_reason,
            }
            for source, several in enumerate(texts)
            for text in several
        ]
        used = usage(texts, cached)
        del used["prompt_tokens_details"]
        return self._head | {
            "choices": [{"index": index, **choice} for index, choice in enumerate(choices)],
            "usage": used,
        }

    @override
    def events(self, delta: TextDelta) -> list[str]:
        if not (delta.text or delta.finish_reason):
            return []
        choice = {
            "index": 0,
            "input_index": 0,
            "text": delta.text,
            "finish_reason": delta.finish_reason,
        }
        return [event(self._head | {"choices": [choice], "usage": None})]

    @override
    def ended(self, texts: list[TextGeneration], cached: int) -> list[str]:
        return [event(self.whole([texts], [cached]) | {"choices": []}), DONE]


async def embeddings(state: State, request: Request, body: EmbeddingsRequest) -> Response:
    served = state.models.named(body.model)
    if not served.embeds:
        raise ApiError(400, f"the model {body.model!r} gives no embeddings", param="model")
    if body.dimensions is not None:
        raise ApiError(400, "dimensions is not supported", param="dimensions")
    texts = each(body.input, "input")
    check_room(served.engine)
    longest = PromptLimit(
        served, served.model.dimensions.max_positions, state.limits.max_prompt, "a text", "input"
    )

    def encoded(check: Check) -> list[Any]:
        for text in texts:  # a bound on characters refuses long ones early
            if isinstance(text, str):
                longest.check_texts([text])
        prompts: list[Any] = []
        for text in texts:
            check()
            prompts.append(served.model.encoded(text) if isinstance(text, str) else text)
            longest.check(_length(prompts[-1]))
        return prompts

    prompts = await state.calls.prepare(request, encoded)
    lengths = [_length(prompt) for prompt in prompts]
    tokens = sum(lengths)
    vectors: list[Any] = []
    for some in _in_turns(prompts, lengths):
        embed = partial(served.model.embed, some)
        job = served.engine.run(embed, deadline=state.calls.left(request))
        vectors += list(await state.calls.result(request, job))

    def whole() -> dict[str, Any]:
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _coded(vector, body.encoding_format),
            }
            for index, vector in enumerate(vectors)
        ]
        return {
            "object": "list",
            "data": data,
            "model": served.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    return await state.calls.answer(whole, sum(map(len, vectors)))


def _in_turns(prompts: Sequence[Any], lengths: Sequence[int]) -> Iterator[list[Any]]:
    """Yield texts that are embedded at once: one, or several short ones."""
    some: list[Any] = []
    taken = 0
    for prompt, length in zip(prompts, lengths, strict=True):
        if some and taken + length > _AT_A_TIME:
            yield some
            some, taken = [], 0
        some.append(prompt)
        taken += length
    yield some


def _length(prompt: Any) -> int:
    return len(prompt.tokens if isinstance(prompt, EncodedText) else prompt)


def _coded(vector: Any, encoding: str | None) -> str | list[float]:
    if encoding == "base64":
        return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
    return [float(value) for value in vector]
