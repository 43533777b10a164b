"""Memory: how much of it a process may still take, and arrays that take it as they are written.

Knows no use of it.
"""

import contextlib
import ctypes
import mmap
import os
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_LARGE = 64 << 20
"""Bytes that are soon cleared. Steps read a twentieth faster from huge pages."""


def give_back() -> None:
    """Give memory that was freed back to the system, where the C library would keep it."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def growing_zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return zeros that take memory where they are written, a page of some kilobytes at a time.

    NumPy asks the system for huge pages, so the first number written to a large array takes two
    megabytes, and the time to clear them. Writes are seen by this process alone; a fork sees a
    copy.

    Raises MemoryError if there is no room for their addresses.
    """
    size = prod(shape) * np.dtype(dtype).itemsize
    if size < _LARGE or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros(shape, dtype)
    try:
        room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no room for {size / 2**20:,.0f} MiB: {error.strerror}") from None
    with contextlib.suppress(OSError):  # a system without huge pages
        room.madvise(mmap.MADV_NOHUGEPAGE)
    return np.ndarray(shape, dtype, buffer=room)


def available_bytes() -> int:
    """Return the memory that can be taken without swapping, in bytes."""
    left = _left_in_system()
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    if limit is not None and used is not None:
        left = min(left, max(0, limit - used))
    return left


def _left_in_system() -> int:
    try:
        lines = _MEMINFO.read_text().splitlines()
        [kilobytes] = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        return int(kilobytes) * 1024
    except (OSError, ValueError, IndexError):
        return _half_of_all()


def _half_of_all() -> int:
    """Return a guess where the system does not say: half of its memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, OSError, ValueError):  # Windows
        return 4 << 30


def _number(path: Path) -> int | None:
    """Return the number in a file; None without a file, or for "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
