"""Everybody in a process of their own, one turn at a time.

The side of the measurement that touches processes: who can take part, who is loaded, who is quiet.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from kvcast.bench.peers import CONTENDERS
from kvcast.bench.peers.base import Task, installed_versions
from kvcast.bench.quiet import Usage, Watch, cpu_seconds
from kvcast.bench.remote import Remote, RemoteError
from kvcast.bench.turns import Player

_CONTESTANT = "kvcast.bench.contestant:Contestant"
_BREAKDOWN = "kvcast.bench.breakdown:Breakdown"
_IMPORTING = "kvcast.bench.importing:Importing"
_RATES = "kvcast.bench.rates:Rates"


@dataclass(frozen=True)
class Seat:
    """A contender that is loaded."""

    name: str
    dtype: str
    settings: str
    versions: Mapping[str, str]
    imports: float
    load: float
    remote: Remote

    def transcribe(self, beam: int) -> Mapping[str, Any]:
        """Meets `kvcast.bench.turns.Player`."""
        answer: Mapping[str, Any] = self.remote.call("transcribe", beam=beam)
        return answer


@dataclass(frozen=True)
class Quiet:
    """Meets `kvcast.bench.turns.Referee`."""

    pids: Sequence[int]

    def settle(self) -> bool:
        """See the protocol."""
        return Watch(self.pids).settle()

    def watch(self, turn: Callable[[], Mapping[str, Any]]) -> tuple[Mapping[str, Any], float]:
        """See the protocol."""
        before, ours = Usage.now(), self._ours()
        answer = turn()
        own = self._ours() - ours
        used, available = Usage.now().others(before, own)
        return answer, used / available if available else 0.0

    def _ours(self) -> float:
        return sum(map(cpu_seconds, (*self.pids, os.getpid())))


@dataclass(frozen=True)
class Arena:
    """A task and the file with its samples."""

    task: Task
    samples: Path
    report: Callable[[str], None]

    @contextmanager
    def seated(self, names: Sequence[str]) -> Iterator[tuple[list[Seat], dict[str, str]]]:
        """Give the contenders that are loaded, and why each of the others is not."""
        absent: dict[str, str] = {}
        with ExitStack() as stack:
            seats = []
            for name in names:
                reason = self._unfit(name)
                if reason is None:
                    try:
                        seats.append(self._seat(name, stack))
                        continue
                    except RemoteError as error:
                        reason = f"failed: {error}"
                absent[name] = reason
            yield seats, absent

    def breakdown(self, beams: Sequence[int], runs: int) -> dict[int, dict[str, Any]]:
        """Say where kvcast's time goes at each beam: medians of runs after a warm-up."""
        arguments = {
            "model": self.task.model,
            "threads": self.task.threads,
            "language": self.task.language,
            "samples": str(self.samples),
        }
        with self._remote(_BREAKDOWN, arguments) as remote:
            referee = Quiet([remote.pid])
            return {beam: self._parts(remote, referee, beam, runs) for beam in beams}

    def _parts(self, remote: Remote, referee: "Quiet", beam: int, runs: int) -> dict[str, Any]:
        found = []
        for number in range(runs + 1):
            self.report(f"breakdown at beam {beam}, run {number} of {runs}")
            is_quiet = referee.settle()
            answer, others = referee.watch(partial(remote.call, "transcribe", beam=beam))
            found.append({**answer, "others": others, "unsettled": int(not is_quiet)})
        counted = found[1:]
        parts = {
            part: median(answer["parts"][part] for answer in counted) for part in found[-1]["parts"]
        }
        return {
            **found[-1],
            "seconds": median(answer["seconds"] for answer in counted),
            "parts": parts,
            "others": max(answer["others"] for answer in counted),
            "unsettled": sum(answer["unsettled"] for answer in counted),
        }

    def rates(self, working_set: int, tokens: int, width: int) -> dict[str, float]:
        """Measure the machine; see `kvcast.bench.rates`."""
        self.report("rates of this machine")
        with self._remote(_RATES, {"threads": self.task.threads}) as remote:
            Watch([remote.pid]).settle()
            found: dict[str, float] = remote.call(
                "measure", working_set=working_set, tokens=tokens, width=width
            )
            return found

    def _unfit(self, name: str) -> str | None:
        contender = CONTENDERS[name]
        if installed_versions(contender.packages) is None:
            return f"not installed: pip install {' '.join(contender.packages[:1])}"
        return contender.unfit(Path(self.task.folder))

    def _seat(self, name: str, stack: ExitStack) -> Seat:
        contender = CONTENDERS[name]
        arguments = {"name": name, "task": asdict(self.task), "samples": str(self.samples)}
        self.report(f"{name}: preparing")
        with self._remote(_CONTESTANT, arguments) as preparing:
            preparing.call("prepare")
        self.report(f"{name}: loading")
        with self._remote(_IMPORTING, {}) as importing:
            imports = importing.call("seconds", modules=contender.modules)
        remote = stack.enter_context(self._remote(_CONTESTANT, arguments))
        Watch([remote.pid]).settle()
        return Seat(
            name=name,
            dtype=contender(self.task).dtype,
            settings=contender.settings,
            versions=installed_versions(contender.packages) or {},
            remote=remote,
            imports=imports,
            load=remote.call("load"),
        )

    def _remote(self, target: str, arguments: Mapping[str, Any]) -> Remote:
        # Nobody looks for a hub, and nobody's OpenMP or BLAS takes more threads than it was given.
        threads = str(self.task.threads)
        environment = {
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "HF_HUB_OFFLINE": "1",
        }
        return Remote(target, arguments, environment)


def players(seats: Sequence[Seat]) -> dict[str, Player]:
    """Return who takes turns, by name, in order."""
    return {seat.name: seat for seat in seats}
