"""Shared by endpoints that write texts: prompts, options, log-probabilities.

Knows no endpoint.
"""

import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from kvcast.server.errors import ApiError
from kvcast.server.requests import Sampled, Shaped
from kvcast.server.served import COMPLETION, SPEECH, TEXT2TEXT, Served
from kvcast.text.caller import TextDelta
from kvcast.text.texts import TextGeneration

NOT_WRITING = {SPEECH: "turns recordings into text: use /v1/audio/transcriptions"}


def keywords(
    body: Sampled,
    served: Served,
    most_tokens: int | None,
    *,
    temperature: float = 1.0,
    **searched: Any,
) -> dict[str, Any]:
    """Return the keywords of `generate`: where none is given, the model's values or OpenAI's.

    `searched` are further ones, of which None was not given.
    """
    longest = served.model.generation.limits.sequence
    defaults = {
        "temperature": temperature,
        "seed": secrets.randbelow(2**31),
        "max_new_tokens": longest,
    }
    given = body.sampling() | {name: value for name, value in searched.items() if value is not None}
    if most_tokens is not None:
        given["max_new_tokens"] = min(most_tokens, longest)
    recommended: dict[str, Any] = served.model.defaults.taken(given)
    return defaults | recommended | given


@dataclass(frozen=True)
class Copies:
    """Texts at temperature 0 are equal: one is written and copied."""

    count: int = 1

    def texts(self, texts: list[TextGeneration]) -> list[TextGeneration]:
        """Return each written text as often as requested."""
        return texts * self.count

    def deltas(self, delta: TextDelta) -> list[TextDelta]:
        """Return a delta of each text, of one that was written."""
        if self.count == 1:
            return [delta]
        return [replace(delta, index=index) for index in range(self.count)]


def copied(options: dict[str, Any]) -> tuple[dict[str, Any], Copies]:
    """Return the keywords of `generate` that write different texts, and how often to tell them."""
    if options["temperature"] > 0:
        return options, Copies()
    return options | {"n": 1}, Copies(options.get("n", 1))


def shape(body: Shaped) -> dict[str, Any]:
    """Return the keywords that hold a text to the format of the request."""
    shaped: dict[str, Any] = {} if body.regex is None else {"regex": body.regex}
    if (form := body.response_format) is not None:
        schema = None if form.json_schema is None else form.json_schema.schema_
        shaped |= structure(form.type, schema, param="response_format")
    return shaped


def structure(kind: str, schema: Mapping[str, Any] | None, *, param: str) -> dict[str, Any]:
    """Return the keywords that hold a text to a format, "text", "json_object" or "json_schema".

    Raises ApiError, of the request's field `param`, if there is no schema where one is needed.
    """
    if kind == "json_object":
        return {"json_object": True}
    if kind == "text":
        return {}
    if schema is None:
        raise ApiError(400, "the format json_schema needs a schema", param=param)
    return {"json_schema": schema}


def source(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the source for a text-to-text model from a conversation: the last user message."""
    for message in reversed(messages):
        if message.get("role") == "user":
            match message.get("content"):
                case str(text):
                    return text
                case [*parts]:
                    contents = [part.get("text") for part in parts if isinstance(part, Mapping)]
                    texts = [text for text in contents if isinstance(text, str)]
                    if texts and len(texts) == len(parts):
                        return "\n".join(texts)
            break
    raise ApiError(400, "the last user message has no text", param="messages")


def check_converses(served: Served, tools: Sequence[Mapping[str, Any]] | None, choice: Any) -> None:
    """Raise ApiError for a model that holds no conversation, or not with tools."""
    if served.kind == COMPLETION:
        raise ApiError(400, f"the model {served.name!r} has no chat template: use /v1/completions")
    if served.kind == TEXT2TEXT and tools and choice != "none":
        raise ApiError(400, f"the model {served.name!r} knows no tools", param="tools")


def conversation(
    served: Served,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    most: int | None,
) -> Callable[[], Any]:
    """Return the function that makes the prompt of a conversation, in a thread of its own."""
    if served.kind == TEXT2TEXT:
        return limited(served, source(messages), most)
    longest = PromptLimit(served, served.longest_prompt, most)

    def made() -> Any:
        longest.check_texts(list(_contents(messages)))
        tokens = served.model.chat_tokens(messages, tools=tools or None)
        longest.check(len(tokens))
        return tokens

    return made


def limited(
    served: Served,
    prompt: str | Sequence[int],
    most: int | None,
    *,
    special_tokens: bool = False,
) -> Callable[[], Any]:
    """Return the maker of a prompt that is continued as it is; ApiError if it is too long."""
    longest = PromptLimit(served, served.longest_prompt, most)

    def made() -> Any:
        if not isinstance(prompt, str):
            longest.check(len(prompt))
            return prompt
        longest.check_texts([prompt])
        encoded = served.model.encoded(prompt, special_tokens=special_tokens)
        longest.check(len(encoded.tokens))
        return encoded

    return made


@dataclass(frozen=True)
class PromptLimit:
    """How long a prompt may be.

    Attributes:
        served: the model.
        longest: as many tokens as it takes.
        most: as many as this server takes; None for no other limit.
        label: names the prompt in errors.
        param: the field that has it.

    """

    served: Served
    longest: int
    most: int | None
    label: str = "the prompt"
    param: str | None = None

    def check(self, tokens: int) -> None:
        """Raise ApiError for a prompt of more tokens."""
        limit, whose = self._limit
        if tokens > limit:
            raise self._error(f"has {tokens} tokens and {whose} takes {limit} at most")

    def check_texts(self, texts: Sequence[str]) -> None:
        """Raise ApiError for texts that must have more tokens, before they are made."""
        limit, whose = self._limit
        if sum(map(len, texts)) <= limit:  # the longest token need not be known
            return
        most = limit * self.served.longest_token
        lengths = map(len, texts)
        if self.served.kind == TEXT2TEXT:  # some of these collapse white space
            lengths = map(_without_spaces, texts)
        if sum(lengths) > most:
            raise self._error(f"has more than the {limit} tokens that {whose} takes")

    @property
    def _limit(self) -> tuple[int, str]:
        if self.most is not None and self.most < self.longest:
            return self.most, "this server"
        return self.longest, "the model"

    def _error(self, problem: str) -> ApiError:
        return ApiError(
            400,
            f"{self.label} {problem}: shorten it",
            code="context_length_exceeded",
            param=self.param,
        )


def _without_spaces(text: str) -> int:
    """Return the length of a text without white space; fast for one of megabytes."""
    return len(text) - sum(map(text.count, _SPACES))


_SPACES = "".join(char for char in map(chr, range(0x3001)) if char.isspace())


def _contents(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the texts that messages consist of, as far as they are well-formed."""
    for message in messages:
        match message.get("content"):
            case str(text):
                yield text
            case [*parts]:
                contents = (part.get("text") for part in parts if isinstance(part, Mapping))
                yield from (text for text in contents if isinstance(text, str))


def several(result: Any) -> list[TextGeneration]:
    """Return the texts of a result, also if it is one."""
    return result if isinstance(result, list) else [result]


def usage(texts: Sequence[TextGeneration], cached: int) -> dict[str, Any]:
    """Return how many tokens texts of one prompt took."""
    prompt, written = texts[0].prompt_tokens, sum(len(text.tokens) for text in texts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class _Spelling(NamedTuple):
    """What a token stands for.

    `numbers` is a tuple, as garbage collections pass over what consists of no other containers.
    """

    said: bytes
    text: str
    numbers: tuple[int, ...]


_SPELLED: "WeakKeyDictionary[Any, dict[int, _Spelling]]" = WeakKeyDictionary()


def _spelling(tokenizer: Any, token: int) -> _Spelling:
    """Return what a token stands for, which is found once."""
    known = _SPELLED.setdefault(tokenizer, {})
    if token not in known:
        if tokenizer.decoder is not None:
            said: bytes = tokenizer.decoder.token_bytes(token)
        else:
            said = tokenizer.decode([token]).encode()
        try:
            text = said.decode()
        except UnicodeDecodeError:  # part of a character; as OpenAI writes it
            text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in said)
        known[token] = _Spelling(said, text, tuple(said))
    return known[token]


def spelled(tokenizer: Any, token: int) -> bytes:
    """Return the bytes that a token stands for."""
    return _spelling(tokenizer, token).said


def readable(tokenizer: Any, token: int) -> str:
    """Return a token's text, which must differ between the alternatives of one place."""
    return _spelling(tokenizer, token).text


def values_of(texts: Sequence[TextGeneration]) -> int:
    """Return about how many values an answer has for these texts."""
    return sum(
        len(text.tokens) * (1 + (len(text.top_logprobs[0]) if text.top_logprobs else 0))
        for text in texts
    )


def logprobs(
    tokenizer: Any,
    tokens: Sequence[int],
    values: Sequence[float],
    tops: Sequence[Sequence[tuple[int, float]]] | None,
) -> list[dict[str, Any]]:
    """Return the log-probabilities of tokens as chat completions have them."""

    def entry(token: int, value: float) -> dict[str, Any]:
        spelling = _spelling(tokenizer, token)
        return {"token": spelling.text, "logprob": finite(value), "bytes": spelling.numbers}

    return [
        entry(token, value)
        | {"top_logprobs": [entry(*other) for other in (tops[i] if tops else ())]}
        for i, (token, value) in enumerate(zip(tokens, values, strict=True))
    ]


def finite(value: float) -> float:
    """Return a log-probability that JSON can hold: OpenAI's -9999 for minus infinity."""
    return float(value) if math.isfinite(value) else -9999.0
