"""A draft: one text under way, from its prompt's tokens to the reason why it ended.

Keeps what was sampled, turns it into text as soon as that is certain, and knows when it is over.
Knows nothing of models, caches, or of the other drafts that are written at the same time.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvcast.decoding.sampling import Sampler
from kvcast.errors import UsageError
from kvcast.runtimes.base import Float32, Int64
from kvcast.text.base import TextTokenizer
from kvcast.text.stops import StopStrings

STOP = "stop"
LENGTH = "length"


@dataclass(frozen=True, kw_only=True)
class Timings:
    """How long a text took, in seconds from the call.

    Attributes:
        first_token: until the first token was chosen (with beams: the first of each beam).
        seconds: until the last.
        per_token: mean of the tokens after the first; 0 where there are none.
        tokens_per_second: of all tokens, the end token among them.

    """

    first_token: float
    seconds: float
    per_token: float
    tokens_per_second: float


class Stopwatch:
    """Runs from the call on and is told of each token."""

    def __init__(self, began: float | None = None) -> None:
        self._began = time.perf_counter() if began is None else began
        self._first = self._last = self._began
        self._ticks = 0

    def tick(self) -> None:
        """Take note of a token."""
        self._last = time.perf_counter()
        if not self._ticks:
            self._first = self._last
        self._ticks += 1

    def another(self) -> "Stopwatch":
        """Return one for another text of the same call."""
        return Stopwatch(self._began)

    def timings(self) -> Timings:
        """Return what it took up to the last token."""
        seconds = self._last - self._began
        return Timings(
            first_token=self._first - self._began,
            seconds=seconds,
            per_token=(self._last - self._first) / max(1, self._ticks - 1),
            tokens_per_second=self._ticks / seconds if seconds > 0 else 0.0,
        )


@dataclass(frozen=True, kw_only=True)
class Endings:
    """When a text is over.

    Attributes:
        end_tokens: any of them ends it and is no part of it.
        stops: texts that end it and are no part of it.
        max_new_tokens: most tokens.
        min_new_tokens: before a text has so many, no end token can be chosen; a stop string may
            still end it.

    """

    end_tokens: tuple[int, ...]
    stops: StopStrings
    max_new_tokens: int
    min_new_tokens: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UsageError(f"max_new_tokens must be 1 or more, not {self.max_new_tokens}")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise UsageError(
                f"min_new_tokens must be from 0 to {self.max_new_tokens}, which is "
                f"max_new_tokens, not {self.min_new_tokens}"
            )

    def within(self, room: int) -> "Endings":
        """Return them for a text that has no room for more tokens than this."""
        if room >= self.max_new_tokens:
            return self
        least = min(self.min_new_tokens, room)
        return replace(self, max_new_tokens=room, min_new_tokens=least)

    def withheld(self, scores: Float32, written: int) -> Float32:
        """Return scores [..., vocab] by which a text of `written` tokens does not end too early.

        Those given stay as they are.
        """
        if written >= self.min_new_tokens:
            return scores
        scores = scores.copy()
        scores[..., list(self.end_tokens)] = -np.inf
        return scores


class Draft:
    """One text under way.

    Attributes:
        prompt_tokens: how many tokens came before the text.
        tokens: sampled, without the end token; with those that spelled a stop string.
        logprobs: of each token, in the model's own distribution.
        pieces: of the text, as they became certain.
        finish_reason: STOP or LENGTH once it is over.
        watch: for whoever drives the model to tell of each token.

    """

    def __init__(
        self,
        prompt: Sequence[int],
        *,
        read: int,
        endings: Endings,
        choose: Sampler,
        tokenizer: TextTokenizer,
        watch: Stopwatch,
        prompt_tokens: int | None = None,
    ) -> None:
        """Begin with a prompt, one token or more, of which `read` are in the cache already.

        `prompt_tokens` tells how many there were, where they are no part of the sequence.
        """
        self.prompt_tokens = len(prompt) if prompt_tokens is None else prompt_tokens
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.pieces: list[str] = []
        self.finish_reason: str | None = None
        self.watch = watch
        self._sequence = np.empty(len(prompt) + endings.max_new_tokens, np.int64)
        self._sequence[: len(prompt)] = prompt
        self._length = self._prompt = len(prompt)
        self._read = read
        self._endings = endings
        self._choose = choose
        self._text = tokenizer.stream()
        # Only a text's first word loses its space in some vocabularies, and this one has begun.
        self._text.push(prompt[-1])
        self._stops = endings.stops.matcher()

    @property
    def capacity(self) -> int:
        """Positions that it can come to need: the last token is never fed."""
        return len(self._sequence) - 1

    @property
    def in_prompt(self) -> bool:
        """Whether a part of the prompt has not been fed."""
        return self._read < self._prompt

    @property
    def is_due(self) -> bool:
        """Whether everything was fed, so that a token can be chosen."""
        return self._read == self._length

    def feed(self, most: int) -> Int64:
        """Return the next tokens for the cache, as many as `most`; they count as fed."""
        fed = self._sequence[self._read : min(self._read + most, self._length)]
        self._read += len(fed)
        return fed

    def choose(self, logits_v: Float32) -> int:
        """Choose the next token from logits [vocab]."""
        logits_v = self._endings.withheld(logits_v, len(self.tokens))
        return self._choose(logits_v, self._sequence[: self._length])

    def push(self, token: int, logprob: float) -> None:
        """Append a token, unless it is an end token."""
        if token in self._endings.end_tokens:
            self._finish(STOP)
            return
        self._sequence[self._length] = token
        self._length += 1
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self._says(self._text.push(token)):
            self.finish_reason = STOP
        elif len(self.tokens) == self._endings.max_new_tokens:
            self._finish(LENGTH)

    def _finish(self, reason: str) -> None:
        """End, and let go of the text that was held back."""
        if self._says(self._text.finish()):
            self.finish_reason = STOP
            return
        self.finish_reason = reason
        self.pieces.append(self._stops.finish())

    def _says(self, piece: str) -> bool:
        """Add a piece of text; tell whether it completed a stop string."""
        certain, stopped = self._stops.push(piece)
        self.pieces.append(certain)
        return stopped
