"""The documents and the line of times that `kvcast generate` prints of its texts.

docs/generation.schema.json describes the documents. Knows no arguments and no models.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvcast.cli.prompts import PromptLine
from kvcast.transcripts.writers import draft_fields, json_number

if TYPE_CHECKING:
    from kvcast.text.texts import TextGeneration

JSON_FORMAT = "kvcast.generation"
JSON_VERSION = 5


def document(
    prompt: PromptLine,
    texts: "Sequence[TextGeneration]",
    *,
    model: str,
    runtime: str,
    conversation: Mapping[str, Any],
    logprobs: bool,
) -> dict[str, Any]:
    """Return the document of a prompt.

    Args:
        prompt: as it was given.
        texts: one or more.
        model: as it was named.
        runtime: what ran it.
        conversation: whether it was a chat, with which system text.
        logprobs: whether the document has log-probabilities.

    """
    first, *others = [_fields(text, logprobs=logprobs) for text in texts]
    return {
        "format": JSON_FORMAT,
        "version": JSON_VERSION,
        "id": prompt.id,
        "model": model,
        "runtime": runtime,
        "prompt": prompt.text,
        **conversation,
        "prompt_tokens": texts[0].prompt_tokens,
        "generation_config": dict(texts[0].generation_config),
        **first,
        "alternatives": others,
    }


def _fields(text: "TextGeneration", *, logprobs: bool) -> dict[str, Any]:
    timings = text.timings
    return {
        "text": text.text,
        "tokens": [int(token) for token in text.tokens],
        "logprobs": [json_number(value) for value in text.logprobs or ()] if logprobs else None,
        "top_logprobs": _alternatives(text),
        "finish_reason": text.finish_reason,
        "score": None if text.score is None else json_number(text.score),
        "similarity": None if text.similarity is None else json_number(text.similarity),
        "draft": draft_fields(text.draft),
        "timings": {
            "first_token": json_number(timings.first_token),
            "seconds": json_number(timings.seconds),
            "per_token": json_number(timings.per_token),
            "tokens_per_second": json_number(timings.tokens_per_second),
        },
    }


def _alternatives(text: "TextGeneration") -> list[list[dict[str, Any]]] | None:
    if text.top_logprobs is None:
        return None
    return [
        [{"token": token, "logprob": json_number(logprob)} for token, logprob in top]
        for top in text.top_logprobs
    ]


def speed(texts: "Sequence[TextGeneration]") -> str:
    """Tell the first token's time, the mean time of later ones, and the rate of all together."""
    timings = [text.timings for text in texts]
    later = [timing.per_token for timing in timings if timing.per_token > 0]
    per_token = sum(later) / max(1, len(later))
    seconds = max(timing.seconds for timing in timings)
    written = sum(timing.tokens_per_second * timing.seconds for timing in timings)
    tokens = sum(len(text.tokens) for text in texts)
    several = f" in {len(texts)} texts" if len(texts) > 1 else ""
    drafts = [text.draft for text in texts if text.draft is not None]
    checked = f", {drafts[0].total(drafts)}" if drafts else ""
    return (
        f"{tokens} {'token' if tokens == 1 else 'tokens'}{several}: "
        f"first token after {min(timing.first_token for timing in timings):.3f} s, "
        f"{1000 * per_token:.1f} ms per token, "
        f"{written / seconds if seconds > 0 else 0.0:.1f} tokens/s{checked}"
    )
