"""Memory of a cache: the arrays of rows and encoded inputs, and the place of each.

All copies happen here, for NumPy arrays and torch tensors alike, and only this module treats rings
and linear caches differently.

Letters in shapes: n caches of one shape, c slots of a cache, t positions of an input.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
from typing_extensions import override

from kvcast.families.programs import CacheLayers
from kvcast.runtimes.base import Int32
from kvcast.runtimes.history import Moves

Array: TypeAlias = Any
"""A NumPy array or a torch tensor; only operations that both support are used."""
Make: TypeAlias = Callable[[tuple[int, ...], Any], Array]
"""Returns an array of zeros of a shape and a dtype."""


class Ring(Protocol):
    """A ring buffer: holds only a row's last positions, at least a window of them."""

    def shortest(self, reached: int) -> int:
        """Return the least length that a row can be cut to, which reached so many positions."""

    def slot(self, position: int, reached: int) -> int:
        """Return the slot of a position that a row still holds."""


@dataclass(frozen=True)
class TurningRing(Ring):
    """Position p is in slot p mod `slots`; a query sees `window` positions, its own included."""

    window: int
    slots: int

    @override
    def shortest(self, reached: int) -> int:
        # The next query sees the positions that were not overwritten: from reached - slots on.
        return 0 if reached <= self.slots else reached - self.slots + self.window - 1

    @override
    def slot(self, position: int, reached: int) -> int:
        return position % self.slots


@dataclass(frozen=True)
class CompactedRing(Ring):
    """The last positions are in order from slot 0, and are moved there when `slots` are full.

    The contract of `sliding_window_cache` in ONNX Runtime's `GroupQueryAttention`.
    """

    window: int
    slots: int

    @override
    def shortest(self, reached: int) -> int:
        if reached <= self.slots:
            return 0
        at_a_time = self.slots - self.window + 1
        return self.slots + (reached - self.slots - 1) // at_a_time * at_a_time + 1

    @override
    def slot(self, position: int, reached: int) -> int:
        return (
            position if reached <= self.slots else position - self.shortest(reached) + self.window
        )


@dataclass(frozen=True)
class Rewritten(Ring):
    """A state, rewritten by every position: a row cannot be truncated."""

    @override
    def shortest(self, reached: int) -> int:
        return reached

    @override
    def slot(self, position: int, reached: int) -> int:
        raise TypeError("a state has no positions")


@dataclass(frozen=True)
class Layer:
    """The keys or the values of one layer, or the inputs of its convolution."""

    shape: tuple[int, ...]  # of one row, with positions on axis 1
    dtype: Any
    # None for a linear cache; a `TurningRing` if its slots depend on the capacity
    ring: Ring | None = None
    has_snapshots: bool = False


_ON_TRIAL = 16  # inputs that a convolution keeps to remove drafts


def recurrent_layers(run: CacheLayers, dtype: Any) -> list[Layer] | None:
    """Describe the tensors of a recurrent layer; None for a layer with keys and values."""
    if run.kind == "inputs":
        return [_inputs(run.capacity, run.head_dim, dtype, _ON_TRIAL)]
    if run.kind == "state":
        matrix = Layer((run.heads, run.capacity, run.head_dim), dtype, Rewritten(), True)
        if not run.length:
            return [matrix]
        # The state cannot drop a position, so no extra inputs are kept.
        return [_inputs(run.length, run.channels, dtype, 1), matrix]
    return None


def _inputs(length: int, channels: int, dtype: Any, on_trial: int) -> Layer:
    slots = length - 1 + on_trial
    return Layer((1, slots, channels), dtype, TurningRing(length, slots), has_snapshots=True)


class Slots:
    """Encoded inputs in arrays [slots, ...] of the longest; one array has their lengths."""

    def __init__(self, count: int, make: Make) -> None:
        self.places = list(range(count))
        self.parts: list[Array] = []
        self._make = make
        # Positions in each slot.
        self._shapes: dict[int, list[tuple[int, ...]]] = {}

    def vacate(self, slots: Sequence[int]) -> bool:
        """Empty slots; return whether no input is left, so that memory was freed."""
        for slot in slots:
            self._shapes.pop(slot, None)
        if self._shapes:
            return False
        self.parts = []
        return True

    def fill(self, slots: Sequence[int], parts: Sequence[Array]) -> bool:
        """Put arrays [len(slots), ...] into empty slots; return whether arrays were replaced.

        Arrays that fill all slots are adopted without a copy.
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

    def room(self, slots: Sequence[int], shapes: list[tuple[int, ...]]) -> list[Array] | None:
        """Return views [len(slots), ...] of empty slots to write inputs of these shapes into.

        None without such an array, or if the slots are not adjacent: use `fill`.
        """
        first = self.places[slots[0]]
        beside = [self.places[slot] for slot in slots] == list(range(first, first + len(slots)))
        if not beside or [tuple(part.shape[1:]) for part in self.parts] != shapes:
            return None
        self._shapes |= dict.fromkeys(slots, shapes)
        return [part[first : first + len(slots)] for part in self.parts]

    def move(self, places: list[int]) -> None:
        moved = [slot for slot in self._shapes if places[slot] != self.places[slot]]
        targets, sources = [places[slot] for slot in moved], [self.places[slot] for slot in moved]
        if moved:
            for part in self.parts:
                part[targets] = part[sources]
        self.places = places

    def _fit(self, parts: Sequence[Array]) -> bool:
        """Grow arrays to the largest input; shrink them if they are more than twice that size."""
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
            # Zeros, since padding is multiplied by weights of zero: it must not be NaN.
            made = self._make((len(self.places), *shape), part.dtype)
            if old:
                both = tuple(map(slice, map(min, old[i].shape, made.shape)))
                made[both] = old[i][both]
            self.parts.append(made)
        return True


class LastingSlots(Slots):
    """Slots whose arrays are kept, so that plans with their addresses stay valid."""

    @override
    def vacate(self, slots: Sequence[int]) -> bool:
        for slot in slots:
            self._shapes.pop(slot, None)
        return False


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A copy of a row's rings and states when it held `length` positions; never changed."""

    length: int
    shortest: int  # the least length that the row could be truncated to then
    cells: Sequence[Array]  # [1, ...] of each layer that is a ring or a state, in order


class Memory:
    """The arrays of a cache, shared by all its handles, and the places of its rows.

    Attributes:
        cells: tensors of each layer in the program's order, each [rows, ., c, ...].
        bound: views and bindings of these arrays; cleared when the arrays are replaced.
        has_snapshots: False with a ring of a long window.

    """

    def __init__(self, layers: Sequence[Layer], rows: int, slots: Slots, make: Make) -> None:
        # Caches of one shape are one array [n, rows, ., c, ...], so that one operation copies all.
        self._blocks = {
            layer: make((count, rows, *layer.shape), layer.dtype)
            for layer, count in Counter(layers).items()
        }
        parts = {layer: iter(block) for layer, block in self._blocks.items()}
        self.cells: list[Array] = [next(parts[layer]) for layer in layers]
        self._layers = list(layers)
        self._is_ring = [layer.ring is not None for layer in layers]
        self._rings = {layer.ring for layer in layers if layer.ring is not None}
        self.has_snapshots = bool(self._rings) and all(
            layer.has_snapshots for layer in layers if layer.ring is not None
        )
        self.slots = slots
        self.places = list(range(rows))
        self.bound: dict[Any, Any] = {}
        self.version = 0

    def views(self, places: range, slots: range) -> tuple[list[Array], list[Array]]:
        key = ("views", places, slots)
        if key not in self.bound:
            rows, inputs = (slice(part.start, part.stop) for part in (places, slots))
            self.bound[key] = (
                [cell[rows] for cell in self.cells],
                [part[inputs] for part in self.slots.parts],
            )
        views: tuple[list[Array], list[Array]] = self.bound[key]
        return views

    def held(self, row: int, tensor: int, positions: range, reached: int) -> Array:
        """Return a copy of a row's positions in a tensor, [., n, ...]; a state is copied whole.

        `tensor` is its index in the program's order; `reached` the number of positions seen.
        """
        cell, ring = self.cells[tensor][self.places[row]], self._layers[tensor].ring
        if isinstance(ring, Rewritten):
            return cell + 0
        if ring is None:
            return cell[:, positions.start : positions.stop] + 0
        return cell[:, [ring.slot(position, reached) for position in positions]]

    @property
    def has_rings(self) -> bool:
        return bool(self._rings)

    def shortest(self, reached: int) -> int:
        """Return the least length that a row can be cut to, which reached so many positions."""
        return max((ring.shortest(reached) for ring in self._rings), default=0)

    def take_snapshot(self, row: int, length: int) -> Snapshot:
        place = self.places[row]
        return Snapshot(length, self.shortest(length), [cell[[place]] for cell in self._turning])

    def restore(self, row: int, snapshot: Snapshot) -> None:
        place = self.places[row]
        for cell, kept in zip(self._turning, snapshot.cells, strict=True):
            cell[place] = kept[0]

    @property
    def _turning(self) -> list[Array]:
        return [cell for cell, ring in zip(self.cells, self._is_ring, strict=True) if ring]

    def vacate(self, slots: Sequence[int]) -> None:
        if self.slots.vacate(slots):
            self.bound.clear()

    def fill(self, slots: Sequence[int], parts: Sequence[Array]) -> None:
        if self.slots.fill(slots, parts):
            self.bound.clear()

    def copy(self, moves: Sequence[Moves]) -> None:
        self._copy(
            [
                (
                    [self.places[row] for row in each.targets],
                    [self.places[row] for row in each.parents],
                    slice(each.first, each.stop),
                )
                for each in moves
            ]
        )

    def adopt(
        self, rows: Sequence[int], other: Self, parents: Sequence[int], lengths: Int32
    ) -> None:
        targets = [self.places[row] for row in rows]
        sources = [other.places[parent] for parent in parents]
        held = int(lengths.max(initial=0))
        for new, old, is_ring in zip(self.cells, other.cells, self._is_ring, strict=True):
            if not is_ring or new.shape[2] == old.shape[2]:
                span = slice(None if is_ring else min(held, new.shape[2], old.shape[2]))
                new[targets, :, span] = old[sources, :, span]
                continue
            for target, source, length in zip(targets, sources, lengths.tolist(), strict=True):
                positions = np.arange(max(length - new.shape[2], length - old.shape[2], 0), length)
                to, of = ((positions % cell.shape[2]).tolist() for cell in (new, old))
                new[target, :, to] = old[source, :, of]

    def move(self, places: list[int], lengths: Int32) -> None:
        moved = [row for row, place in enumerate(places) if place != self.places[row]]
        held = [row for row in moved if lengths[row]]
        if held:
            stop = max(int(lengths[row]) for row in held)
            targets, sources = [places[row] for row in held], [self.places[row] for row in held]
            self._copy([(targets, sources, slice(stop))])
        self.places = places
        self.version += 1

    def _copy(self, copies: Sequence[tuple[list[int], list[int], slice]]) -> None:
        for layer, block in self._blocks.items():
            # The slot of a position in a ring depends on the row's past, so a ring is copied whole.
            is_ring = layer.ring is not None
            parts = [slice(None) if is_ring else span for _, _, span in copies]
            taken = [
                block[:, sources, :, part]
                for (_, sources, _), part in zip(copies, parts, strict=True)
            ]
            for (targets, _, _), part, rows in zip(copies, parts, taken, strict=True):
                block[:, targets, :, part] = rows
