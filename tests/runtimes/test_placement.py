"""Where rows and inputs lie: found by a runtime without a model, which keeps what it is given.

A row's cells hold its tokens, and an input's array says which input it is. What a run reads through
the cache's views is held against what rows should have seen.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.runtimes.base import Float32, Int64
from kvcast.runtimes.cache import CachedRuntime, CacheHandle
from kvcast.runtimes.memory import Layer, TurningRing

CAPACITY = 24
RING = TurningRing(CAPACITY, CAPACITY)


class Keeper(CachedRuntime):
    """Its logits are, for each row, its input's number and then all tokens that it holds."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    @override
    def layers(self, capacity: int) -> Sequence[Layer]:
        # A ring that never turns lies with the linear ones and is copied whole.
        return [Layer((1, capacity, 1), "int64"), Layer((1, CAPACITY, 1), "int64", RING)]

    @override
    def make(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        return np.zeros(shape, dtype)

    def encode(
        self, cache: CacheHandle, slots: Sequence[int], *source: NDArray[Any]
    ) -> CacheHandle:
        cache.vacate(slots)
        cache.memory.fill(slots, source)
        return cache

    @override
    def run(
        self, tokens: Sequence[Int64], cache: CacheHandle, rows: list[int], positions: Sequence[int]
    ) -> Float32:
        plan = cache.plan(rows, tokens)
        self.calls.append(len(plan.runs))
        logits = []
        for run in plan.runs:
            cells, encoded = cache.memory.views(run.places, run.slots)
            assert len(run.index) % max(len(run.slots), 1) == 0
            part = np.full((len(run.index), 1, CAPACITY + 1), -1, np.float32)
            for i, index in enumerate(run.index):
                assert len(tokens[index]) == run.new
                first = int(cache.lengths[rows[index]])
                for cell in cells:
                    cell[i, 0, first : first + run.new, 0] = tokens[index]
                if encoded:
                    keys, lengths = encoded
                    part[i, 0, 0] = keys[i // run.rows_each, 0, : lengths[i // run.rows_each]].sum()
                held = {tuple(cell[i, 0, : first + run.new, 0].tolist()) for cell in cells}
                assert len(held) == 1, "a ring and a linear cache differ"
                part[i, 0, 1 : 1 + first + run.new] = held.pop()
            logits.append(part)
        return plan.in_order(logits)


def inputs(*numbers: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Inputs of different lengths [n, 1, t, 1], padded with what nobody is to read."""
    lengths = np.array([number % 5 + 1 for number in numbers])
    keys = np.full((len(numbers), 1, lengths.max(), 1), 1000.0)
    for key, number, length in zip(keys, numbers, lengths, strict=True):
        key[:, :length] = number / length
    return keys, lengths


def seen(logits: Float32) -> list[list[int]]:
    return [[round(float(x)) for x in row if x >= 0] for row in logits[:, 0]]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rows_read_their_own_past_and_input_wherever_they_lie(data: st.DataObject) -> None:
    rows, slots = 6, 4
    runtime = Keeper()
    cache = runtime.new_cache(rows, CAPACITY, inputs=slots)
    reads: list[int | None] = [None] * rows
    held: dict[int, int] = {}
    histories: list[list[int]] = [[] for _ in range(rows)]
    number = 0
    for _ in range(data.draw(st.integers(1, 12))):
        free = [slot for slot in range(slots) if slot not in reads]
        if free:
            taken = data.draw(st.lists(st.sampled_from(free), min_size=1, unique=True))
            numbers = [number + i + 1 for i in range(len(taken))]
            number += len(taken)
            cache = runtime.encode(cache, taken, *inputs(*numbers))
            held |= dict(zip(taken, numbers, strict=True))
        for row in data.draw(st.sets(st.integers(0, rows - 1))):
            slot = data.draw(st.none() | st.sampled_from(sorted(held)))
            cache = runtime.reset(cache, [row], None if slot is None else [slot])
            reads[row], histories[row] = slot, []
        if data.draw(st.booleans()):
            parents = data.draw(st.lists(st.integers(0, rows - 1), min_size=rows, max_size=rows))
            cache = runtime.reorder(cache, parents)
            reads = [reads[parent] for parent in parents]
            histories = [list(histories[parent]) for parent in parents]
        for _ in range(data.draw(st.integers(1, 2))):
            reading = [row for row, slot in enumerate(reads) if slot is not None]
            if not reading or max(map(len, histories)) + 3 > CAPACITY:
                break
            some = sorted(data.draw(st.sets(st.sampled_from(reading), min_size=1)))
            chosen = reading if data.draw(st.booleans()) else some
            most = data.draw(st.sampled_from([1, 1, 3]))
            tokens = [
                np.array(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=most)))
                for _ in chosen
            ]
            logits, cache = runtime.decode(tokens, cache, chosen)
            for row, new in zip(chosen, tokens, strict=True):
                histories[row] += new.tolist()
            expected = [
                [held[slot], *histories[row]] for row in chosen if (slot := reads[row]) is not None
            ]
            assert seen(logits) == expected
            if chosen == reading and most == 1:
                sizes = {reads.count(slot) for slot in reads if slot is not None}
                assert runtime.calls[-1] == len(sizes)


def served(runtime: Keeper, cache: CacheHandle, rows: list[int]) -> CacheHandle:
    """One step of rows."""
    return runtime.decode([np.array([1])] * len(rows), cache, rows)[1]


def places_after(
    runtime: Keeper, cache: CacheHandle, rows: list[int]
) -> tuple[CacheHandle, list[int]]:
    cache = served(runtime, cache, rows)
    return cache, list(cache.memory.places)


def test_nothing_is_moved_while_the_same_rows_go_on() -> None:
    runtime = Keeper()
    cache = runtime.new_cache(6, CAPACITY, inputs=3)
    cache = runtime.encode(cache, range(3), *inputs(1, 2, 3))
    cache = runtime.reset(cache, range(6), [0, 1, 2, 0, 1, 2])
    cache, places = places_after(runtime, cache, list(range(6)))
    version = cache.memory.version
    for rows in (list(range(6)), [0, 3], [1, 2, 4, 5], list(range(6))):
        cache, again = places_after(runtime, cache, rows)
        assert again == places
    cache = runtime.reorder(cache, [3, 1, 2, 0, 4, 5])
    cache, again = places_after(runtime, cache, list(range(6)))
    assert (again, cache.memory.version) == (places, version)


def test_one_that_leaves_moves_one_other() -> None:
    runtime = Keeper()
    cache = runtime.new_cache(8, CAPACITY, inputs=8)
    cache = runtime.encode(cache, range(8), *inputs(*range(1, 9)))
    cache = served(runtime, runtime.reset(cache, range(8), range(8)), list(range(8)))
    cache = runtime.reset(cache, [2])
    cache = served(runtime, cache, [0, 1, 3, 4, 5, 6, 7])
    assert runtime.calls == [1, 1]
    assert cache.memory.places == [0, 1, 7, 3, 4, 5, 6, 2]
    assert cache.memory.slots.places == [0, 1, 7, 3, 4, 5, 6, 2]
    # A newcomer lies after the others, and nothing is moved for it.
    cache = runtime.encode(cache, [2], *inputs(9))
    cache = served(runtime, runtime.reset(cache, [2], [2]), list(range(8)))
    assert runtime.calls == [1, 1, 1]
    assert cache.memory.places == [0, 1, 7, 3, 4, 5, 6, 2]


def test_a_newcomer_takes_the_place_of_one_that_left_and_nothing_is_moved() -> None:
    """Beams: the first row reads the prompt, then the others continue it."""
    runtime = Keeper()
    cache = runtime.encode(runtime.new_cache(6, CAPACITY, inputs=3), range(3), *inputs(1, 2, 3))
    cache = served(runtime, runtime.reset(cache, range(6), [0, 0, 1, 1, 2, 2]), list(range(6)))
    version, moved = cache.memory.version, cache.memory.slots.places.copy()
    cache = runtime.encode(runtime.reset(cache, [2, 3]), [1], *inputs(4))
    cache = served(runtime, runtime.reset(cache, [2], [1]), [2])
    cache = runtime.reorder(cache, [0, 1, 2, 2, 4, 5])
    cache = served(runtime, cache, list(range(6)))
    assert (cache.memory.version, cache.memory.slots.places) == (version, moved)
    assert runtime.calls == [1, 1, 1]


def test_rows_of_a_decoder_only_model_step_together_and_prompts_move_none() -> None:
    runtime = Keeper()
    cache = served(runtime, runtime.new_cache(5, CAPACITY), list(range(5)))
    cache = runtime.reset(cache, [1])
    cache = served(runtime, cache, [0, 2, 3, 4])
    places = list(cache.memory.places)
    for _ in range(2):
        _, cache = runtime.decode([np.array([1, 2])], cache, [1])
        cache = served(runtime, cache, [0, 2, 3, 4])
    cache = served(runtime, cache, list(range(5)))
    assert (set(runtime.calls), cache.memory.places) == ({1}, places)


def test_inputs_that_fill_every_slot_are_not_copied() -> None:
    runtime = Keeper()
    cache = runtime.new_cache(2, CAPACITY, inputs=2)
    for numbers in ((1, 2), (3, 4)):
        parts = inputs(*numbers)
        cache = runtime.reset(cache, [0, 1])
        cache = runtime.encode(cache, [1, 0], *parts)
        assert [part is own for part, own in zip(parts, cache.memory.slots.parts, strict=True)] == [
            True
        ] * 2
        cache = runtime.reset(cache, [0, 1], [0, 1])
        logits, cache = runtime.decode([np.array([7]), np.array([8])], cache)
        assert seen(logits) == [[numbers[1], 7], [numbers[0], 8]]


def test_positions_of_inputs_grow_with_a_longer_one_and_shrink_once_it_is_gone() -> None:
    runtime = Keeper()
    cache = runtime.new_cache(2, CAPACITY, inputs=3)
    sizes = []
    for slot, number in ((0, 1), (1, 4), (1, 2), (1, 0)):
        cache = runtime.encode(cache, [slot], *inputs(number))
        sizes.append(cache.memory.slots.parts[0].shape[2])
    # 5 positions are kept for 3: they would have to be made anew before long.
    assert sizes == [2, 5, 5, 2]


def test_a_ring_is_adopted_by_one_of_another_size() -> None:
    class Rings(Keeper):
        def layers(self, capacity: int) -> Sequence[Layer]:
            slots = min(7, capacity)
            return [Layer((1, slots, 1), "int64", TurningRing(slots, slots))]

    runtime = Rings()
    small, large = runtime.new_cache(1, 5), runtime.new_cache(1, 20)
    (cell,) = small.memory.cells
    cell[0, 0, :, 0] = [10, 11, 12, 13, 14]
    small = small.append([0], [np.arange(10, 15)])
    large = runtime.adopt(large, [0], small, [0])
    assert large.memory.cells[0][0, 0, :, 0].tolist() == [10, 11, 12, 13, 14, 0, 0]
    large = large.append([0], [np.arange(15, 20)])
    large.memory.cells[0][0, 0, :, 0] = [17, 18, 19, 13, 14, 15, 16]
    wide = runtime.adopt(runtime.new_cache(2, 12), [1], large, [0])
    assert wide.memory.cells[0][1, 0, :, 0].tolist() == [17, 18, 19, 13, 14, 15, 16]
    assert wide.lengths.tolist() == [0, 10]


def test_rows_without_an_input_and_inputs_with_readers_are_refused() -> None:
    runtime = Keeper()
    cache = runtime.encode(runtime.new_cache(2, 8, inputs=1), [0], *inputs(1))
    cache = runtime.reset(cache, [0], [0])
    with pytest.raises(ValueError, match="input 0 is still read by row 0"):
        runtime.encode(cache, [0], *inputs(2))
    with pytest.raises(ValueError, match="row 1 reads no input"):
        runtime.decode([np.array([1])] * 2, cache)
