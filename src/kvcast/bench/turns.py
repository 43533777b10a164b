"""Backends take turns: A B C, A B C, and so on, each with the machine to itself.

Thread pools spin after their work is done: OpenMP's and ONNX Runtime's for a while, to be ready for
more. A turn that begins before that is over shares its cores with the turn before. So nobody
begins before all have stopped and the machine is idle, and what the rest of the machine used during
a turn is on record. Knows backends by what they answer, and nothing of what a turn is about.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvcast.errors import KvcastError

WINDOW = 0.1
"""Seconds of looking; the system counts in hundredths, so a spinning thread takes about ten."""

PATIENCE = 20.0
"""Seconds after which a machine that never rests is measured all the same, and marked."""

IDLE = 0.06
"""Share of the machine that may be in use: of two cores and a window, one hundredth."""

Trial = Mapping[str, Any]
"""What is to be done in a turn, the same for everybody; `measure` says what kind of thing it is."""
Answer = Mapping[str, Any]
"""Seconds by metric, and whatever else a workload wants to know of a turn."""


@dataclass
class Result:
    """One backend in one trial: answers of the turns that count, and what surrounded them."""

    answers: list[Answer] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    unsettled: int = 0
    failure: str | None = None

    @property
    def stands(self) -> bool:
        """Whether there is anything to show."""
        return self.failure is None

    @property
    def last(self) -> Answer:
        """Of the last turn."""
        return self.answers[-1]

    def series(self, name: str) -> list[float]:
        """One figure of every answer, in order."""
        return [answer[name] for answer in self.answers]

    def surroundings(self) -> dict[str, Any]:
        """Return what others did meanwhile, for the JSON object."""
        return {"others": max(self.others), "unsettled": self.unsettled}


Results = list[tuple[Trial, dict[str, Result]]]
"""Of every trial, in order, the results by backend's name."""


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

    def watch(self, turn: Callable[[], Answer]) -> tuple[Answer, float]:
        """Take the turn, and return its answer and the share of the machine that others used."""
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
    """Return the processor time that a process has used so far; 0 for one that has ended."""
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def take_turns(
    players: Mapping[str, Callable[[], Answer]], gate: IdleGate, *, runs: int, what: str
) -> dict[str, Result]:
    """Let every player play once to warm up and `runs` times more, one after the other.

    A player that fails has no more turns, and its result says why. `what` it is about is said to
    a person at a terminal.
    """
    results = {name: Result() for name in players}
    for number in range(runs + 1):
        for name, play in players.items():
            result = results[name]
            if result.failure is not None:
                continue
            say(f"{what}, {f'run {number} of {runs}' if number else 'warm-up'}: {name}")
            is_quiet = gate.settle()
            try:
                answer, others = gate.watch(play)
            except KvcastError as error:
                result.failure = str(error)
                continue
            if number:
                result.unsettled += not is_quiet
                result.answers.append(answer)
                result.others.append(others)
    return results


def say(message: str) -> None:
    """Tell a person at a terminal what is going on."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"\r\x1b[K{message}", end="", file=sys.stderr, flush=True)
