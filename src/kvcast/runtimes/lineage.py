"""Which positions of which cache rows hold the same content.

A beam search makes rows continue other rows. Keys and values at a position follow from the tokens
up to it, so two rows that share a history already hold the same numbers there, and only what came
after their parting needs to be copied. Each cell of a cache gets an id when it is written; equal
ids mean equal content. Knows nothing of tensors.

Example: five beams of one prompt of 4 tokens, 30 steps later. Row 2 is to continue row 0; both
descend from one row that lived until step 27. Their ids agree in the first 31 positions, so 3
positions of one row are copied and not 34 of five.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Copy:
    """Rows `targets` take positions `first` .. `stop` of rows `sources`, all at once."""

    targets: NDArray[np.intp]
    sources: NDArray[np.intp]
    first: int
    stop: int


@dataclass(frozen=True)
class Lineage:
    """Content ids int64 [rows, capacity] of a cache and the lengths int32 [rows] of its rows."""

    ids: NDArray[np.int64]
    lengths: NDArray[np.int32]
    next_id: int = 1

    @classmethod
    def empty(cls, rows: int, capacity: int) -> Self:
        """Describe a cache that holds nothing."""
        return cls(np.zeros((rows, capacity), np.int64), np.zeros(rows, np.int32))

    def append(self, new: int) -> Self:
        """Describe the cache after each row took `new` positions; the caller checks capacity."""
        rows = len(self.lengths)
        ids, next_id = self.ids.copy(), self.next_id + rows * new
        slots_rs = self.lengths[:, None] + np.arange(new)
        fresh = np.arange(self.next_id, next_id).reshape(rows, new)
        ids[np.arange(rows)[:, None], slots_rs] = fresh
        return type(self)(ids, self.lengths + np.int32(new), next_id)

    def reset(self, rows: Sequence[int]) -> Self:
        """Describe the cache after the given rows were emptied."""
        lengths = self.lengths.copy()
        lengths[list(rows)] = 0
        return type(self)(self.ids, lengths, self.next_id)

    def select(self, sources: Sequence[int]) -> Self:
        """Describe a cache whose row i holds what row `sources[i]` holds."""
        rows = np.asarray(sources, np.intp)
        return type(self)(self.ids[rows], self.lengths[rows], self.next_id)

    def reorder(self, sources: Sequence[int]) -> tuple[Self, Copy | None]:
        """Let row i continue row `sources[i]`; return what to copy inside the same buffers.

        The copy is None where every row already holds what it needs. The number of rows must
        stay: with another number nothing is in place, and a new cache takes `select`ed rows.
        """
        source_rows = np.asarray(sources, np.intp)
        grown = self.select(sources)
        stop = int(grown.lengths.max(initial=0))
        differs = grown.ids[:, :stop] != self.ids[:, :stop]
        targets = np.flatnonzero(differs.any(axis=1))
        if not targets.size:
            return grown, None
        first = int(differs.any(axis=0).argmax())
        return grown, Copy(targets, source_rows[targets], first, stop)
