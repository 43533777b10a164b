"""The processor: how many of its cores this process may use, and which instructions it has.

Knows nothing of models.
"""

import math
import os
import platform
import re
from pathlib import Path

CPU_FOLDER = Path("/sys/devices/system/cpu")
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CPU_INFO = Path("/proc/cpuinfo")
# What compilers choose instructions by.
_EXTENSIONS = ("sse", "ssse", "avx", "amx", "fma", "f16c", "bmi", "asimd", "sve", "i8mm")
# Instructions that decide how fast int8, fp32 and bf16 products are.
_TELLING = (
    *("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimddp", "i8mm"),
)


def available_cores(cpu_folder: Path = CPU_FOLDER, quota_file: Path = CGROUP_QUOTA) -> int:
    """Count the physical cores within this process's affinity and its container's CPU quota.

    Hyper-threads of one core count once. Where the system has no such information, every logical
    processor counts.
    """
    allowed = _allowed_processors()
    cores = {_core(cpu_folder, processor) for processor in allowed}
    return max(1, min(len(cores), _quota(quota_file)))


def instruction_sets(cpu_info: Path = CPU_INFO) -> tuple[str, ...]:
    """Names of the processor's vector and matrix instructions, sorted; none where unknown."""
    names = set(_entry(cpu_info, "flags|Features").split())
    return tuple(sorted(name for name in names if name.startswith(_EXTENSIONS)))


def machine_facts() -> dict[str, object]:
    """Return the facts of the machine that belong to every figure measured on it.

    The processor's name, the instructions that decide its speed, cores, logical processors, memory
    in bytes, system and Python. Needs psutil.
    """
    import psutil

    instructions = instruction_sets()
    return {
        "cpu": _entry(CPU_INFO, "model name") or platform.processor() or platform.machine(),
        "instructions": [name for name in _TELLING if name in instructions],
        "cores": available_cores(),
        "processors": os.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _entry(cpu_info: Path, names: str) -> str:
    """Return the first processor's entry of one of these names, a|b; empty where unknown."""
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
