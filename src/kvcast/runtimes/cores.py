"""The processor: how many of its cores this process may use, and which instructions it has."""

import math
import os
from pathlib import Path

CPU_FOLDER = Path("/sys/devices/system/cpu")
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CPU_INFO = Path("/proc/cpuinfo")
# What compilers choose instructions by.
_EXTENSIONS = ("sse", "ssse", "avx", "amx", "fma", "f16c", "bmi", "asimd", "sve")


def available_cores(cpu_folder: Path = CPU_FOLDER, quota_file: Path = CGROUP_QUOTA) -> int:
    """Count the physical cores within this process's affinity and its container's CPU quota.

    Hyper-threads of one core count once. Where the system tells nothing, every logical
    processor counts.
    """
    allowed = _allowed_processors()
    cores = {_core(cpu_folder, processor) for processor in allowed}
    return max(1, min(len(cores), _quota(quota_file)))


def instruction_sets(cpu_info: Path = CPU_INFO) -> tuple[str, ...]:
    """Names of the processor's vector and matrix instructions, sorted; none where unknown."""
    try:
        lines = cpu_info.read_text().splitlines()
    except OSError:  # Linux only
        return ()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), ":")
    names = set(flags.partition(":")[2].split())
    return tuple(sorted(name for name in names if name.startswith(_EXTENSIONS)))


def _allowed_processors() -> set[int]:
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _core(cpu_folder: Path, processor: int) -> str:
    """Return a name that all hyper-threads of one core share."""
    try:
        return (cpu_folder / f"cpu{processor}" / "topology" / "thread_siblings_list").read_text()
    except OSError:
        return str(processor)


def _quota(quota_file: Path) -> int:
    """Return the whole processors that a cgroup v2 quota ("max 100000") allows."""
    try:
        quota, period = quota_file.read_text().split()
        return max(1, math.floor(int(quota) / int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return os.cpu_count() or 1
