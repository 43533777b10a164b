"""Snapshots of rows: copies of their rings and states, so that a row can be truncated to them.

A linear cache keeps all positions, but rings evict positions and states are rewritten. Snapshots
are immutable, so rows that continue one another share them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Self

from kvcast.runtimes.memory import Memory, Snapshot

MOST_SNAPSHOTS = 4  # of a row


@dataclass(frozen=True)
class Snapshots:
    kept: tuple[tuple[Snapshot, ...], ...]  # of each row, ascending by length
    # Snapshots that rows were truncated to: restored before the rows continue.
    pending: Mapping[int, Snapshot] = field(default_factory=dict)

    @classmethod
    def empty(cls, rows: int) -> Self:
        return cls(((),) * rows)

    def longest(self, row: int, most: int) -> int:
        """Return the longest length, up to `most`, of a row's snapshots; 0 without one."""
        return max((each.length for each in self.kept[row] if each.length <= most), default=0)

    def restore_pending(self, memory: Memory, rows: Iterable[int]) -> Self:
        """Copy pending snapshots of `rows` back into memory."""
        if not self.pending:
            return self
        restored = self.pending.keys() & set(rows)
        for row in restored:
            memory.restore(row, self.pending[row])
        return self._drop_pending(restored)

    def take(self, memory: Memory, lengths: Mapping[int, int]) -> Self:
        """Take snapshots of rows, by their lengths; these have nothing pending."""
        new = {
            row: _limit((*self.kept[row], memory.take_snapshot(row, length)))
            for row, length in lengths.items()
            if self.longest(row, length) < length
        }
        return self._replace_kept(new)

    def reset(self, rows: Sequence[int]) -> Self:
        return self._drop_pending(rows)._replace_kept(dict.fromkeys(rows, ()))

    def truncate(self, lengths: Mapping[int, int], shortest: Sequence[int]) -> Self:
        """Drop snapshots past `lengths`; the last is pending if below a row's `shortest` length."""
        kept = {
            row: tuple(each for each in self.kept[row] if each.length <= length)
            for row, length in lengths.items()
        }
        pending = {
            row: each[-1]
            for row, each in kept.items()
            if each and each[-1].length == lengths[row] < shortest[row]
        }
        left = {**self.pending, **pending} if pending else self.pending
        return replace(self._replace_kept(kept), pending=left)

    def reorder(self, parents: Sequence[int]) -> Self:
        """Give row i the snapshots of row `parents[i]`; nothing is pending."""
        if not any(self.kept):
            return self
        return replace(self, kept=tuple([self.kept[parent] for parent in parents]))

    def adopt(
        self, memory: Memory, rows: Sequence[int], other: Self, parents: Sequence[int]
    ) -> Self:
        """Copy the snapshots of row `parents[i]` of the other cache to row `rows[i]`."""
        new = dict(zip(rows, parents, strict=True))
        for row, parent in new.items():
            if parent in other.pending:
                memory.restore(row, other.pending[parent])
        kept = {row: other.kept[parent] for row, parent in new.items()}
        return self._drop_pending(rows)._replace_kept(kept)

    def _replace_kept(self, kept: Mapping[int, tuple[Snapshot, ...]]) -> Self:
        if all(self.kept[row] == new for row, new in kept.items()):
            return self
        rows = range(len(self.kept))
        return replace(self, kept=tuple([kept.get(row, self.kept[row]) for row in rows]))

    def _drop_pending(self, rows: Iterable[int]) -> Self:
        left = {row: each for row, each in self.pending.items() if row not in set(rows)}
        return self if len(left) == len(self.pending) else replace(self, pending=left)


def _limit(snapshots: tuple[Snapshot, ...]) -> tuple[Snapshot, ...]:
    """Drop the snapshot nearest to its predecessor, never the newest, if there are too many."""
    if len(snapshots) <= MOST_SNAPSHOTS:
        return snapshots
    lengths = [0, *(each.length for each in snapshots)]
    gaps = [after - before for before, after in pairwise(lengths)][:-1]
    nearest = gaps.index(min(gaps))
    return snapshots[:nearest] + snapshots[nearest + 1 :]
