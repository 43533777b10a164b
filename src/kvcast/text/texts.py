"""Running texts: detokenization, stop sequences, stopping criteria, timings and the result."""

import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kvcast.decoding.params import SamplingParams
from kvcast.decoding.speculative_decoding import DraftCounts
from kvcast.engine.in_threads import each_in_thread
from kvcast.errors import UsageError
from kvcast.runtimes.base import Int64
from kvcast.tokenizers.base import TextTokenizer


@dataclass(frozen=True)
class StopStrings:
    """Strings that end a text and are not part of it."""

    strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if "" in self.strings:
            raise UsageError("a stop string is empty: give at least one character, or leave it out")

    def matcher(self) -> "StopMatcher":
        return StopMatcher(self.strings)


class StopMatcher:
    """Looks for stop strings in one text, however it is split into pieces.

    The text ends before the stop string that is complete first, of several before the longest.
    """

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._strings = strings
        self._longest = max(map(len, strings), default=0)
        self._held = ""
        self._stopped = False

    def push(self, piece: str) -> tuple[str, bool]:
        """Return the text that is no start of a stop string, and whether the text ends."""
        if self._stopped:
            return "", True
        text = self._held + piece
        ends = [(start + len(s), start) for s in self._strings if (start := text.find(s)) >= 0]
        if ends:
            self._stopped = True
            self._held = ""
            _, start = min(ends)
            return text[:start], True
        certain = self._certain(text)
        self._held = text[certain:]
        return text[:certain], False

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held

    def _certain(self, text: str) -> int:
        first = max(0, len(text) - self._longest + 1)
        for start in range(first, len(text)):
            if any(string.startswith(text[start:]) for string in self._strings):
                return start
        return len(text)


STOP = "stop"
LENGTH = "length"

Alternatives: TypeAlias = tuple[tuple[int, float], ...]
"""The likeliest tokens at one place, best first, each with its log-probability."""


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Latency of a text, in seconds from the call, and its throughput."""

    first_token: float  # with beams: the first of each beam
    seconds: float
    per_token: float  # mean of the tokens after the first; 0 where there are none
    tokens_per_second: float  # counts the end token


class Stopwatch:
    def __init__(self, began: float | None = None) -> None:
        self._began = time.perf_counter() if began is None else began
        self._first = self._last = self._began
        self._ticks = 0

    def tick(self) -> None:
        self._last = time.perf_counter()
        if not self._ticks:
            self._first = self._last
        self._ticks += 1

    def another(self) -> "Stopwatch":
        return Stopwatch(self._began)

    def timings(self) -> Timings:
        seconds = self._last - self._began
        return Timings(
            first_token=self._first - self._began,
            seconds=seconds,
            per_token=(self._last - self._first) / max(1, self._ticks - 1),
            tokens_per_second=self._ticks / seconds if seconds > 0 else 0.0,
        )


@dataclass(frozen=True, kw_only=True)
class TextGeneration:
    """A text that was generated.

    Attributes:
        text: without the stop string that ended it.
        tokens: without the end token, but with the tokens of a stop string.
        logprobs: natural logarithm of the probability that the model gave each token, before
            penalty, temperature and truncation; None unless requested.
        top_logprobs: for each token, the likeliest tokens in its place, best first, with
            log-probabilities as above; None unless requested.
        finish_reason: "stop" (an end token or a stop string came, or a grammar was complete) or
            "length".
        prompt_tokens: number of tokens of the prompt or source, with a session's prefix.
        timings: how long it took.
        score: with beams, their ranking: the sum of the log-probabilities that the search used,
            over length ** length_penalty.
        similarity: of a UniLM's several texts, the cosine between the embeddings of source and
            text.
        draft: counts of drafted tokens; None without drafts.
        generation_config: options whose values came from the model's generation_config.json.

    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish_reason: str
    prompt_tokens: int
    timings: Timings
    top_logprobs: tuple[Alternatives, ...] | None = None
    score: float | None = None
    similarity: float | None = None
    draft: DraftCounts | None = None
    generation_config: Mapping[str, Any] = field(default_factory=dict)


class TextStream(Iterator[str]):
    """Pieces of one text, generated while they are taken: once, in a loop or an `async for`."""

    @property
    @abstractmethod
    def result(self) -> TextGeneration:
        """The whole text, once its last piece is taken."""

    def __aiter__(self) -> AsyncIterator[str]:
        """Yield the pieces, each generated in a thread."""
        return each_in_thread(self)


@dataclass(frozen=True, kw_only=True)
class StoppingCriteria:
    end_tokens: tuple[int, ...]  # not part of the text
    stops: StopStrings  # not part of the text
    max_new_tokens: int
    # before it no end token is chosen; a stop string may still end the text
    min_new_tokens: int = 0
    suppressed: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, params: SamplingParams, end_tokens: tuple[int, ...], room: int
    ) -> "StoppingCriteria":
        return cls(
            end_tokens=end_tokens,
            stops=StopStrings(params.stops),
            max_new_tokens=min(params.max_new_tokens, room),
            min_new_tokens=min(params.min_new_tokens, room),
            suppressed=tuple(params.suppress_tokens),
        )

    def withheld(self, generated: int) -> tuple[int, ...]:
        early = self.end_tokens if generated < self.min_new_tokens else ()
        return (*early, *(token for token in self.suppressed if token not in early))

    def are_met(
        self,
        generated_rn: Int64,
        parents: Sequence[int],
        tokens: Sequence[int],
        tokenizer: TextTokenizer,
    ) -> list[bool]:
        if generated_rn.shape[1] + 1 == self.max_new_tokens:
            return [True] * len(tokens)
        ended = [token in self.end_tokens for token in tokens]
        if self.stops.strings:
            for i, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
                text = tokenizer.decode([*generated_rn[parent].tolist(), token])
                ended[i] |= any(stop in text for stop in self.stops.strings)
        return ended


class GeneratedText:
    def __init__(self, criteria: StoppingCriteria, tokenizer: TextTokenizer, after: int) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[Alternatives] = []
        self.pieces: list[str] = []
        self.finish_reason: str | None = None
        self._criteria = criteria
        self._stream = tokenizer.stream()
        # Only a text's first word loses its space in some vocabularies, and this one has begun.
        self._stream.push(after)
        self._stops = criteria.stops.matcher()

    def push(
        self,
        token: int,
        logprob: float | None = None,
        top: Alternatives = (),
        ending: str | None = None,
    ) -> None:
        """Append a token, unless it is an end token; `ending` is the reason if it is the last."""
        if token in self._criteria.end_tokens:
            self._finish(STOP)
            return
        self.tokens.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)
        if top:
            self.top_logprobs.append(top)
        if self._says(self._stream.push(token)):
            self.finish_reason = STOP
        elif ending is not None:
            self._finish(ending)
        elif len(self.tokens) == self._criteria.max_new_tokens:
            self._finish(LENGTH)

    def cut(self) -> None:
        self._finish(LENGTH)

    def _finish(self, reason: str) -> None:
        if self._says(self._stream.finish()):
            self.finish_reason = STOP
            return
        self.finish_reason = reason
        self.pieces.append(self._stops.finish())

    def _says(self, piece: str) -> bool:
        certain, stopped = self._stops.push(piece)
        self.pieces.append(certain)
        return stopped
