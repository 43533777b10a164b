"""The KV cache of every runtime: its rows, the inputs they read, and the calls that rows share.

A runtime allocates memory and runs programs. Everything else is implemented here, once: reset,
reorder, fork, adopt, and how rows are divided among calls.

The rows of one program call are adjacent in memory. With an encoder-decoder model so are the inputs
that they read, with the same number of rows for each. Rows and inputs therefore have places. When
rows read other inputs, rows are moved to minimize the number of calls; while the same rows
continue, nothing is moved, and calls work on views.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from typing_extensions import override

from kvcast.runtimes.base import Float32, Int32, RuntimeOf, Tokens
from kvcast.runtimes.calls import CallPlan, Run, are_neighbours, assign_ranges, can_join
from kvcast.runtimes.history import History
from kvcast.runtimes.memory import Array, Layer, Memory, Slots
from kvcast.runtimes.snapshots import MOST_SNAPSHOTS, Snapshots

_NONE = -1  # the slot of a row that reads no input


@dataclass(frozen=True)
class CacheHandle:
    """A handle: the lengths of the rows in memory, and the input that each row reads."""

    memory: Memory = field(repr=False)
    history: History = field(repr=False)
    reads: tuple[int, ...]
    snapshots: Snapshots = field(repr=False)

    @property
    def lengths(self) -> Int32:
        return self.history.lengths

    @property
    def capacity(self) -> int:
        return self.history.capacity

    def revocable(self, row: int, kept: int, most: int) -> int:
        stays = int(self.lengths[row]) + kept
        if self.history.shortest[row] > stays:
            return 0
        counts = range(min(most, self.capacity - stays), 0, -1)
        return next((n for n in counts if self.memory.shortest(stays + n) <= stays), 0)

    @property
    def has_snapshots(self) -> bool:
        return self.memory.has_snapshots

    def reachable(self, row: int, most: int) -> int:
        if most >= self.history.shortest[row]:
            return min(most, int(self.lengths[row]))
        return self.snapshots.longest(row, most)

    def append(self, rows: Sequence[int], tokens: Tokens) -> Self:
        history = self._turned(self.history.append(rows, tokens), rows)
        restored = self.snapshots.restore_pending(self.memory, rows)
        return type(self)(self.memory, history, self.reads, restored)

    def take_snapshots(self, rows: Sequence[int]) -> Self:
        if not self.has_snapshots:
            return self
        lengths = {row: int(self.lengths[row]) for row in rows}
        restored = self.snapshots.restore_pending(self.memory, rows)
        return replace(self, snapshots=restored.take(self.memory, lengths))

    def reset(self, rows: Sequence[int], inputs: Sequence[int] | None) -> Self:
        changed = dict(zip(rows, inputs or [_NONE] * len(rows), strict=True))
        reads = tuple(changed.get(row, slot) for row, slot in enumerate(self.reads))
        history, snapshots = self.history.reset(rows), self.snapshots.reset(rows)
        return type(self)(self.memory, history, self._same(reads), snapshots)

    def truncate(self, rows: Sequence[int], lengths: Sequence[int]) -> Self:
        by_row = dict(zip(rows, lengths, strict=True))
        snapshots = self.snapshots.truncate(by_row, self.history.shortest.tolist())
        back = {
            row: snapshots.pending[row].shortest
            for row in by_row
            if row in snapshots.pending and snapshots.pending[row].length == by_row[row]
        }
        history = self.history.come_back(back).truncate(rows, lengths)
        return replace(self, history=history, snapshots=snapshots)

    def reorder(self, parents: Sequence[int]) -> Self:
        """Copy positions that differ; return the handle whose row i continues row `parents[i]`."""
        reads = self._same(tuple([self.reads[parent] for parent in parents]))
        restored = self.snapshots.restore_pending(self.memory, range(len(parents)))
        history, moves = self.history.reorder(parents)
        if moves:
            self.memory.copy(moves)
        return type(self)(self.memory, history, reads, restored.reorder(parents))

    def adopt(self, rows: Sequence[int], other: Self, parents: Sequence[int]) -> Self:
        """Copy rows of another cache; return the handle whose row `rows[i]` holds `parents[i]`."""
        history = self._turned(self.history.adopt(rows, other.history, parents), rows)
        self.memory.adopt(rows, other.memory, parents, other.lengths[list(parents)])
        snapshots = self.snapshots.adopt(self.memory, rows, other.snapshots, parents)
        return replace(self, history=history, snapshots=snapshots)

    def vacate(self, slots: Sequence[int]) -> None:
        if read := set(slots).intersection(self.reads):
            row = self.reads.index(min(read))
            raise ValueError(f"input {min(read)} is still read by row {row}")
        self.memory.vacate(slots)

    def input_of(self, row: int) -> int:
        if self.reads[row] == _NONE:
            raise ValueError(f"row {row} reads no input: reset it to one first")
        return self.reads[row]

    def plan(self, rows: Sequence[int], tokens: Tokens, *, prompt: bool = False) -> CallPlan:
        """Divide rows with new tokens among calls, perhaps moving rows; steps' plans are cached."""
        memory, new = self.memory, [len(chunk) for chunk in tokens]
        is_step = max(new) == 1 and not prompt
        plan: CallPlan | None = memory.bound.get("plan")
        if is_step and plan and plan.rows == rows:
            reads, version = plan.made_for
            if reads is self.reads and version == memory.version:
                return plan
        runs = self._runs(rows, new)
        if len(runs) > self._fewest(rows, new):
            if memory.slots.parts:
                self._bring_readers_together()
            elif is_step:
                memory.move(assign_ranges(memory.places, [rows]), self.lengths)
            runs = self._runs(rows, new)
        if prompt:
            runs = [replace(run, prompt=True) for run in runs]
        plan = CallPlan(rows, is_step, runs, self._places(rows), (self.reads, memory.version))
        if is_step:
            memory.bound["plan"] = plan
        return plan

    def _turned(self, history: History, rows: Sequence[int]) -> History:
        if not self.memory.has_rings:
            return history
        held = history.lengths[list(rows)].tolist()
        return history.let_go(rows, list(map(self.memory.shortest, held)))

    def _same(self, reads: tuple[int, ...]) -> tuple[int, ...]:
        """Return the same object if nothing changed: plans are compared by identity."""
        return self.reads if reads == self.reads else reads

    def _places(self, rows: Sequence[int]) -> slice | list[int]:
        places = [self.memory.places[row] for row in rows]
        in_order = places == list(range(places[0], places[0] + len(places)))
        return slice(places[0], places[-1] + 1) if in_order else places

    def _slot_place(self, row: int) -> int:
        slots = self.memory.slots
        return slots.places[self.input_of(row)] if slots.parts else 0

    def _runs(self, rows: Sequence[int], new: Sequence[int]) -> list[Run]:
        """Split rows, ordered by place, where neighbours cannot share a call."""
        places = self.memory.places
        # First neighbours that read one input, then neighbouring groups of the same size.
        groups: list[tuple[list[int], int, int, int]] = []
        for i in sorted(range(len(rows)), key=lambda i: places[rows[i]]):
            place, slot = places[rows[i]], self._slot_place(rows[i])
            if groups:
                index, first, *alike = groups[-1]
                if [first + len(index), slot, new[i]] == [place, *alike]:
                    index.append(i)
                    continue
            groups.append(([i], place, slot, new[i]))
        runs: list[Run] = []
        for index, first, slot, count in groups:
            run = Run(tuple(index), range(first, first + len(index)), range(slot, slot + 1), count)
            if runs and can_join(runs[-1], run):
                before = runs.pop()
                run = Run(
                    (*before.index, *run.index),
                    range(before.places.start, run.places.stop),
                    range(before.slots.start, run.slots.stop),
                    count,
                )
            runs.append(run)
        if self.memory.slots.parts:
            return runs
        return [replace(run, slots=range(0)) for run in runs]

    def _fewest(self, rows: Sequence[int], new: Sequence[int]) -> int:
        if not self.memory.slots.parts:
            return len(set(new))
        readers = Counter((self.reads[row], count) for row, count in zip(rows, new, strict=True))
        return len({(size, count) for (_, count), size in readers.items()})

    def _bring_readers_together(self) -> None:
        """Move rows and inputs to minimize the calls that serve all rows with an input."""
        memory = self.memory
        if memory.bound.get("arranged") is self.reads:
            return
        memory.bound["arranged"] = self.reads
        readers: dict[int, list[int]] = {}
        for row, slot in enumerate(self.reads):
            if slot != _NONE:
                readers.setdefault(slot, []).append(row)
        # One call can serve all inputs that have the same number of rows.
        sizes: dict[int, list[int]] = {}
        for slot in sorted(readers, key=lambda slot: memory.slots.places[slot]):
            sizes.setdefault(len(readers[slot]), []).append(slot)
        rows = [row for several in readers.values() for row in several]
        if len(self._runs(rows, [1] * len(rows))) <= len(sizes):
            return
        alike = list(sizes.values())
        if not all(are_neighbours(memory.slots.places, slots) for slots in alike):
            memory.slots.move(assign_ranges(memory.slots.places, alike))
        order = sorted(readers, key=lambda slot: (len(readers[slot]), memory.slots.places[slot]))
        memory.move(assign_ranges(memory.places, [readers[slot] for slot in order]), self.lengths)


class CachedRuntime(ABC, RuntimeOf[CacheHandle]):
    """A runtime over `CacheHandle`; subclasses allocate memory and run programs."""

    longest: int | None = None  # upper limit of a cache's capacity
    prompts_differ: bool = False

    @abstractmethod
    def layers(self, capacity: int) -> Sequence[Layer]:
        """Describe keys and values of all layers, in the program's order."""

    @abstractmethod
    def make(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array of zeros."""

    @abstractmethod
    def run(
        self, tokens: Tokens, cache: CacheHandle, rows: list[int], positions: Sequence[int]
    ) -> Float32:
        """Run the program on new tokens, writing into the cache; returns logits as `decode`."""

    def slots(self, count: int) -> Slots:
        return Slots(count, self.make)

    @override
    def row_bytes(self, capacity: int) -> int:
        if self.longest is not None:
            capacity = min(capacity, self.longest)
        return sum(
            math.prod(layer.shape)
            * int(self.make((1,), layer.dtype).nbytes)
            * (1 + MOST_SNAPSHOTS * layer.has_snapshots)
            for layer in self.layers(capacity)
        )

    @override
    def new_cache(self, rows: int, capacity: int, inputs: int = 0) -> CacheHandle:
        if self.longest is not None:
            capacity = min(capacity, self.longest)
        memory = Memory(self.layers(capacity), rows, self.slots(inputs), self.make)
        empty = History.empty(rows, capacity)
        return CacheHandle(memory, empty, (_NONE,) * rows, Snapshots.empty(rows))

    @override
    def decode(
        self,
        tokens: Tokens,
        cache: CacheHandle,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, CacheHandle]:
        taking_part = list(range(len(cache.reads)) if rows is None else rows)
        grown = cache.append(taking_part, tokens)
        return self.run(tokens, cache, taking_part, positions), grown

    @override
    def prefill(
        self,
        tokens: Tokens,
        cache: CacheHandle,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, CacheHandle]:
        return self.decode(tokens, cache, rows, positions)

    @override
    def reorder(self, cache: CacheHandle, parents: Sequence[int]) -> CacheHandle:
        return cache.reorder(parents)

    @override
    def fork(
        self, cache: CacheHandle, parents: Sequence[int], capacity: int | None = None
    ) -> CacheHandle:
        forked = self.new_cache(len(parents), capacity or cache.capacity)
        return forked.adopt(range(len(parents)), cache, parents)

    @override
    def adopt(
        self, cache: CacheHandle, rows: Sequence[int], other: CacheHandle, parents: Sequence[int]
    ) -> CacheHandle:
        return cache.adopt(rows, other, parents)

    @override
    def reset(
        self, cache: CacheHandle, rows: Sequence[int], inputs: Sequence[int] | None = None
    ) -> CacheHandle:
        return cache.reset(rows, inputs)

    @override
    def take_snapshots(self, cache: CacheHandle, rows: Sequence[int]) -> CacheHandle:
        return cache.take_snapshots(rows)

    @override
    def truncate(
        self, cache: CacheHandle, rows: Sequence[int], lengths: Sequence[int]
    ) -> CacheHandle:
        return cache.truncate(rows, lengths)
