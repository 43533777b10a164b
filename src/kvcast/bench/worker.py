"""A workload and one backend, in a process of their own; see `kvcast.bench.remote`.

Imports nothing of its own accord but the standard library: what it imports counts as its backend's.
"""

import gc
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcast.bench.backend import Backend
    from kvcast.bench.workload import Workload

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_PEAK = "5"


class Worker:
    """Prepares, loads and runs a backend."""

    def __init__(self, workload: "Workload", backend: "Backend") -> None:
        self._workload = workload
        self._backend = backend

    def prepare(self) -> None:
        """Make the files that loading needs, and load once, so that they are in memory."""
        self._backend.prepare()
        self._backend.load()

    def load(self) -> float:
        """Load, and return the seconds; imports come before and do not count."""
        for module in self._backend.modules:
            import_module(module)
        start = time.perf_counter()
        self._backend.load()
        return time.perf_counter() - start

    def run(self, trial: dict[str, Any]) -> dict[str, Any]:
        """Do a trial once; return the workload's answer, and peak memory."""
        gc.collect()
        if self._workload.peak_per_turn:
            forget_peak()
        return {**self._workload.run(self._backend, trial), "peak_bytes": peak_bytes()}

    def break_down(self, trial: dict[str, Any]) -> dict[str, Any]:
        """Do a trial's work once on a backend of kvcast's; return seconds by part, and calls."""
        from kvcast.bench.probes import Clock

        backend: Any = self._backend
        clock = Clock()
        timed = backend.timed(clock)
        start = time.perf_counter()
        self._workload.once(timed, trial)
        return clock.answer(self._workload.parts, time.perf_counter() - start)


class Importing:
    """An interpreter that is still empty: a worker's has NumPy already."""

    def seconds(self, modules: list[str]) -> float:
        """Import `modules` and return how long it took; meaningful once."""
        start = time.perf_counter()
        for name in modules:
            import_module(name)
        return time.perf_counter() - start


def peak_bytes() -> int:
    """Return the most memory that this process has held since it began, or since `forget_peak`.

    On Linux from VmHWM: ru_maxrss there begins with what the parent held when it forked.
    """
    if _STATUS.exists():
        fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_peak() -> None:
    """Let the peak begin anew with what is held now, where the system can (Linux)."""
    if _CLEAR.exists():
        _CLEAR.write_text(_PEAK)
