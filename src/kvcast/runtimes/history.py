"""What the rows of a cache have seen: their tokens.

Keys and values at a position follow from the tokens up to it, so two rows of one input with equal
tokens up to a position hold the same numbers up to there. A beam search makes rows continue other
rows, and only what comes after the first token that differs needs to be copied. Knows nothing of
tensors.

Example: five beams of one prompt of 4 tokens, 30 steps later. Row 2 is to continue row 0; both
descend from one row that lived until step 27. Their tokens agree in the first 31 positions, so 3
positions of one row are copied and not 34 of five.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.runtimes.base import Int32, Int64, Tokens


@dataclass(frozen=True)
class Move:
    """Row `target` takes positions `first` .. `stop` of row `parent`."""

    target: int
    parent: int
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
        capacity: int = self.tokens_rc.shape[1]
        return capacity

    def append(self, rows: Sequence[int], tokens: Tokens) -> Self:
        """Describe the cache after `rows` took their new tokens; KvcastError if they don't fit."""
        lengths = self.lengths.copy()
        for row, new in zip(rows, tokens, strict=True):
            first = int(lengths[row])
            stop = first + len(new)
            if stop > self.capacity:
                raise KvcastError(f"the cache holds {self.capacity} positions and is full")
            self.tokens_rc[row, first:stop] = new
            lengths[row] = stop
        return type(self)(self.tokens_rc, lengths)

    def reset(self, rows: Sequence[int]) -> Self:
        """Describe the cache after the given rows were emptied."""
        lengths = self.lengths.copy()
        lengths[list(rows)] = 0
        return replace(self, lengths=lengths)

    def adopt(self, rows: Sequence[int], other: Self, parents: Sequence[int]) -> Self:
        """Describe the cache after row `rows[i]` took all of row `parents[i]` of another one."""
        taken = other.lengths[list(parents)]
        held = int(taken.max(initial=0))
        if held > self.capacity:
            raise KvcastError(f"a cache of {self.capacity} positions cannot hold {held}")
        lengths = self.lengths.copy()
        lengths[list(rows)] = taken
        self.tokens_rc[list(rows), :held] = other.tokens_rc[list(parents), :held]
        return replace(self, lengths=lengths)

    def reorder(
        self, parents: Sequence[int], unrelated: Collection[int] = ()
    ) -> tuple[Self, list[Move]]:
        """Let row i continue row `parents[i]`; return what to copy, all of it at once.

        Rows that are `unrelated` to their parents, because they read other inputs, share nothing.
        """
        if len(parents) != len(self.lengths):
            raise KvcastError(f"{len(self.lengths)} rows cannot become {len(parents)} in place")
        moves = [
            move
            for row, parent in enumerate(parents)
            if row != parent and (move := self._move(row, parent, row in unrelated))
        ]
        if moves:
            targets, sources = [move.target for move in moves], [move.parent for move in moves]
            span = slice(min(move.first for move in moves), max(move.stop for move in moves))
            self.tokens_rc[targets, span] = self.tokens_rc[sources, span]
        return replace(self, lengths=self.lengths[list(parents)]), moves

    def _move(self, target: int, parent: int, unrelated: bool) -> Move | None:
        held, stop = int(self.lengths[target]), int(self.lengths[parent])
        if unrelated or stop < held:
            # In a ring what the target saw later may lie where the parent's past belongs.
            return Move(target, parent, 0, stop) if stop else None
        differs: NDArray[np.intp] = np.flatnonzero(
            self.tokens_rc[target, :held] != self.tokens_rc[parent, :held]
        )
        first = int(differs[0]) if differs.size else held
        return Move(target, parent, first, stop) if first < stop else None


class SourceHistory(History):
    """A history of rows whose first chunk is their source: a UniLM's.

    A source's positions all see each other, so keys and values there follow from the whole source,
    not from the tokens up to them. A source's tokens are kept as negative numbers, so that where
    two rows part it shows whether they have one source.
    """

    @override
    def append(self, rows: Sequence[int], tokens: Tokens) -> Self:
        marked = [
            new if self.lengths[row] else -1 - new for row, new in zip(rows, tokens, strict=True)
        ]
        return super().append(rows, marked)

    @override
    def _move(self, target: int, parent: int, unrelated: bool) -> Move | None:
        move = super()._move(target, parent, unrelated)
        if move and (self.tokens_rc[[target, parent], move.first] < 0).any():
            return replace(move, first=0)
        return move


def check_sources(sources: Sequence[Int64], max_positions: int) -> None:
    """Raise KvcastError for a source that is empty or longer than the model takes."""
    for i, source in enumerate(sources):
        if not 1 <= len(source) <= max_positions:
            raise KvcastError(
                f"source {i} has {len(source)} tokens and the model takes 1 to {max_positions}"
            )
