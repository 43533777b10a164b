"""What must be said of the machine beside every figure."""

import os
import platform
from pathlib import Path

from kvcast.runtimes.cores import available_cores

_CPU_INFO = Path("/proc/cpuinfo")
_MEMORY = Path("/proc/meminfo")
# Instructions that decide how fast int8, fp32 and bf16 products are.
_TELLING = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


def machine_facts() -> dict[str, object]:
    """Return the processor's name and instructions, cores, memory, system and Python."""
    cpu = _fields(_CPU_INFO)
    memory = _fields(_MEMORY).get("MemTotal", "0 kB")
    flags = cpu.get("flags", "").split()
    return {
        "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
        "instructions": [name for name in _TELLING if name in flags],
        "cores": available_cores(),
        "processors": os.cpu_count() or 1,
        "memory_bytes": int(memory.split()[0]) * 1024,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _fields(path: Path) -> dict[str, str]:
    """Read "name : value" lines; of several alike the first counts."""
    fields: dict[str, str] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            name, colon, value = line.partition(":")
            if colon:
                fields.setdefault(name.strip(), value.strip())
    return fields
