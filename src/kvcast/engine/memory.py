"""The number and length of an engine's rows within a budget of bytes."""

from collections.abc import Callable
from typing import NamedTuple

from kvcast.errors import UsageError

ROWS = 16
"""Default number of rows: kvcast's kernels multiply so many columns at once."""

_SHORT = 2048
"""Fewer rows are better than rows shorter than this, if the model takes as much."""
_LEAST = 128
"""Rows shorter than this are of no use."""


class Sizes(NamedTuple):
    rows: int
    capacity: int
    bytes: int


def fitting(
    bytes_of_row: Callable[[int], int], *, longest: int, rows: int, budget: int, fixed: int = 0
) -> Sizes:
    """Return the sizes of a cache within `budget`; each row takes `fixed` bytes more.

    Raises UsageError if no row fits.
    """
    for count in range(rows, 0, -1):
        capacity = _longest_fitting(bytes_of_row, longest, budget // count - fixed)
        if capacity >= min(longest, _SHORT) or (count == 1 and capacity >= min(longest, _LEAST)):
            return Sizes(count, capacity, count * (bytes_of_row(capacity) + fixed))
    need = bytes_of_row(min(longest, _LEAST)) + fixed
    raise UsageError(
        f"the cache may take {budget / 2**20:,.0f} MiB and one short row needs "
        f"{need / 2**20:,.0f}: give it more memory"
    )


def _longest_fitting(bytes_of_row: Callable[[int], int], longest: int, room: int) -> int:
    low, high = 0, longest
    while low < high:
        middle = (low + high + 1) // 2
        if bytes_of_row(middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low
