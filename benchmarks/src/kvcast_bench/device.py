"""Facts of a torch device, the time of its work, and the rate of its memory.

Knows nothing of models.
"""

import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch

COPIED = 4 * 2**30
"""Bytes that no cache of a device holds."""

_TRIES = 10


def seconds_of(work: Callable[[], object], device: str) -> float:
    """Return the seconds from when the device begins the work to when it has done it.

    On CUDA by events in the stream, so waiting for the host to launch more counts and the way
    there and back does not.
    """
    if not device.startswith("cuda"):
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    before.record()
    work()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after)) / 1000


def memory_rates(device: str, size: int = COPIED) -> dict[str, float]:
    """Return bytes a second: `copy` (read and written bytes both count) and `read` alone.

    The best of several tries, as a floor asks for.
    """
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    copying, reading = (
        min(seconds_of(work, device) for _ in range(1 + _TRIES))
        for work in (lambda: target.copy_(source), source.sum)
    )
    return {"copy": 2 * size / copying, "read": size / reading}


def device_facts(device: str) -> dict[str, Any]:
    """Return its name, and a CUDA device's properties that decide its speed, None if unknown."""
    if not device.startswith("cuda"):
        return {"name": device, **dict.fromkeys(("capability", "memory_bytes", "driver", "cuda"))}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "driver": _driver(),
        "cuda": torch.version.cuda,
    }


def _driver() -> str | None:
    if (tool := shutil.which("nvidia-smi")) is None:
        return None
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return answer.stdout.splitlines()[0].strip() if answer.stdout else None
