"""Sources sentence by sentence, split with the optional sentencex (300 languages), and joined."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from typing_extensions import override

from kvcast.errors import UsageError
from kvcast.runtimes.base import Int64
from kvcast.speech.languages import CODES_BY_NAME
from kvcast.text.texts import LENGTH, STOP, TextGeneration, TextStream, Timings

_T = TypeVar("_T")
_USUAL = "en"
# Languages that set no space between sentences end them with these.
_UNSPACED = "\u3002\uff01\uff1f"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a source with its tokens, and the space around it."""

    tokens: Int64
    before: str = ""
    after: str = ""


def split(text: str, language: str | None, encode: Callable[[str], Int64]) -> list[Part]:
    """Return sentences, with trailing space; raises UsageError if sentencex is not installed."""
    try:
        from sentencex import segment
    except ImportError:
        raise UsageError(
            "a source is split into sentences with sentencex: pip install 'kvcast[translation]', "
            "or give sentences as sources of their own"
        ) from None
    code = (language or _USUAL).split("_")[0]
    code = CODES_BY_NAME.get(code, code)  # the library knows two letters where there are
    parts: list[Part] = []
    lead = ""
    for sentence in segment(code, text):
        bare = sentence.strip()
        if not bare:
            if parts:
                parts[-1] = replace(parts[-1], after=parts[-1].after + sentence)
            else:
                lead += sentence
            continue
        before, _, after = sentence.partition(bare)
        parts.append(Part(tokens=encode(bare), before=lead + before, after=after))
        lead = ""
    return parts


def joined(parts: Sequence[Part], texts: Sequence[TextGeneration]) -> TextGeneration:
    if len(parts) == 1:
        return texts[0]
    first, last = texts[0], texts[-1]
    tokens = tuple(chain.from_iterable(text.tokens for text in texts))
    seconds = max(text.timings.seconds for text in texts)
    whole = "".join(
        f"{part.before}{text.text}{_after(part, text.text, parts)}"
        for part, text in zip(parts, texts, strict=True)
    )
    return replace(
        first,
        text=whole,
        tokens=tokens,
        logprobs=_all(text.logprobs for text in texts),
        top_logprobs=_all(text.top_logprobs for text in texts),
        finish_reason=LENGTH if any(t.finish_reason == LENGTH for t in texts) else STOP,
        prompt_tokens=sum(text.prompt_tokens for text in texts),
        timings=Timings(
            first_token=first.timings.first_token,
            seconds=seconds,
            per_token=max(0.0, seconds - first.timings.first_token) / max(1, len(tokens) - 1),
            tokens_per_second=len(tokens) / seconds if seconds > 0 else 0.0,
        ),
        score=None if last.score is None else sum(text.score or 0.0 for text in texts),
    )


class JoinedPieces(TextStream):
    """Pieces of the answers to a source's parts, in sequence."""

    def __init__(self, parts: Sequence[Part], begin: Callable[[Int64], TextStream]) -> None:
        self._parts = parts
        self._texts: list[TextGeneration] = []
        self._pieces = self._generated(begin)

    @override
    def __next__(self) -> str:
        return next(self._pieces)

    @override
    def __repr__(self) -> str:
        return f"<JoinedPieces: {len(self._texts)} of {len(self._parts)} parts done>"

    @property
    @override
    def result(self) -> TextGeneration:
        return joined(self._parts, self._texts)

    def _generated(self, begin: Callable[[Int64], TextStream]) -> Iterator[str]:
        for part in self._parts:
            yield from filter(None, [part.before])
            pieces = begin(part.tokens)
            yield from pieces
            self._texts.append(pieces.result)
            yield from filter(None, [_after(part, pieces.result.text, self._parts)])


def _after(part: Part, answer: str, parts: Sequence[Part]) -> str:
    """Return the space after an answer: its source's, or one between sentences."""
    if part.after or part is parts[-1] or answer.endswith(tuple(_UNSPACED)):
        return part.after
    return " "


def _all(values: Iterable[tuple[_T, ...] | None]) -> tuple[_T, ...] | None:
    given = [value for value in values if value is not None]
    return tuple(chain.from_iterable(given)) if given else None
