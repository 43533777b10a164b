"""One contender and its recording, on the far side of `kvcast.bench.remote`.

Prepares, loads and transcribes, and times each. Knows contenders only by their interface.
"""

import gc
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.bench.peers import CONTENDERS
from kvcast.bench.peers.base import Task

_STATUS = Path("/proc/self/status")


class Contestant:
    """See the module."""

    def __init__(self, name: str, task: dict[str, Any], samples: str) -> None:
        """Take the contender's name, the fields of `Task`, and a .npy file of samples."""
        self._contender = CONTENDERS[name](Task(**task))
        self._samples = np.load(samples, allow_pickle=False)

    def prepare(self) -> None:
        """Make the files that loading needs, and load once, so that they are in memory."""
        self._contender.prepare()
        self._contender.load()

    def load(self) -> float:
        """Load, and return the seconds; imports come before and do not count."""
        for module in self._contender.modules:
            import_module(module)
        start = time.perf_counter()
        self._contender.load()
        return time.perf_counter() - start

    def transcribe(self, beam: int) -> dict[str, Any]:
        """Transcribe once; returns seconds, processor seconds, text, and peak memory so far."""
        gc.collect()
        processor = time.process_time()
        start = time.perf_counter()
        text = self._contender.transcribe(self._samples, beam)
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "processor_seconds": time.process_time() - processor,
            "text": text,
            "peak_bytes": peak_bytes(),
        }


def peak_bytes() -> int:
    """Return the most memory that this process has held since it began.

    On Linux from VmHWM: ru_maxrss there begins with what the parent held when it forked.
    """
    if _STATUS.exists():
        fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
