"""A workload and one backend, in a separate process; see `kvcast.machine.child`.

Imports only the standard library itself: its imports count as its backend's.
"""

import copy
import gc
import os
import sys
import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcast_bench.backend import Backend
    from kvcast_bench.workload import Workload

_PROC = Path("/proc")
_PEAK = "5"


class Worker:
    def __init__(self, workload: "Workload", backend: "Backend") -> None:
        self._workload = workload
        self._backend = backend

    def prepare(self) -> None:
        """Load once, so that files are made, and are in memory when loading is timed."""
        self._backend.load()

    def load(self) -> float:
        """Load, and return the seconds; imports come before and do not count."""
        Importing().seconds(self._backend.modules)
        start = time.perf_counter()
        self._backend.load()
        return time.perf_counter() - start

    def processes(self) -> list[int]:
        """Return the ids of the processes that do the backend's work besides this one."""
        return list(self._backend.processes)

    def run(self, trial: dict[str, Any]) -> dict[str, Any]:
        """Do a trial once; return the workload's answer, and peak memory."""
        gc.collect()
        pids = self._backend.processes or (os.getpid(),)
        if self._workload.peak_per_turn and _PROC.exists():  # only Linux can forget a peak
            for pid in pids:
                (_PROC / str(pid) / "clear_refs").write_text(_PEAK)
        answer = self._workload.run(self._backend, trial)
        # A workload whose processes have ended knows their peak itself.
        return {"peak_bytes": sum(map(peak_bytes, pids)), **answer}

    def break_down(self, trial: dict[str, Any]) -> dict[str, Any]:
        """Do a trial's work once on a backend of kvcast's; return seconds by part, and calls."""
        from kvcast_bench.probes import Clock, timed_model

        backend, clock = copy.copy(self._backend), Clock()
        with timed_model(backend.engine, clock) as backend.engine:
            start = time.perf_counter()
            self._workload.once(backend, trial)
            whole = time.perf_counter() - start
        return clock.answer(self._workload.parts, whole)


class Importing:
    """An interpreter that is still empty: a worker's has NumPy already."""

    def seconds(self, modules: Iterable[str]) -> float:
        """Import `modules` and return how long it took; meaningful once."""
        start = time.perf_counter()
        for name in modules:
            import_module(name)
        return time.perf_counter() - start

    def versions(self, packages: Sequence[str]) -> dict[str, str] | None:
        """Return the versions of distributions here, or None if one is not installed."""
        from kvcast_bench.models import installed_versions

        return installed_versions(packages)


def peak_bytes(pid: int | None = None) -> int:
    """Return the most memory that a process has held since it began, or since a run began.

    It is this one by default. On Linux from VmHWM: ru_maxrss there begins with the parent's at the
    fork. Elsewhere, for another process, its current memory.
    """
    pid = os.getpid() if pid is None else pid
    if _PROC.exists():
        status = (_PROC / str(pid) / "status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    if pid != os.getpid():
        import psutil

        return int(psutil.Process(pid).memory_info().rss)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
