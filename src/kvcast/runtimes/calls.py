"""Program calls that rows share: runs of adjacent rows, plans of runs, and places for rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvcast.runtimes.base import Float32


@dataclass(frozen=True)
class Run:
    """Rows that share one call of a program: neighbours with the same number of new tokens."""

    index: tuple[int, ...]  # among the requested rows, in the order of their places
    places: range
    slots: range  # places of inputs, each read by equally many rows; empty without an encoder
    new: int  # tokens of each row
    prompt: bool = False

    @property
    def rows_each(self) -> int:
        return len(self.places) // max(len(self.slots), 1)

    def split(self, size: int) -> Iterator["Run"]:
        """Yield runs of `size` rows; `size` divides `rows_each` or is a multiple of it."""
        each = self.rows_each
        for i in range(0, len(self.places), size):
            slots = self.slots[i // each : -(-(i + size) // each)]
            part = slice(i, i + size)
            yield replace(self, index=self.index[part], places=self.places[part], slots=slots)


@dataclass
class CallPlan:
    rows: Sequence[int]
    is_step: bool  # one token per row, not of a prompt
    runs: list[Run]  # one for each call
    places: slice | list[int]  # indices of the requested rows; a slice if in the same order
    made_for: tuple[tuple[int, ...], int]  # inputs that rows read, and the memory's version
    bound: Any = None  # a runtime's own state for the next call with this plan

    def in_order(self, logits: Sequence[Float32]) -> Float32:
        if len(logits) == 1 and isinstance(self.places, slice):
            return logits[0]
        ordered = np.empty((len(self.rows), *logits[0].shape[1:]), np.float32)
        for run, logits_rpv in zip(self.runs, logits, strict=True):
            ordered[list(run.index)] = logits_rpv
        return ordered


def can_join(before: Run, run: Run) -> bool:
    return (
        before.places.stop == run.places.start
        and before.slots.stop == run.slots.start
        and before.rows_each == len(run.places)
        and before.new == run.new
    )


def are_neighbours(places: Sequence[int], members: Sequence[int]) -> bool:
    held = [places[member] for member in members]
    return max(held) - min(held) < len(held)


def assign_ranges(places: Sequence[int], groups: Sequence[Sequence[int]]) -> list[int]:
    """Return new places: consecutive ranges of groups; members whose place remains free stay."""
    placed: dict[int, int] = {}
    first = 0
    for group in groups:
        placed |= _placed(places, group, range(first, first + len(group)))
        first += len(group)
    others = [member for member in range(len(places)) if member not in placed]
    placed |= _placed(places, others, range(first, len(places)))
    return [placed[member] for member in range(len(places))]


def _placed(places: Sequence[int], members: Sequence[int], span: range) -> Mapping[int, int]:
    staying = {member: places[member] for member in members if places[member] in span}
    free = iter(sorted(set(span) - set(staying.values())))
    return {member: staying[member] if member in staying else next(free) for member in members}
