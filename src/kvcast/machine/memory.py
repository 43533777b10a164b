"""How much memory a process may still take: what the system has left, within a container's limit.

Knows nothing of what it is for.
"""

import os
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


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
