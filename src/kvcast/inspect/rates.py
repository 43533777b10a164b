"""How fast this machine reads memory and multiplies, measured with plain loops of nothing else.

For a process of its own, see `kvcast.machine.child`. Knows nothing of models.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.native.library import Machine

LARGE = 256 * 2**20
"""Bytes that no processor cache holds."""

_READ_AT_ONCE = 2**29
_TRIES = 5
_TURNS = 20_000  # of multiplying: below a millisecond where units are widest
_MULTIPLYING = 20  # tries, for they are short


class Rates:
    """Rates with a number of threads; the best of several tries, as a floor asks for."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def measure(self, working_set: int) -> dict[str, float]:
        """Return bytes or operations a second.

        `read`: memory. `read_again`: `working_set` bytes, over and over, which a large processor
        cache may hold. `int8`, `fp32`: multiplying numbers in registers with the instructions that
        the native runtime chooses here, which no product surpasses; a multiplication and an
        addition are two operations.

        Raises KvcastError where there is no native runtime.
        """
        machine = Machine(self._threads)
        return {
            "read": self._read(LARGE),
            "read_again": self._read(working_set),
            "int8": _multiply(machine, int8=True),
            "fp32": _multiply(machine, int8=False),
        }

    def _read(self, size: int) -> float:
        # The maximum takes one vector instruction a vector: reading is what takes the time. NumPy
        # releases the GIL for it.
        parts = np.array_split(np.ones(size // 4, np.float32), self._threads)
        passes = max(1, _READ_AT_ONCE // size)

        def read(part: NDArray[np.float32]) -> None:
            for _ in range(passes):
                part.max()

        with ThreadPoolExecutor(self._threads) as pool:
            seconds = _best(lambda: list(pool.map(read, parts)), _TRIES)
        return size * passes / seconds


def _multiply(machine: Machine, *, int8: bool) -> float:
    operations = machine.multiply(int8=int8, turns=_TURNS)
    return operations / _best(lambda: machine.multiply(int8=int8, turns=_TURNS), _MULTIPLYING)


def _best(act: Callable[[], object], tries: int) -> float:
    """Return the least seconds of some tries after one that does not count."""
    act()
    best = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        act()
        best = min(best, time.perf_counter() - start)
    return best
