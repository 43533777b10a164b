"""The idle gate: nobody begins a turn before the machine is quiet, and what others use is measured.

Thread pools spin after their work is done: OpenMP's and ONNX Runtime's for a while, to be ready for
more. A turn that begins before that is over shares its cores with the turn before. So nobody
begins before all have stopped and the machine is idle, and what the rest of the machine used during
a turn is on record.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

WINDOW = 0.1
"""Seconds of looking; the system counts in hundredths, so a spinning thread takes about ten."""

PATIENCE = 20.0
"""Seconds after which a machine that never rests is measured all the same, and marked."""

IDLE = 0.06
"""Share of the machine that may be in use: of two cores and a window, one hundredth."""

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class IdleGate:
    """Surrounds turns of these processes; meets `kvcast.bench.schedule.Gate`."""

    pids: Sequence[int]

    def settle(self) -> bool:
        """Wait until the processes use no processor and others next to none; False if in vain."""
        deadline = time.monotonic() + PATIENCE
        ours, all_ = self._used(), Usage.now()
        while time.monotonic() < deadline:
            time.sleep(WINDOW)
            ours_before, all_before = ours, all_
            ours, all_ = self._used(), Usage.now()
            if ours == ours_before and all_.share(all_before) <= IDLE:
                return True
        return False

    def watch(self, turn: Callable[[], AnswerT]) -> tuple[AnswerT, float]:
        """Take the turn, and return its answer and the share of the machine that others used."""
        before, ours = Usage.now(), self._ours()
        answer = turn()
        own = self._ours() - ours
        used, available = Usage.now().others(before, own)
        return answer, used / available if available else 0.0

    def _used(self) -> list[float]:
        return [cpu_seconds(pid) for pid in self.pids]

    def _ours(self) -> float:
        return sum(map(cpu_seconds, {*self.pids, os.getpid()}))


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used so far; 0 for one that has ended."""
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


@dataclass(frozen=True)
class Usage:
    """Processor seconds: of the whole machine, and how many there were to use."""

    busy: float
    available: float

    @classmethod
    def now(cls) -> Self:
        """Read the counters, which begin somewhere in the past."""
        import psutil

        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        # Guests' time is in user's already; what a hypervisor steals is lost to everybody here.
        counted = ("user", "nice", "system", "irq", "softirq", "steal", "interrupt", "dpc")
        busy = sum(getattr(times, name, 0.0) for name in counted)
        return cls(busy, busy + idle)

    def share(self, since: Self) -> float:
        """Return the part of the machine that was in use since then, 0 to 1."""
        available = self.available - since.available
        return (self.busy - since.busy) / available if available else 0.0

    def others(self, since: Self, own: float) -> tuple[float, float]:
        """Return what all but `own` used since then, and what there was, in processor seconds."""
        return max(0.0, self.busy - since.busy - own), self.available - since.available
