"""What endpoints that write texts have in common: prompts, options, log-probabilities.

Knows no endpoint.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kvcast.decoding.texts import TextGeneration
from kvcast.server.errors import ApiError
from kvcast.server.requests import Sampled
from kvcast.server.served import TEXT2TEXT, Served

NOT_WRITING = {"speech": "turns recordings into text: use /v1/audio/transcriptions"}


def keywords(
    body: Sampled, served: Served, most_tokens: int | None, *, temperature: float = 1.0
) -> dict[str, Any]:
    """Return the keywords of `generate`: OpenAI's defaults, where none is given."""
    longest = served.model.generation.limits.sequence
    defaults = {
        "temperature": temperature,
        "seed": secrets.randbelow(2**31),
        "max_new_tokens": longest if most_tokens is None else min(most_tokens, longest),
    }
    return defaults | body.sampling()


def structure(kind: str, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the keywords that hold a text to a format, "text", "json_object" or "json_schema"."""
    if kind == "json_object":
        return {"json_object": True}
    if kind == "text":
        return {}
    if schema is None:
        raise ApiError(400, "the format json_schema needs a schema", param="response_format")
    return {"json_schema": schema}


def source(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return what a text-to-text model answers of a conversation: the last user message."""
    for message in reversed(messages):
        if message.get("role") == "user":
            match message.get("content"):
                case str(text):
                    return text
                case [*parts]:
                    found = [part.get("text") for part in parts if isinstance(part, Mapping)]
                    texts = [text for text in found if isinstance(text, str)]
                    if texts and len(texts) == len(parts):
                        return "\n".join(texts)
            break
    raise ApiError(400, "the last user message has no text", param="messages")


def conversation(
    served: Served,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    most: int | None,
) -> Callable[[], Any]:
    """Return what makes the prompt of a conversation, in a thread of its own.

    Raises ApiError for a model that holds none.
    """
    if served.kind == "completion":
        raise ApiError(400, f"the model {served.name!r} has no chat template: use /v1/completions")
    if served.kind == TEXT2TEXT:
        if tools:
            raise ApiError(400, f"the model {served.name!r} knows no tools", param="tools")
        return limited(served, source(messages), most)
    return lambda: _checked(served.model.chat_tokens(messages, tools=tools or None), most)


def limited(served: Served, prompt: str | Sequence[int], most: int | None) -> Callable[[], Any]:
    """Return what makes a prompt that is continued as it is; raises ApiError if it is too long."""

    def made() -> Any:
        if not isinstance(prompt, str):
            return _checked(prompt, most)
        tokens = served.model.tokenizer.encode(prompt)
        _checked(tokens, most)
        return prompt

    return made


def _checked(tokens: Any, most: int | None) -> Any:
    if most is not None and len(tokens) > most:
        raise ApiError(
            400,
            f"the prompt has {len(tokens)} tokens and this server takes {most}: shorten it",
            code="context_length_exceeded",
        )
    return tokens


def several(found: Any) -> list[TextGeneration]:
    """Return the texts of a result, also if it is one."""
    return found if isinstance(found, list) else [found]


def usage(texts: Sequence[TextGeneration], cached: int) -> dict[str, Any]:
    """Return how many tokens texts of one prompt took."""
    prompt, written = texts[0].prompt_tokens, sum(len(text.tokens) for text in texts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def spelled(tokenizer: Any, token: int) -> bytes:
    """Return the bytes that a token stands for."""
    if tokenizer.decoder is not None:
        found: bytes = tokenizer.decoder.token_bytes(token)
        return found
    text: str = tokenizer.decode([token])
    return text.encode()


def _readable(tokenizer: Any, token: int) -> str:
    """Return a token's text, which must tell tokens of one alternative from each other."""
    said = spelled(tokenizer, token)
    try:
        return said.decode()
    except UnicodeDecodeError:  # part of a character; as OpenAI writes it
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in said)


def logprobs(
    tokenizer: Any,
    tokens: Sequence[int],
    values: Sequence[float],
    tops: Sequence[Sequence[tuple[int, float]]] | None,
) -> list[dict[str, Any]]:
    """Return the log-probabilities of tokens as chat completions have them."""

    def entry(token: int, value: float) -> dict[str, Any]:
        said = spelled(tokenizer, token)
        return {
            "token": _readable(tokenizer, token),
            "logprob": finite(value),
            "bytes": list(said),
        }

    return [
        entry(token, value)
        | {"top_logprobs": [entry(*other) for other in (tops[i] if tops else ())]}
        for i, (token, value) in enumerate(zip(tokens, values, strict=True))
    ]


def finite(value: float) -> float:
    """Return a log-probability that JSON can hold: OpenAI's -9999 for what cannot be."""
    return float(value) if np.isfinite(value) else -9999.0
