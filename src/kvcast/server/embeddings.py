"""`POST /v1/embeddings`, as OpenAI's, and `/v1/rerank`, as Cohere's and Jina's."""

import base64
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from kvcast.engine import Job
from kvcast.server.dispatch import Check, State, check_room
from kvcast.server.errors import ApiError
from kvcast.server.model_registry import EMBEDDING, NOT_RANKING, RERANKING, Served
from kvcast.server.prompts import PromptLimit, each
from kvcast.server.request_models import EmbeddingsRequest, RerankRequest
from kvcast.text.encoders import best_first
from kvcast.text.params import EmbedParams, RerankParams

# About how many tokens are embedded between two steps of the engine: fewer where others generate.
_AT_A_TIME = {EMBEDDING: 2048, RERANKING: 2048}
_BESIDE_TEXTS = 512


async def embeddings(state: State, request: Request, body: EmbeddingsRequest) -> Response:
    served = state.models.named(body.model)
    if not served.embeds:
        raise ApiError(400, f"the model {body.model!r} gives no embeddings", param="model")
    texts, model = each(body.input, "input"), served.model
    params = EmbedParams(
        prompt_name=body.prompt_name, truncate=bool(body.truncate), dimensions=body.dimensions
    )
    check_room(served.engine)
    state.journal.content(request, asked=body.input)
    longest = PromptLimit(served, model.longest_text, state.limits.max_prompt, "a text", "input")
    if served.kind != EMBEDDING and not params.truncate:
        for text in texts:  # a bound on characters refuses long ones early
            if isinstance(text, str):
                longest.check_texts([text])
            else:
                longest.check(len(text))

    def source(text: Any) -> Any:
        encoded = model.source(text, params)
        longest.check(len(encoded))
        return encoded

    sources = await state.calls.prepare(request, partial(_encoded, source, texts))
    vectors, tokens = await _computed(
        state, request, served, partial(model.embed, dimensions=body.dimensions), sources
    )

    def whole() -> dict[str, Any]:
        return {
            "object": "list",
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": _coded(vector, body.encoding_format),
                }
                for index, vector in enumerate(vectors)
            ],
            "model": served.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    return await state.calls.answer(whole, sum(map(len, vectors)))


async def rerank(state: State, request: Request, body: RerankRequest) -> Response:
    served = state.models.of_kind(body.model, NOT_RANKING)
    model, documents = served.model, [_text(document) for document in body.documents]
    params = RerankParams(top_n=body.top_n, truncate=bool(body.truncate))
    check_room(served.engine)
    state.journal.content(request, asked=[body.query, *documents])
    longest = PromptLimit(
        served,
        model.longest_text,
        state.limits.max_prompt,
        "the query with a document",
        "documents",
    )

    def source(document: str) -> Any:
        encoded = model.pair(body.query, document, params)
        longest.check(len(encoded))
        return encoded

    sources = await state.calls.prepare(request, partial(_encoded, source, documents))
    scores, tokens = await _computed(state, request, served, model.scores, sources)
    results = list(map(vars, best_first(np.array(scores, np.float32), params.top_n)))
    if body.return_documents:
        results = [one | {"document": {"text": documents[one["index"]]}} for one in results]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    answer = {"model": served.name, "results": results, "usage": usage}
    return await state.calls.answer(lambda: answer, len(results))


def _text(document: Any) -> str:
    if isinstance(document, str):
        return document
    if isinstance(text := document.get("text"), str):
        return text
    raise ApiError(400, "a document must be a text, or an object with a text", param="documents")


def _encoded(source: Callable[[Any], Any], texts: Sequence[Any], check: Check) -> list[Any]:
    sources = []
    for text in texts:
        check()
        sources.append(source(text))
    return sources


async def _computed(
    state: State,
    request: Request,
    served: Served,
    compute: Callable[[Sequence[Any]], Sequence[Any]],
    sources: Sequence[Any],
) -> tuple[list[Any], int]:
    """Return the result of each source, in order, and the number of their tokens."""
    began, lengths = time.monotonic(), list(map(len, sources))
    results: list[Any] = [None] * len(sources)
    for turn in _in_turns(lengths, _AT_A_TIME.get(served.kind, _BESIDE_TEXTS)):
        job: Job[Any, Any] = served.engine.run(
            partial(compute, [sources[i] for i in turn]),
            deadline=state.calls.left(request),
            prompt_tokens=sum(lengths[i] for i in turn),
        )
        for i, result in zip(turn, await state.calls.result(request, job), strict=True):
            results[i] = result
    state.metrics.took(served.name, time.monotonic() - began)
    state.journal.prompts(request, sum(lengths))
    return results, sum(lengths)


def _in_turns(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield indices of texts to compute at once, longest first: one, or several short ones."""
    turn: list[int] = []
    taken = 0
    for i in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if turn and taken + lengths[i] > most:
            yield turn
            turn, taken = [], 0
        turn.append(i)
        taken += lengths[i]
    yield turn


def _coded(vector: Any, encoding: str | None) -> str | list[float]:
    if encoding == "base64":
        return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
    return [float(value) for value in vector]
