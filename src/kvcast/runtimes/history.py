"""The lengths of rows of a cache, and how many positions two rows have in common.

Keys and values at a position depend only on the row's past. In beam search rows continue other
rows, so rows with a common parent hold the same keys and values up to where they diverged, and only
later positions are copied.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from kvcast.errors import KvcastError
from kvcast.runtimes.base import Int32, Int64, Tokens


class Moves(NamedTuple):
    """Rows `targets` take positions `first` .. `stop` of rows `parents`."""

    targets: list[int]
    parents: list[int]
    first: int
    stop: int


@dataclass(frozen=True)
class History:
    capacity: int
    lengths: Int32  # [rows], positions that each row has seen
    shortest: Int32  # [rows], least length to truncate each row to, as rings have evicted positions
    parted_rr: Int32  # length of the prefix that two rows share by descent; the diagonal is unused

    @classmethod
    def empty(cls, rows: int, capacity: int) -> Self:
        none = np.zeros(rows, np.int32)
        return cls(capacity, none, none, np.zeros((rows, rows), np.int32))

    def append(self, rows: Sequence[int], tokens: Tokens) -> Self:
        """Describe the cache after `rows` appended tokens; KvcastError if they don't fit."""
        lengths = self.lengths.tolist()
        for row, new in zip(rows, tokens, strict=True):
            lengths[row] += len(new)
            if lengths[row] > self.capacity:
                raise KvcastError(f"the cache holds {self.capacity} positions and is full")
        grown = np.array(lengths, np.int32)
        return type(self)(self.capacity, grown, self.shortest, self.parted_rr)

    def let_go(self, rows: Sequence[int], shortest: Sequence[int]) -> Self:
        raised = self.shortest.copy()
        raised[list(rows)] = np.maximum(raised[list(rows)], shortest)
        return replace(self, shortest=raised)

    def come_back(self, shortest: Mapping[int, int]) -> Self:
        """Describe the cache after rings of rows were restored, with these least lengths."""
        if not shortest:
            return self
        lowered = self.shortest.copy()
        lowered[list(shortest)] = list(shortest.values())
        return replace(self, shortest=lowered)

    def reset(self, rows: Sequence[int]) -> Self:
        lengths, shortest, parted_rr = (
            part.copy() for part in (self.lengths, self.shortest, self.parted_rr)
        )
        emptied = list(rows)
        lengths[emptied] = shortest[emptied] = parted_rr[emptied] = parted_rr[:, emptied] = 0
        return type(self)(self.capacity, lengths, shortest, parted_rr)

    def truncate(self, rows: Sequence[int], lengths: Sequence[int]) -> Self:
        """Truncate row `rows[i]` to `lengths[i]` positions; ValueError if it cannot be."""
        cut, parted_rr = self.lengths.copy(), self.parted_rr.copy()
        for row, length in zip(rows, lengths, strict=True):
            if not self.shortest[row] <= length <= cut[row]:
                raise ValueError(
                    f"row {row} holds {cut[row]} positions and can be cut to "
                    f"{self.shortest[row]} or more, not to {length}"
                )
            cut[row] = length
            np.minimum(parted_rr[row], length, out=parted_rr[row])
            np.minimum(parted_rr[:, row], length, out=parted_rr[:, row])
        return replace(self, lengths=cut, parted_rr=parted_rr)

    def adopt(self, rows: Sequence[int], other: Self, parents: Sequence[int]) -> Self:
        taken, kept = other.lengths[list(parents)], self.reset(rows)
        held = int(taken.max(initial=0))
        if held > self.capacity:
            raise KvcastError(f"a cache of {self.capacity} positions cannot hold {held}")
        kept.lengths[list(rows)] = taken
        kept.shortest[list(rows)] = other.shortest[list(parents)]
        kept.parted_rr[np.ix_(rows, rows)] = other._common()[np.ix_(parents, parents)]
        return kept

    def reorder(self, parents: Sequence[int]) -> tuple[Self, list[Moves]]:
        """Continue row `parents[i]` as row i; return the copies to make, all at once."""
        rows = len(self.lengths)
        if len(parents) != rows:
            raise KvcastError(f"{rows} rows cannot become {len(parents)} in place")
        parents_r = np.array(parents)
        common_rr, lengths = self._common(), self.lengths[parents_r]
        shared_r = common_rr[np.arange(rows), parents_r]
        # In a ring the row's later positions may occupy the slots of its parent's past.
        shared_r[lengths < self.lengths] = 0
        targets = np.flatnonzero(shared_r < lengths)
        # The rings of a row that is not copied keep its positions beyond the common prefix.
        shortest = np.maximum(self.shortest, self.shortest[parents_r])
        shortest[targets] = self.shortest[parents_r[targets]]
        shortest[lengths == 0] = 0
        parted_rr = common_rr[parents_r[:, None], parents_r]
        reordered = type(self)(self.capacity, lengths, shortest, parted_rr)
        moves: dict[tuple[int, int], Moves] = {}
        spans = zip(shared_r[targets].tolist(), lengths[targets].tolist(), strict=True)
        for row, span in zip(targets.tolist(), spans, strict=True):
            alike = moves.setdefault(span, Moves([], [], *span))
            alike.targets.append(row)
            alike.parents.append(parents[row])
        return reordered, list(moves.values())

    def _common(self) -> Int32:
        """Return each pair's common prefix length, [rows, rows]; a row's own on the diagonal."""
        common_rr = self.parted_rr.copy()
        np.fill_diagonal(common_rr, self.lengths)
        return common_rr


def check_sources(sources: Sequence[Int64], max_positions: int) -> None:
    """Raise KvcastError for a source that is empty or longer than the model takes."""
    for i, source in enumerate(sources):
        if not 1 <= len(source) <= max_positions:
            raise KvcastError(
                f"source {i} has {len(source)} tokens and the model takes 1 to {max_positions}"
            )
