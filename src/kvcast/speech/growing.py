"""The text of a sound that is still arriving, of models that encode it as it comes.

Positions that no later sound changes are encoded once. After the
settled tokens the text is what the model would write of all sound so far: the tokens of the last
hypothesis are read again in one call, and new ones follow from where the model would choose
another. Settled ones are not read again while the sound grows. Knows no words, and not where
utterances end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcast.families.programs import StreamedSource
from kvcast.runtimes.base import EncoderDecoder, Float32
from kvcast.runtimes.exclusive import exclusive


@dataclass(frozen=True, kw_only=True)
class GrowingSizes:
    """Sizes of a model that encodes sound as it comes.

    Attributes:
        samples: of a position.
        ahead: positions after its own that an encoded position depends on.
        positions: of the longest sound.
        tokens: of the longest text, with the start.

    """

    samples: int
    ahead: int
    positions: int
    tokens: int


class GrowingText:
    """One utterance.

    Attributes:
        settled: tokens that stay as they are.

    """

    def __init__(
        self,
        runtime: EncoderDecoder,
        source: StreamedSource,
        sizes: GrowingSizes,
        *,
        start: int,
        ends: Sequence[int],
    ) -> None:
        """Take a model's parts: its first token, and those that end texts."""
        self._runtime, self._source, self._sizes = runtime, source, sizes
        self._start, self._ends = start, frozenset(ends)
        self._cache: Any = runtime.new_cache(1, sizes.tokens, inputs=1)
        self.begin()

    def begin(self) -> None:
        """Begin another utterance."""
        self._waiting = np.empty(0, np.float32)
        self._samples = 0
        self.settled: list[int] = []
        self._row: list[int] = []  # tokens that the cache holds
        self._cache = self._runtime.reset(self._cache, [0])
        self._stream = self._runtime.stream(self._cache, 0, self._source, self._sizes.positions)

    @property
    def room(self) -> int:
        """Samples that it can still hear."""
        # The rest of a position may follow, as one more.
        return (self._sizes.positions - 1) * self._sizes.samples - self._samples

    def hear(self, samples: Float32) -> None:
        """Encode more sound: what makes whole positions."""
        self._samples += len(samples)
        self._waiting = np.concatenate([self._waiting, samples])
        whole = len(self._waiting) // self._sizes.samples
        if whole > (0 if self._stream.done else self._sizes.ahead):
            self._encode(whole)

    def end(self) -> bool:
        """Encode the rest, as if the sound ended here; return whether there is any."""
        each = self._sizes.samples
        least = 0 if self._stream.done else self._sizes.ahead + 1
        whole = max(-(-len(self._waiting) // each), least if len(self._waiting) else 0)
        if whole:
            padding = whole * each - len(self._waiting)
            self._waiting = np.pad(self._waiting, (0, padding))
            self._encode(whole)
        if self._stream.done:
            self._stream.finish()
        return self._stream.held > 0

    def _encode(self, positions: int) -> None:
        samples = positions * self._sizes.samples
        self._stream.listen(self._waiting[:samples].reshape(positions, -1))
        self._waiting = self._waiting[samples:]

    def surely(self, guess: Sequence[int], most: int) -> list[int]:
        """Return the text of what no later sound changes."""
        self._stream.forget()
        return self._written(guess, most)

    def supposedly(self, guess: Sequence[int], most: int) -> list[int]:
        """Return the text of all positions, the last ones as if the sound ended here."""
        if self._stream.done:
            self._stream.finish()
        return self._written(guess, most)

    def wholly(self, guess: Sequence[int], most: int) -> list[int]:
        """Return the text of a sound that ended, after reading all of the settled tokens again."""
        self._row.clear()
        return self._written(guess, most)

    def _written(self, guess: Sequence[int], most: int) -> list[int]:
        """Return up to `most` tokens of text, the settled ones among them.

        `guess` begins with the settled tokens; the better it is, the faster.
        """
        kept, most = len(self.settled), min(most, self._sizes.tokens - 1)
        if not self._stream.held or most <= kept:
            return list(self.settled)
        with exclusive(self._runtime):  # a hypothesis at a time: steps of others take longer
            return self._continued([self._start, *guess[:most]], most)

    def _continued(self, fed: list[int], most: int) -> list[int]:
        """Return the text that goes on where the model would choose other tokens than those."""
        kept = len(self.settled)
        held = min(_alike(self._row, fed), kept)
        if held:
            self._cache = self._runtime.truncate(self._cache, [0], [held])
        else:
            self._cache = self._runtime.reset(self._cache, [0], [0])
        chosen = self._chosen(fed[held:], range(kept - held, len(fed) - held))
        same = _alike(fed[kept + 1 :], chosen)
        tokens, following = fed[1 : kept + 1 + same], chosen[same]
        self._cache = self._runtime.truncate(self._cache, [0], [len(tokens) + 1])
        self._row = [self._start, *tokens]
        while following not in self._ends and len(tokens) < most:
            tokens.append(following)
            if len(tokens) < most:
                [following] = self._chosen([following], range(1))
                self._row.append(tokens[-1])
        return tokens

    def _chosen(self, fed: Sequence[int], asked: range) -> list[int]:
        """Append tokens to the row, and return the likeliest one after each that is asked."""
        given = [np.array(fed, np.int64)]
        logits, self._cache = self._runtime.decode(given, self._cache, positions=asked)
        chosen: list[int] = logits[0].argmax(-1).tolist()
        return chosen


def _alike(tokens: Sequence[int], others: Sequence[int]) -> int:
    """Return how many tokens are the same from the beginning on."""
    pairs = zip(tokens, others, strict=False)
    return next(
        (i for i, (token, other) in enumerate(pairs) if token != other),
        min(len(tokens), len(others)),
    )
