"""Resources that this process may use: cores, ISAs, memory, open files.

NumPy is imported inside a function: wheels are built where there is none.
"""

import contextlib
import ctypes
import math
import mmap
import os
import re
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

CPU_FOLDER = Path("/sys/devices/system/cpu")
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CPU_INFO = Path("/proc/cpuinfo")
# Flags by which compilers choose instructions.
_EXTENSIONS = ("sse", "ssse", "avx", "amx", "fma", "f16c", "bmi", "asimd", "sve", "i8mm")


def available_cores(cpu_folder: Path = CPU_FOLDER, quota_file: Path = CGROUP_QUOTA) -> int:
    """Count physical cores within affinity and container quota, else logical processors."""
    allowed = _allowed_processors()
    cores = {_core(cpu_folder, processor) for processor in allowed}
    return max(1, min(len(cores), _quota(quota_file)))


def instruction_sets(cpu_info: Path = CPU_INFO) -> tuple[str, ...]:
    """Return the processor's instruction set extensions, sorted; empty if unknown."""
    names = set(cpu_entry(cpu_info, "flags|Features").split())
    return tuple(sorted(name for name in names if name.startswith(_EXTENSIONS)))


def cpu_entry(cpu_info: Path, names: str) -> str:
    try:
        text = cpu_info.read_text(encoding="utf-8", errors="replace")
    except OSError:  # Linux only
        return ""
    match = re.search(rf"^(?:{names})\s*:(.*)$", text, re.MULTILINE)
    return match[1].strip() if match else ""


def _allowed_processors() -> set[int]:
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _core(cpu_folder: Path, processor: int) -> str:
    try:
        return (cpu_folder / f"cpu{processor}" / "topology" / "thread_siblings_list").read_text()
    except OSError:
        return str(processor)


def _quota(quota_file: Path) -> int:
    try:
        quota, period = quota_file.read_text().split()
        return max(1, math.floor(int(quota) / int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return os.cpu_count() or 1


_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_LARGE = 64 << 20
"""Bytes that are soon cleared. Steps read a twentieth faster from huge pages."""


def give_back() -> None:
    """Return freed memory to the system, where the C library would keep it."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def growing_zeros(shape: tuple[int, ...], dtype: Any) -> "NDArray[Any]":
    """Return zeros that take memory only where they are written, in pages of a few kilobytes.

    NumPy requests huge pages, so the first write to a large array takes two megabytes and the time
    to clear them. The memory is private; a fork sees a copy. Raises MemoryError without addresses.
    """
    import numpy as np

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
    """Return the bytes available without swapping."""
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
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, OSError, ValueError):  # Windows
        return 4 << 30


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def allow_open_files(count: int) -> None:
    """Raise this process's limit of open files, as far as allowed."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # elsewhere than on Unix
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < count:
            most = count if hard == resource.RLIM_INFINITY else min(count, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
