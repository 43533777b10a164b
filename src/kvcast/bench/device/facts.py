"""What must be said of a device beside every figure."""

import shutil
import subprocess
from typing import Any

import torch


def device_facts(device: str) -> dict[str, Any]:
    """Return its name, and of a CUDA device what decides its speed; None for what is unknown."""
    if not device.startswith("cuda"):
        unknown = dict.fromkeys(("capability", "memory_bytes", "driver", "cuda"))
        return {"name": device, **unknown}
    found = torch.cuda.get_device_properties(device)
    return {
        "name": found.name,
        "capability": f"{found.major}.{found.minor}",
        "memory_bytes": found.total_memory,
        "driver": _driver(),
        "cuda": torch.version.cuda,
    }


def _driver() -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603
    return answer.stdout.splitlines()[0].strip() if answer.stdout else None
