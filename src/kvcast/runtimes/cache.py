"""The cache of every runtime: where rows and encoded inputs lie, and what is copied when.

A runtime allocates memory and runs programs over it; all else is here, once, over NumPy arrays or
torch tensors alike: which place a row has, which input it reads, what it has seen, and what a
reset, a reorder or an adoption copies.

Programs run over neighbours: in one call rows lie side by side, and with an encoder-decoder model
so do the inputs that they read, each read by as many rows. So rows and inputs have places, which
change when other rows read other inputs; then rows are moved, so that as few calls as possible
serve all of them. While the same rows go on, nothing is moved, and a call's caches are views.

Letters in shapes: n caches, s positions of a cache. Knows nothing of models or of what a program
computes.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias

import numpy as np
from typing_extensions import override

from kvcast.runtimes.base import Float32, Int32, Int64, RuntimeOf
from kvcast.runtimes.history import History, Move

Array: TypeAlias = Any
"""A NumPy array or a torch tensor, of which only what both do alike is used."""
Make: TypeAlias = Callable[[tuple[int, ...], Any], Array]
"""Makes an array of zeros from a shape and a dtype."""

_NONE = -1  # the slot of a row that reads no input


@dataclass(frozen=True)
class Layer:
    """One cache of keys or values: the shape of a row's part, with positions on axis 1.

    A ring has as many slots whatever the capacity, or keeps position p in slot p mod slots.
    """

    shape: tuple[int, ...]
    dtype: Any
    is_ring: bool = False


@dataclass(frozen=True)
class Run:
    """Rows for one call of a program: neighbours, with as many new tokens each.

    Attributes:
        index: which of the rows that were asked for, in the order of their places.
        places: where they lie.
        slots: where the inputs lie that they read, each read by as many rows; none without inputs.
        new: how many new tokens each row has.

    """

    index: tuple[int, ...]
    places: range
    slots: range
    new: int

    @property
    def rows_each(self) -> int:
        """How many rows read one input."""
        return len(self.places) // max(len(self.slots), 1)

    def split(self, size: int) -> Iterator["Run"]:
        """Yield runs of `size` rows, which divides `rows_each` or is a multiple of it."""
        each = self.rows_each
        for i in range(0, len(self.places), size):
            slots = self.slots[i // each : -(-(i + size) // each)]
            yield Run(self.index[i : i + size], self.places[i : i + size], slots, self.new)


@dataclass
class Plan:
    """How rows that were asked for are served.

    Attributes:
        rows: as they were asked for.
        reads: which input each row of the cache reads.
        runs: calls that serve them.
        places: of the rows, in their order; a slice where they lie in this order.
        bound: what a runtime keeps for another call with the same plan.

    """

    rows: Sequence[int]
    reads: tuple[int, ...]
    runs: list[Run]
    places: slice | list[int]
    bound: Any = None

    def in_order(self, logits: Sequence[Float32]) -> Float32:
        """Return the runs' logits in the order of the rows."""
        if len(logits) == 1 and isinstance(self.places, slice):
            return logits[0]
        ordered = np.empty((len(self.rows), *logits[0].shape[1:]), np.float32)
        for run, logits_rpv in zip(self.runs, logits, strict=True):
            ordered[list(run.index)] = logits_rpv
        return ordered


class Slots:
    """Encoded inputs side by side: arrays [slots, ...], such as keys [slots, heads, t, d].

    They have as many positions as the longest input needs. What the program reads of a shorter one
    it knows by its length, which is one of these arrays.
    """

    def __init__(self, count: int, make: Make) -> None:
        self.places = list(range(count))
        self.parts: list[Array] = []
        self._make = make
        # Shapes of what lies in each slot.
        self._shapes: dict[int, list[tuple[int, ...]]] = {}

    def fill(self, slots: Sequence[int], parts: Sequence[Array]) -> bool:
        """Put arrays [len(slots), ...] into slots; tell whether they lie in other memory now.

        Arrays that fill every slot become the memory themselves.
        """
        shapes = [tuple(part.shape[1:]) for part in parts]
        self._shapes |= dict.fromkeys(slots, shapes)
        if len(slots) == len(self.places):
            for place, slot in enumerate(slots):
                self.places[slot] = place
            self.parts = list(parts)
            return True
        grown = self._fit(parts)
        for own, part in zip(self.parts, parts, strict=True):
            inside = tuple(map(slice, part.shape[1:]))
            for slot, values in zip(slots, part, strict=True):
                own[self.places[slot], *inside] = values
        return grown

    def move(self, places: list[int]) -> None:
        """Give slots other places."""
        moved = [slot for slot in self._shapes if places[slot] != self.places[slot]]
        targets, sources = [places[slot] for slot in moved], [self.places[slot] for slot in moved]
        if moved:
            for part in self.parts:
                part[targets] = part[sources]
        self.places = places

    def _fit(self, parts: Sequence[Array]) -> bool:
        """Make arrays as large as the largest input needs; smaller where half was too much."""
        largest = [
            tuple(max(sizes) for sizes in zip(*shapes, strict=True))
            for shapes in zip(*self._shapes.values(), strict=True)
        ]
        if self.parts and not any(
            size < wanted or size > 2 * wanted
            for part, shape in zip(self.parts, largest, strict=True)
            for size, wanted in zip(part.shape[1:], shape, strict=True)
        ):
            return False
        old, self.parts = self.parts, []
        for i, (part, shape) in enumerate(zip(parts, largest, strict=True)):
            # Zeros: what no length reaches is multiplied by weights of zero, and may be no NaN.
            made = self._make((len(self.places), *shape), part.dtype)
            if old:
                both = tuple(map(slice, map(min, old[i].shape, made.shape)))
                made[both] = old[i][both]
            self.parts.append(made)
        return True


class Memory:
    """The arrays of a cache, shared by all its handles, and where its rows lie.

    Attributes:
        cells: key and value of each layer in the program's order, each [rows, ., s, ...].
        slots: of encoded inputs.
        places: of the rows.
        bound: what a runtime made over these arrays; emptied when they are replaced.

    """

    def __init__(self, layers: Sequence[Layer], rows: int, slots: Slots, make: Make) -> None:
        # Alike caches lie in one array [n, rows, ., s, ...], which is copied at once.
        self._blocks = {
            layer: make((count, rows, *layer.shape), layer.dtype)
            for layer, count in Counter(layers).items()
        }
        parts = {layer: iter(block) for layer, block in self._blocks.items()}
        self.cells: list[Array] = [next(parts[layer]) for layer in layers]
        self._is_ring = [layer.is_ring for layer in layers]
        self.slots = slots
        self.places = list(range(rows))
        self.bound: dict[Any, Any] = {}
        self.plan: Plan | None = None
        self.arranged: tuple[int, ...] | None = None

    def views(self, run: Run) -> tuple[list[Array], list[Array]]:
        """Return a run's part of every cell, and of every array of the inputs that it reads."""
        key = ("views", run.places, run.slots)
        if key not in self.bound:
            rows = slice(run.places.start, run.places.stop)
            slots = slice(run.slots.start, run.slots.stop)
            self.bound[key] = (
                [cell[rows] for cell in self.cells],
                [part[slots] for part in self.slots.parts],
            )
        views: tuple[list[Array], list[Array]] = self.bound[key]
        return views

    def fill(self, slots: Sequence[int], parts: Sequence[Array]) -> None:
        """Put encoded inputs into slots."""
        if self.slots.fill(slots, parts):
            self.bound.clear()
            self.plan = self.arranged = None

    def copy(self, moves: Sequence[Move]) -> None:
        """Copy parts of rows to others, all at once."""
        targets = [self.places[move.target] for move in moves]
        parents = [self.places[move.parent] for move in moves]
        first, stop = min(move.first for move in moves), max(move.stop for move in moves)
        self._copy(targets, parents, slice(first, stop))

    def adopt(
        self, rows: Sequence[int], other: Self, parents: Sequence[int], lengths: Int32
    ) -> None:
        """Copy rows of another memory, of these lengths."""
        targets = [self.places[row] for row in rows]
        sources = [other.places[parent] for parent in parents]
        held = int(lengths.max(initial=0))
        for new, old, is_ring in zip(self.cells, other.cells, self._is_ring, strict=True):
            if not is_ring or new.shape[2] == old.shape[2]:
                span = slice(min(held, new.shape[2], old.shape[2]))
                new[targets, :, span] = old[sources, :, span]
                continue
            for target, source, length in zip(targets, sources, lengths.tolist(), strict=True):
                positions = np.arange(max(length - new.shape[2], length - old.shape[2], 0), length)
                to, of = ((positions % cell.shape[2]).tolist() for cell in (new, old))
                new[target, :, to] = old[source, :, of]

    def move(self, places: list[int], lengths: Int32) -> None:
        """Give rows other places."""
        moved = [row for row, place in enumerate(places) if place != self.places[row]]
        held = [row for row in moved if lengths[row]]
        if held:
            stop = max(int(lengths[row]) for row in held)
            targets, sources = [places[row] for row in held], [self.places[row] for row in held]
            self._copy(targets, sources, slice(stop))
        self.places = places
        self.plan = None

    def _copy(self, targets: list[int], sources: list[int], span: slice) -> None:
        for layer, block in self._blocks.items():
            # Where a position lies in a ring depends on the row's past: it is copied whole.
            part = slice(None) if layer.is_ring else span
            block[:, targets, :, part] = block[:, sources, :, part]


@dataclass(frozen=True)
class Cache:
    """A handle: what the rows of a memory hold, and which input each reads."""

    memory: Memory = field(repr=False)
    history: History = field(repr=False)
    reads: tuple[int, ...]

    @property
    def lengths(self) -> Int32:
        """[rows]: number of positions that each row has seen."""
        return self.history.lengths

    @property
    def capacity(self) -> int:
        """Longest sequence that a row can hold."""
        return self.history.capacity

    def append(self, rows: Sequence[int], tokens: Sequence[Int64]) -> Self:
        """Return the handle after rows took tokens; KvcastError if they don't fit."""
        return replace(self, history=self.history.append(rows, tokens))

    def reset(self, rows: Sequence[int], inputs: Sequence[int] | None) -> Self:
        """Return the handle after rows were emptied, and read other inputs or none."""
        changed = dict(zip(rows, inputs or [_NONE] * len(rows), strict=True))
        reads = tuple(changed.get(row, slot) for row, slot in enumerate(self.reads))
        return replace(self, history=self.history.reset(rows), reads=self._same(reads))

    def reorder(self, parents: Sequence[int]) -> Self:
        """Return the handle whose row i continues row `parents[i]`, and copy what differs."""
        reads = tuple(self.reads[parent] for parent in parents)
        unrelated = [row for row, slot in enumerate(reads) if slot != self.reads[row]]
        history, moves = self.history.reorder(parents, unrelated)
        if moves:
            self.memory.copy(moves)
        return replace(self, history=history, reads=self._same(reads))

    def adopt(self, rows: Sequence[int], other: Self, parents: Sequence[int]) -> Self:
        """Return the handle whose row `rows[i]` holds what row `parents[i]` of another holds."""
        history = self.history.adopt(rows, other.history, parents)
        self.memory.adopt(rows, other.memory, parents, other.lengths[list(parents)])
        return replace(self, history=history)

    def fill(self, slots: Sequence[int], parts: Sequence[Array]) -> None:
        """Put encoded inputs, arrays [len(slots), ...], into slots that no row reads."""
        if read := set(slots).intersection(self.reads):
            raise ValueError(
                f"input {min(read)} is still read by row {self.reads.index(min(read))}"
            )
        self.memory.fill(slots, parts)

    def input_of(self, row: int) -> int:
        """Return the slot of the input that a row reads."""
        if self.reads[row] == _NONE:
            raise ValueError(f"row {row} reads no input: reset it to one first")
        return self.reads[row]

    def plan(self, rows: Sequence[int], tokens: Sequence[Int64]) -> Plan:
        """Say in which calls to give rows their new tokens; rows may be moved for it.

        The plan of a step is kept until other rows take part or they read other inputs.
        """
        new = [len(chunk) for chunk in tokens]
        is_step = max(new) == 1
        plan = self.memory.plan
        if is_step and plan is not None and plan.rows == rows and plan.reads is self.reads:
            return plan
        if self.memory.slots.parts:
            self._bring_readers_together()
        runs = self._runs(rows, new)
        if is_step and len(runs) > 1 and not self.memory.slots.parts:
            self.memory.move(_ranged(self.memory.places, [rows]), self.lengths)
            runs = self._runs(rows, new)
        plan = Plan(rows, self.reads, runs, self._places(rows))
        if is_step:
            self.memory.plan = plan
        return plan

    def _same(self, reads: tuple[int, ...]) -> tuple[int, ...]:
        """Return the very same object for what is equal, by which plans are known."""
        return self.reads if reads == self.reads else reads

    def _places(self, rows: Sequence[int]) -> slice | list[int]:
        places = [self.memory.places[row] for row in rows]
        in_order = places == list(range(places[0], places[0] + len(places)))
        return slice(places[0], places[-1] + 1) if in_order else places

    def _slot_place(self, row: int) -> int:
        slots = self.memory.slots
        return slots.places[self.input_of(row)] if slots.parts else 0

    def _runs(self, rows: Sequence[int], new: Sequence[int]) -> list[Run]:
        """Cut rows, in the order of their places, where they are no neighbours or not alike."""
        places = self.memory.places
        # Rows side by side that read one input, and then such groups side by side.
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
            if runs and _follows(runs[-1], run):
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

    def _bring_readers_together(self) -> None:
        """Let as few calls as possible serve all rows that read inputs."""
        memory = self.memory
        if memory.arranged is self.reads:
            return
        memory.arranged = self.reads
        readers: dict[int, list[int]] = {}
        for row, slot in enumerate(self.reads):
            if slot != _NONE:
                readers.setdefault(slot, []).append(row)
        # Inputs of as many rows each are served together, wherever those are.
        sizes: dict[int, list[int]] = {}
        for slot in sorted(readers, key=lambda slot: memory.slots.places[slot]):
            sizes.setdefault(len(readers[slot]), []).append(slot)
        rows = [row for several in readers.values() for row in several]
        if len(self._runs(rows, [1] * len(rows))) <= len(sizes):
            return
        alike = list(sizes.values())
        if not all(_lie_together(memory.slots.places, slots) for slots in alike):
            memory.slots.move(_ranged(memory.slots.places, alike))
        order = sorted(readers, key=lambda slot: (len(readers[slot]), memory.slots.places[slot]))
        memory.move(_ranged(memory.places, [readers[slot] for slot in order]), self.lengths)
        memory.plan = None


def _follows(before: Run, run: Run) -> bool:
    return (
        before.places.stop == run.places.start
        and before.slots.stop == run.slots.start
        and before.rows_each == len(run.places)
        and before.new == run.new
    )


def _lie_together(places: Sequence[int], members: Sequence[int]) -> bool:
    taken = [places[member] for member in members]
    return max(taken) - min(taken) < len(taken)


def _ranged(places: Sequence[int], groups: Sequence[Sequence[int]]) -> list[int]:
    """Give each group a range, one after another from the first place on; return all places.

    Who lies within its group's range stays, and so do the others where nobody comes.
    """
    found: dict[int, int] = {}
    first = 0
    for group in groups:
        found |= _placed(places, group, range(first, first + len(group)))
        first += len(group)
    others = [member for member in range(len(places)) if member not in found]
    found |= _placed(places, others, range(first, len(places)))
    return [found[member] for member in range(len(places))]


def _placed(places: Sequence[int], members: Sequence[int], span: range) -> Mapping[int, int]:
    staying = {member: places[member] for member in members if places[member] in span}
    free = iter(sorted(set(span) - set(staying.values())))
    return {member: staying[member] if member in staying else next(free) for member in members}


class CachedRuntime(ABC, RuntimeOf[Cache]):
    """All of a runtime but its memory and its programs.

    Attributes:
        history: what a row's keys and values follow from.
        longest: most positions of a row, whatever is asked for; None for no limit.

    """

    history: type[History] = History
    longest: int | None = None

    @abstractmethod
    def layers(self, capacity: int) -> Sequence[Layer]:
        """Describe key and value of every layer in the program's order."""

    @abstractmethod
    def make(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Make an array of zeros."""

    @abstractmethod
    def run(
        self, tokens: Sequence[Int64], cache: Cache, rows: list[int], positions: Sequence[int]
    ) -> Float32:
        """Write new tokens of rows into the cache's memory; return logits as `decode` does.

        `cache` is the handle from before.
        """

    def slots(self, count: int) -> Slots:
        """Make memory for encoded inputs."""
        return Slots(count, self.make)

    @override
    def new_cache(self, rows: int, capacity: int, inputs: int = 0) -> Cache:
        if self.longest is not None:
            capacity = min(capacity, self.longest)
        memory = Memory(self.layers(capacity), rows, self.slots(inputs), self.make)
        return Cache(memory, self.history.empty(rows, capacity), (_NONE,) * rows)

    @override
    def decode(
        self,
        tokens: Sequence[Int64],
        cache: Cache,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, Cache]:
        taking_part = list(range(len(cache.reads)) if rows is None else rows)
        grown = cache.append(taking_part, tokens)
        return self.run(tokens, cache, taking_part, positions), grown

    @override
    def reorder(self, cache: Cache, parents: Sequence[int]) -> Cache:
        return cache.reorder(parents)

    @override
    def fork(self, cache: Cache, parents: Sequence[int], capacity: int | None = None) -> Cache:
        forked = self.new_cache(len(parents), capacity or cache.capacity)
        return forked.adopt(range(len(parents)), cache, parents)

    @override
    def adopt(
        self, cache: Cache, rows: Sequence[int], other: Cache, parents: Sequence[int]
    ) -> Cache:
        return cache.adopt(rows, other, parents)

    @override
    def reset(
        self, cache: Cache, rows: Sequence[int], inputs: Sequence[int] | None = None
    ) -> Cache:
        return cache.reset(rows, inputs)
