"""`POST /v1/text2text` and `/v1/embeddings`: models that read a source whole.

OpenAI has no endpoint for the first; its fields are in the same style. Knows no engine's inside.
"""

import base64
import secrets
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvcast.engine import Job
from kvcast.server.calls import Check, State, check_room
from kvcast.server.errors import ApiError
from kvcast.server.events import DONE, event, streamed
from kvcast.server.requests import EmbeddingsRequest, Text2TextRequest
from kvcast.server.served import CHAT, COMPLETION, TEXT2TEXT
from kvcast.server.writing import NOT_WRITING, PromptLimit, keywords, limited, usage
from kvcast.text.caller import TextDelta
from kvcast.text.generation import EncodedText
from kvcast.text.texts import TextGeneration

_CONTINUES = "continues texts: use /v1/chat/completions or /v1/completions"
_AT_A_TIME = 512
"""About how many tokens are embedded between two steps of the engine."""


async def text2text(state: State, request: Request, body: Text2TextRequest) -> Response:
    """Answer sources."""
    others = NOT_WRITING | {CHAT: _CONTINUES, COMPLETION: _CONTINUES}
    served = state.models.of_kind(body.model, others)
    assert served.kind == TEXT2TEXT
    state.check_texts(served, body.n)
    sources = [body.input] if isinstance(body.input, str) else list(body.input)
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
    most = state.limits.max_prompt

    async def begin(source: str) -> Job[Any, Any]:
        return await state.write(request, served, limited(served, source, most), options)

    answer = _Answer(served.name)
    if body.stream:

        def ended(result: Any, cached: int) -> list[str]:
            return answer.ended(state.wrote(request, result), cached)

        job = await begin(sources[0])
        return await streamed(state.calls, request, job, answer.events, ended)
    jobs = await state.calls.all_begun([partial(begin, source) for source in sources])
    results = await state.calls.results(request, jobs)
    texts = [state.wrote(request, result) for result in results]
    return JSONResponse(answer.whole(texts, [job.cached_tokens for job in jobs]))


class _Answer:
    """The answer to one request."""

    def __init__(self, model: str) -> None:
        self._head = {
            "id": f"t2t-{secrets.token_hex(14)}",
            "object": "text2text",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, texts: Sequence[list[TextGeneration]], cached: Sequence[int]) -> dict[str, Any]:
        """Return the document that has the texts of each source."""
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
        used = [usage(several, hits) for several, hits in zip(texts, cached, strict=True)]
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        return self._head | {
            "choices": [{"index": index, **choice} for index, choice in enumerate(choices)],
            "usage": {name: sum(counts[name] for counts in used) for name in names},
        }

    def events(self, delta: TextDelta) -> list[str]:
        """Return the event of a step's new text, if there is any."""
        if not (delta.text or delta.finish_reason):
            return []
        choice = {
            "index": 0,
            "input_index": 0,
            "text": delta.text,
            "finish_reason": delta.finish_reason,
        }
        return [event(self._head | {"choices": [choice], "usage": None})]

    def ended(self, texts: list[TextGeneration], cached: int) -> list[str]:
        """Return the last events."""
        whole = self.whole([texts], [cached])
        return [event(whole | {"choices": []}), DONE]


async def embeddings(state: State, request: Request, body: EmbeddingsRequest) -> Response:
    """Return the vectors of texts."""
    served = state.models.named(body.model)
    if not served.embeds:
        raise ApiError(400, f"the model {body.model!r} gives no embeddings", param="model")
    if body.dimensions is not None:
        raise ApiError(400, "dimensions is not supported", param="dimensions")
    texts = _inputs(body)
    check_room(served.engine)
    longest = PromptLimit(
        served, served.model.dimensions.max_positions, state.limits.max_prompt, "a text", "input"
    )

    def encoded(check: Check) -> list[Any]:
        for text in texts:  # a bound on characters is enough for what would take long
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


def _inputs(body: EmbeddingsRequest) -> list[Any]:
    given = body.input
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError(400, "there is no input", param="input")
    return [list(given)] if isinstance(given[0], int) else list(given)


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
    """Return a vector as numbers, or as little-endian fp32 in Base64."""
    if encoding == "base64":
        return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
    return [float(value) for value in vector]
