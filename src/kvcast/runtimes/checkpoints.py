"""Copies of what rows held at some lengths, so that they can be cut back although positions left.

Keys and values stay where they are, but a convolution holds its last inputs alone. Copies are never
changed, so rows that continue one another share them. Knows no tokens, and not what layers hold.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Self

from kvcast.runtimes.memory import Checkpoint, Memory

MOST = 4
"""As many a row keeps."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of all rows.

    Attributes:
        kept: of each row, ascending by length.
        due: the one that a row was cut back to; it is restored before the row goes on.

    """

    kept: tuple[tuple[Checkpoint, ...], ...]
    due: Mapping[int, Checkpoint] = field(default_factory=dict)

    @classmethod
    def none(cls, rows: int) -> Self:
        """Return those of empty rows."""
        return cls(((),) * rows)

    def longest(self, row: int, most: int) -> int:
        """Return the longest length, up to `most`, of a row's checkpoints; 0 without one."""
        return max((each.length for each in self.kept[row] if each.length <= most), default=0)

    def settled(self, memory: Memory, rows: Iterable[int]) -> Self:
        """Restore what is due to rows that go on."""
        if not self.due:
            return self
        going_on = self.due.keys() & set(rows)
        for row in going_on:
            memory.restore(row, self.due[row])
        return self._without_due(going_on)

    def taken(self, memory: Memory, lengths: Mapping[int, int]) -> Self:
        """Copy what rows hold, which are settled, by their lengths."""
        new = {
            row: _thinned((*self.kept[row], memory.checkpoint(row, length)))
            for row, length in lengths.items()
            if self.longest(row, length) < length
        }
        return self._changed(new)

    def reset(self, rows: Sequence[int]) -> Self:
        """Forget those of rows."""
        return self._without_due(rows)._changed(dict.fromkeys(rows, ()))

    def cut(self, lengths: Mapping[int, int], shortest: Sequence[int]) -> Self:
        """Forget those of longer rows; they are due where a row is shorter than its `shortest`."""
        kept = {
            row: tuple(each for each in self.kept[row] if each.length <= length)
            for row, length in lengths.items()
        }
        due = {
            row: each[-1]
            for row, each in kept.items()
            if each and each[-1].length == lengths[row] < shortest[row]
        }
        return replace(self._changed(kept), due={**self.due, **due} if due else self.due)

    def reordered(self, parents: Sequence[int]) -> Self:
        """Let row i have those of row `parents[i]`; all are settled."""
        if not any(self.kept):
            return self
        return replace(self, kept=tuple([self.kept[parent] for parent in parents]))

    def adopted(
        self, memory: Memory, rows: Sequence[int], other: Self, parents: Sequence[int]
    ) -> Self:
        """Let row `rows[i]`, which was copied from row `parents[i]` of another cache, have its."""
        new = dict(zip(rows, parents, strict=True))
        for row, parent in new.items():
            if parent in other.due:
                memory.restore(row, other.due[parent])
        kept = {row: other.kept[parent] for row, parent in new.items()}
        return self._without_due(rows)._changed(kept)

    def _changed(self, kept: Mapping[int, tuple[Checkpoint, ...]]) -> Self:
        if all(self.kept[row] == new for row, new in kept.items()):
            return self
        rows = range(len(self.kept))
        return replace(self, kept=tuple([kept.get(row, self.kept[row]) for row in rows]))

    def _without_due(self, rows: Iterable[int]) -> Self:
        left = {row: each for row, each in self.due.items() if row not in set(rows)}
        return self if len(left) == len(self.due) else replace(self, due=left)


def _thinned(checkpoints: tuple[Checkpoint, ...]) -> tuple[Checkpoint, ...]:
    """Drop the one that is nearest to the one before it, but for the newest, if need be."""
    if len(checkpoints) <= MOST:
        return checkpoints
    lengths = [0, *(each.length for each in checkpoints)]
    gaps = [after - before for before, after in pairwise(lengths)][:-1]
    nearest = gaps.index(min(gaps))
    return checkpoints[:nearest] + checkpoints[nearest + 1 :]
