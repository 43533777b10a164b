"""Ring buffer arithmetic: the slot of each position, and the queries that see it.

A cache layer keeps position p in slot p mod capacity, so a sliding-window layer needs only one slot
per position of the window, however long the text is. Positions are absolute, and all else follows
from them: the contents of slots from the number of positions that a row has seen, and masks from
the positions of queries and keys. There is no other state, so none can be stale.
This is the reference, which views and tests use: `kvcast.runtimes.memory` has the arrays and their
slots, and each runtime's attention has the masks.

A worked example: three prompts of 4, 1 and 3 tokens (rows a, b and c), a window of 3, chunks of 2,
then five new tokens each. `a3` is position 3 of row a, `.` an empty slot. A ring of 3 slots after
every call:

             row a       row b       row c
    chunk 1  a0 a1  .    b0  .  .    c0 c1  .    2, 1 and 2 tokens
    chunk 2  a3 a1 a2    b0  .  .    c0 c1 c2    2, 0 and 1: row b has none left and sits out
    step 1   a3 a4 a2    b0 b1  .    c3 c1 c2    one token each from here on
    step 2   a3 a4 a5    b0 b1 b2    c3 c4 c2
    step 3   a6 a4 a5    b3 b1 b2    c3 c4 c5
    step 4   a6 a7 a5    b3 b4 b2    c6 c4 c5
    step 5   a6 a7 a8    b3 b4 b5    c6 c7 c5

In chunk 2, row a cannot be written first: a3 would overwrite a0, which a2 still has to see (window
3: a0, a1, a2). Instead, the old ring and the new positions are read side by side, and the new
positions are written afterwards:

            a0 a1  .  a2 a3
        a2   #  #      #
        a3      #      #  #

A ring of 4 slots (window + chunk - 1) has room for both, so it is written first and then read. Its
slots are a0 a1 a2 a3 by then, and the same queries see the same positions.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]

EMPTY = -1
"""The position in an empty slot."""


def slots(positions: Positions, capacity: int) -> Positions:
    return positions % capacity


def positions_held(length: int, capacity: int) -> Positions:
    """Position in each slot [capacity], or EMPTY: the largest below `length` that belongs there."""
    last = length - 1
    held = last - (last - np.arange(capacity)) % capacity
    return np.where(held >= 0, held, EMPTY)


def visible(queries: Positions, keys: Positions, window: int | None) -> NDArray[np.bool_]:
    """Mask [q, k] of keys that queries see: 0 <= q - p < window; None: all up to their own."""
    distance = queries[:, None] - keys
    seen: NDArray[np.bool_] = (keys != EMPTY) & (distance >= 0)
    if window is not None:
        seen &= distance < window
    return seen


def may_write_first(length: int, new: int, capacity: int, window: int | None) -> bool:
    """Whether `new` positions of a row may be written before its queries read the cache.

    They may if they overwrite none, or only positions outside every new query's window (capacity >=
    window + new - 1). Otherwise the old contents and the new positions are read side by side.
    """
    displaces_nothing = length + new <= capacity
    return displaces_nothing or (window is not None and capacity >= window + new - 1)


def keys_read(length: int, new: int, capacity: int, window: int | None) -> Positions:
    """Positions of the keys that new queries read, including EMPTY.

    [capacity], by slot, if the new positions may be written first; otherwise [capacity + new], the
    old contents and then the new positions.
    """
    if may_write_first(length, new, capacity, window):
        return positions_held(length + new, capacity)
    return np.concatenate([positions_held(length, capacity), np.arange(length, length + new)])


def chunk_counts(lengths: Sequence[int], chunk: int) -> list[tuple[int, ...]]:
    """Return each chunk's tokens: (2, 1, 2), (2, 0, 1) for prompts of 4, 1 and 3, chunks of 2."""
    starts = range(0, max(lengths), chunk)
    return [tuple(min(max(length - start, 0), chunk) for length in lengths) for start in starts]


def neighbours(rows: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Yield runs of adjacent rows (ascending) with equally many new tokens, and that count."""
    first = 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or (rows[i], counts[i]) != (rows[i - 1] + 1, counts[i - 1]):
            yield slice(rows[first], rows[i - 1] + 1), counts[first]
            first = i
