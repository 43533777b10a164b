"""The idle gate: a turn begins when the machine is idle, and other programs' load is measured.

The thread pools of OpenMP and ONNX Runtime spin for a while after their work is done, to be ready
for more. A turn that begins too early shares its cores with the turn before. So a turn begins only
when all threads have stopped and the machine is idle, and what the rest of the machine used during
a turn is on record. Needs psutil. Knows nothing of a turn's work.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

WINDOW = 0.1
"""Seconds of each look; the system counts in hundredths, so a spinning thread uses about ten."""

PATIENCE = 20.0
"""Seconds after which a turn begins although the machine is not idle, and is marked."""

IDLE = 0.06
"""Share of the machine that may be in use: with two cores, a hundredth of a second in a window."""

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class IdleGate:
    """Surrounds turns of these processes."""

    pids: Sequence[int]

    def settle(self) -> bool:
        """Wait until the processes use no processor and others next to none; False if in vain."""
        import psutil

        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            before = list(map(cpu_seconds, self.pids))
            share = psutil.cpu_percent(WINDOW) / 100
            if before == list(map(cpu_seconds, self.pids)) and share <= IDLE:
                return True
        return False

    def watch(self, turn: Callable[[], AnswerT]) -> tuple[AnswerT, float]:
        """Take the turn; return its answer and the share of the machine used by others."""
        import psutil

        psutil.cpu_percent()  # the next call answers for the time since this one
        start, own = time.monotonic(), self._ours()
        answer = turn()
        own, seconds = self._ours() - own, time.monotonic() - start
        share = own / seconds / (os.cpu_count() or 1)
        return answer, max(0.0, psutil.cpu_percent() / 100 - share)

    def _ours(self) -> float:
        return sum(map(cpu_seconds, {*self.pids, os.getpid()}))


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process and its ended children have used so far.

    It is 0 for a process that has ended.
    """
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    ended = times.children_user + times.children_system  # of those that were waited for
    return float(times.user + times.system + ended)
