"""What must be said of the machine beside every figure."""

import os
import platform
import re
from pathlib import Path

from kvcast.runtimes.cores import available_cores

_CPU_INFO = Path("/proc/cpuinfo")
# Instructions that decide how fast int8, fp32 and bf16 products are.
_TELLING = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


def machine_facts() -> dict[str, object]:
    """Return the processor's name and instructions, cores, memory, system and Python."""
    import psutil

    text = _CPU_INFO.read_text(encoding="utf-8", errors="replace") if _CPU_INFO.is_file() else ""
    cpu = dict(re.findall(r"^(model name|flags)\s*: (.*)$", text, re.MULTILINE))
    flags = cpu.get("flags", "").split()
    return {
        "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
        "instructions": [name for name in _TELLING if name in flags],
        "cores": available_cores(),
        "processors": os.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
