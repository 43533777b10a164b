"""What the rows of a decoder-only model's cache have seen: their tokens.

Keys and values at a position follow from the tokens up to it, so two rows with equal tokens up to
a position hold the same numbers up to there. A beam search makes rows continue other rows, and
only what comes after the first token that differs needs to be copied. Knows nothing of tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.runtimes.base import Int32, Int64


@dataclass(frozen=True)
class Move:
    """Row `target` takes positions `first` .. `stop` of row `source`."""

    target: int
    source: int
    first: int
    stop: int


@dataclass(frozen=True)
class History:
    """Tokens int64 [rows, capacity], of which each row's first `lengths` int32 [rows] count.

    The tokens' memory is shared by all histories of a cache and written in place, as the cache is.
    """

    tokens_rc: Int64
    lengths: Int32

    @classmethod
    def empty(cls, rows: int, capacity: int) -> Self:
        """Describe a cache that holds nothing."""
        return cls(np.zeros((rows, capacity), np.int64), np.zeros(rows, np.int32))

    @property
    def capacity(self) -> int:
        """Longest sequence."""
        return len(self.tokens_rc[0])

    def append(self, rows: Sequence[int], tokens: Sequence[Int64]) -> Self:
        """Describe the cache after `rows` took their new tokens; KvcastError if they don't fit."""
        lengths = self.lengths.copy()
        for row, new in zip(rows, tokens, strict=True):
            first = int(lengths[row])
            if first + len(new) > self.capacity:
                raise KvcastError(f"the cache holds {self.capacity} positions and is full")
            self.tokens_rc[row, first : first + len(new)] = new
            lengths[row] += len(new)
        return replace(self, lengths=lengths)

    def reset(self, rows: Sequence[int]) -> Self:
        """Describe the cache after the given rows were emptied."""
        lengths = self.lengths.copy()
        lengths[list(rows)] = 0
        return replace(self, lengths=lengths)

    def fork(self, sources: Sequence[int], capacity: int) -> Self:
        """Describe another cache whose row i holds what row `sources[i]` holds."""
        lengths = self.lengths[list(sources)]
        held = int(lengths.max(initial=0))
        if held > capacity:
            raise KvcastError(f"a cache of {capacity} positions cannot hold {held}")
        tokens_rc = np.zeros((len(sources), capacity), np.int64)
        tokens_rc[:, :held] = self.tokens_rc[list(sources), :held]
        return type(self)(tokens_rc, lengths)

    def reorder(self, sources: Sequence[int]) -> tuple[Self, list[Move]]:
        """Let row i continue row `sources[i]`; return what to copy, all of it at once."""
        if len(sources) != len(self.lengths):
            raise KvcastError(f"{len(self.lengths)} rows cannot become {len(sources)} in place")
        moves = [move for row, source in enumerate(sources) if (move := self._move(row, source))]
        held = int(self.lengths.max(initial=0))
        lengths = self.lengths[list(sources)]
        self.tokens_rc[:, :held] = self.tokens_rc[list(sources), :held]
        return replace(self, lengths=lengths), moves

    def _move(self, target: int, source: int) -> Move | None:
        stop = int(self.lengths[source])
        if stop < self.lengths[target]:
            # In a ring what the target saw later may lie where the source's past belongs.
            return Move(target, source, 0, stop)
        common = min(stop, int(self.lengths[target]))
        differs: NDArray[np.intp] = np.flatnonzero(
            self.tokens_rc[target, :common] != self.tokens_rc[source, :common]
        )
        first = int(differs[0]) if differs.size else common
        return Move(target, source, first, stop) if first < stop else None
