"""Memory of a cache: arrays of rows and of encoded inputs, and where each of them lies.

All copies are made here, over NumPy arrays or torch tensors alike, and so is what sets a ring apart
from a linear cache. Knows nothing of what rows hold, of who reads which input, or of programs.

Letters in shapes: n caches, s positions of a cache.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np

from kvcast.runtimes.base import Int32
from kvcast.runtimes.history import Move

Array: TypeAlias = Any
"""A NumPy array or a torch tensor, of which only what both do alike is used."""
Make: TypeAlias = Callable[[tuple[int, ...], Any], Array]
"""Makes an array of zeros from a shape and a dtype."""


@dataclass(frozen=True)
class Layer:
    """One cache of keys or values: the shape of a row's part, with positions on axis 1.

    A ring has as many slots whatever the capacity, or keeps position p in slot p mod slots.
    """

    shape: tuple[int, ...]
    dtype: Any
    is_ring: bool = False


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

    def vacate(self, slots: Sequence[int]) -> bool:
        """Forget the inputs in slots; tell whether none is left and all memory was freed."""
        for slot in slots:
            self._shapes.pop(slot, None)
        if self._shapes:
            return False
        self.parts = []
        return True

    def fill(self, slots: Sequence[int], parts: Sequence[Array]) -> bool:
        """Put arrays [len(slots), ...] into vacant slots; tell whether other memory is used now.

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
        version: grows whenever rows get other places.

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
        self.version = 0

    def views(self, places: range, slots: range) -> tuple[list[Array], list[Array]]:
        """Return the rows at some places of every cell, and some places of inputs' every array."""
        key = ("views", places, slots)
        if key not in self.bound:
            rows, inputs = (slice(part.start, part.stop) for part in (places, slots))
            self.bound[key] = (
                [cell[rows] for cell in self.cells],
                [part[inputs] for part in self.slots.parts],
            )
        views: tuple[list[Array], list[Array]] = self.bound[key]
        return views

    def vacate(self, slots: Sequence[int]) -> None:
        """Forget the encoded inputs in slots."""
        if self.slots.vacate(slots):
            self.bound.clear()

    def fill(self, slots: Sequence[int], parts: Sequence[Array]) -> None:
        """Put encoded inputs into vacant slots."""
        if self.slots.fill(slots, parts):
            self.bound.clear()

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
        self.version += 1

    def _copy(self, targets: list[int], sources: list[int], span: slice) -> None:
        for layer, block in self._blocks.items():
            # Where a position lies in a ring depends on the row's past: it is copied whole.
            part = slice(None) if layer.is_ring else span
            block[:, targets, :, part] = block[:, sources, :, part]
