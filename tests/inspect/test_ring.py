"""Ring arithmetic against its definition, and the worked example slot by slot, mask by mask."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvcast.spec.ring import (
    EMPTY,
    chunk_counts,
    keys_read,
    may_write_first,
    positions_held,
    slots,
    visible,
)

LENGTHS, WINDOW, CHUNK, NEW = (4, 1, 3), 3, 2, 5

# After every chunk and step the position in each slot of rows a, b and c, worked out by hand.
RING_OF_3 = [
    ([0, 1, -1], [0, -1, -1], [0, 1, -1]),
    ([3, 1, 2], [0, -1, -1], [0, 1, 2]),
    ([3, 4, 2], [0, 1, -1], [3, 1, 2]),
    ([3, 4, 5], [0, 1, 2], [3, 4, 2]),
    ([6, 4, 5], [3, 1, 2], [3, 4, 5]),
    ([6, 7, 5], [3, 4, 2], [6, 4, 5]),
    ([6, 7, 8], [3, 4, 5], [6, 7, 5]),
]
RING_OF_4 = [
    ([0, 1, -1, -1], [0, -1, -1, -1], [0, 1, -1, -1]),
    ([0, 1, 2, 3], [0, -1, -1, -1], [0, 1, 2, -1]),
    ([4, 1, 2, 3], [0, 1, -1, -1], [0, 1, 2, 3]),
    ([4, 5, 2, 3], [0, 1, 2, -1], [4, 1, 2, 3]),
    ([4, 5, 6, 3], [0, 1, 2, 3], [4, 5, 2, 3]),
    ([4, 5, 6, 7], [4, 1, 2, 3], [4, 5, 6, 3]),
    ([8, 5, 6, 7], [4, 5, 2, 3], [4, 5, 6, 7]),
]
COUNTS = [(2, 1, 2), (2, 0, 1), *[(1, 1, 1)] * NEW]


def full_mask(length: int, window: int) -> NDArray[np.bool_]:
    """The mask [length, length] of computing a whole sequence at once, from its definition."""
    return np.array([[0 <= q - p < window for p in range(length)] for q in range(length)])


def seen_positions(mask: NDArray[np.bool_], keys: NDArray[np.int64]) -> list[list[int]]:
    return [sorted(keys[row].tolist()) for row in mask]


def write(ring: list[int], positions: range) -> None:
    for position in positions:
        ring[position % len(ring)] = position


def test_the_example_takes_its_prompts_in_these_chunks():
    assert chunk_counts(LENGTHS, CHUNK) == COUNTS[:2]


@pytest.mark.parametrize(("capacity", "contents"), [(3, RING_OF_3), (4, RING_OF_4)])
def test_the_example_has_these_positions_in_its_slots(
    capacity: int, contents: list[tuple[list[int], ...]]
):
    held = [0, 0, 0]
    for counts, expected in zip(COUNTS, contents, strict=True):
        held = [length + new for length, new in zip(held, counts, strict=True)]
        assert tuple(positions_held(length, capacity).tolist() for length in held) == expected
    assert held == [9, 6, 8]


@pytest.mark.parametrize("capacity", [3, 4])
def test_every_mask_of_the_example_is_that_of_a_full_recomputation(capacity: int):
    held = [0, 0, 0]
    for counts in COUNTS:
        for row, new in enumerate(counts):
            length = held[row]
            queries = np.arange(length, length + new)
            keys = keys_read(length, new, capacity, WINDOW)
            whole = full_mask(length + new, WINDOW)[length:]
            expected = seen_positions(whole, np.arange(length + new))
            assert seen_positions(visible(queries, keys, WINDOW), keys) == expected
            held[row] += new


def test_a_ring_of_the_window_reads_before_it_writes_only_where_it_must():
    read_first = [
        (call, row)
        for call, counts in enumerate(COUNTS)
        for row, new in enumerate(counts)
        if new and not may_write_first(sum(c[row] for c in COUNTS[:call]), new, 3, WINDOW)
    ]
    assert read_first == [(1, 0)]  # row a in chunk 2; a step never has to
    assert keys_read(2, 2, 3, WINDOW).tolist() == [0, 1, EMPTY, 2, 3]
    assert may_write_first(2, 2, 4, WINDOW)
    assert keys_read(2, 2, 4, WINDOW).tolist() == [0, 1, 2, 3]


@given(st.integers(0, 60), st.integers(1, 20))
def test_a_slot_holds_the_largest_position_that_belongs_there(length: int, capacity: int):
    ring = [EMPTY] * capacity
    write(ring, range(length))
    assert positions_held(length, capacity).tolist() == ring
    held = positions_held(length, capacity)
    present = held[held != EMPTY]
    assert (slots(present, capacity) == np.flatnonzero(held != EMPTY)).all()


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    window=st.none() | st.integers(1, 12),
    chunk=st.integers(1, 30),
    spare=st.integers(0, 12),
    steps=st.integers(0, 6),
)
def test_any_chunks_and_capacity_see_what_a_full_recomputation_sees(
    lengths: list[int], window: int | None, chunk: int, spare: int, steps: int
):
    longest = max(lengths) + steps
    capacity = (window or longest) + spare
    held = [0] * len(lengths)
    for counts in [*chunk_counts(lengths, chunk), *[(1,) * len(lengths)] * steps]:
        for row, new in enumerate(counts):
            queries = np.arange(held[row], held[row] + new)
            keys = keys_read(held[row], new, capacity, window)
            mask = visible(queries, keys, window)
            for query, seen in zip(queries.tolist(), seen_positions(mask, keys), strict=True):
                assert seen == list(range(max(0, query + 1 - (window or longest)), query + 1))
            held[row] += new
    assert held == [length + steps for length in lengths]


@given(
    length=st.integers(0, 40),
    new=st.integers(1, 12),
    window=st.integers(1, 12),
    spare=st.integers(0, 12),
)
def test_a_chunk_may_be_written_first_exactly_when_nothing_needed_is_lost(
    length: int, new: int, window: int, spare: int
):
    capacity = window + spare
    ring = positions_held(length, capacity).tolist()
    write(ring, range(length, length + new))
    needed = set(range(max(0, length + 1 - window), length + new))
    if may_write_first(length, new, capacity, window):
        assert needed <= set(ring)
    else:
        assert capacity < window + new - 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(1, 60))
def test_chunks_add_up_and_a_row_that_has_ended_takes_no_part(lengths: list[int], chunk: int):
    counts = chunk_counts(lengths, chunk)
    assert [sum(row) for row in zip(*counts, strict=True)] == lengths
    for row in zip(*counts, strict=True):
        assert list(row) == sorted(row, reverse=True)
        assert max(row) <= chunk
    assert all(any(call) for call in counts)
