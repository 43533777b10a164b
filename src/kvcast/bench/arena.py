"""Everybody in a process of their own, one turn at a time.

The side of a measurement that touches processes: who can take part, who is loaded, who is quiet.
Knows nothing of what a turn is about.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

from kvcast.bench.contender import Contender, installed_versions
from kvcast.bench.quiet import Usage, Watch, cpu_seconds
from kvcast.bench.remote import Remote, RemoteError
from kvcast.bench.turns import Answer, Player, Trial

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

    def take(self, trial: Trial) -> Answer:
        """Meets `kvcast.bench.turns.Player`."""
        answer: Answer = self.remote.call("take", **trial)
        return answer


@dataclass(frozen=True)
class Quiet:
    """Meets `kvcast.bench.turns.Referee`."""

    pids: Sequence[int]

    def settle(self) -> bool:
        """See the protocol."""
        return Watch(self.pids).settle()

    def watch(self, turn: Callable[[], Answer]) -> tuple[Answer, float]:
        """See the protocol."""
        before, ours = Usage.now(), self._ours()
        answer = turn()
        own = self._ours() - ours
        used, available = Usage.now().others(before, own)
        return answer, used / available if available else 0.0

    def _ours(self) -> float:
        return sum(map(cpu_seconds, (*self.pids, os.getpid())))


@dataclass(frozen=True, kw_only=True)
class Arena:
    """Where a benchmark's contenders meet.

    Attributes:
        threads: for each program.
        contestant: "module:class" of the far side, a `kvcast.bench.contestant.Contestant`.
        arguments: of it, beside the contender's name.
        report: is told what goes on.

    """

    threads: int
    contestant: str
    arguments: Mapping[str, Any]
    report: Callable[[str], None]

    @contextmanager
    def seated(
        self, contenders: Sequence[Contender]
    ) -> Iterator[tuple[list[Seat], dict[str, str]]]:
        """Give the contenders that are loaded, and why each of the others is not."""
        absent: dict[str, str] = {}
        with ExitStack() as stack:
            seats = []
            for contender in contenders:
                reason = _unfit(contender)
                if reason is None:
                    try:
                        seats.append(self._seat(contender, stack))
                        continue
                    except RemoteError as error:
                        reason = f"failed: {error}"
                absent[contender.name] = reason
            yield seats, absent

    def breakdown(
        self, target: str, arguments: Mapping[str, Any], trials: Sequence[Trial], runs: int
    ) -> list[dict[str, Any]]:
        """Say where time goes in each trial: medians of runs after a warm-up.

        `target`, "module:class", made of `arguments` and kept for all trials, has a method `take`
        that returns the `seconds` of the whole and those of each of its `parts`.
        """
        with self._remote(target, arguments) as remote:
            referee = Quiet([remote.pid])
            return [self._parts(remote, referee, trial, runs) for trial in trials]

    def _parts(self, remote: Remote, referee: Quiet, trial: Trial, runs: int) -> dict[str, Any]:
        found = []
        for number in range(runs + 1):
            self.report(f"breakdown of {dict(trial)}, run {number} of {runs}")
            is_quiet = referee.settle()
            answer, others = referee.watch(partial(remote.call, "take", **trial))
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

    def rates(self, working_set: int, tokens: int, width: int) -> dict[str, float] | None:
        """Measure the machine, see `kvcast.bench.rates`; None without `onnx`, which that needs."""
        if find_spec("onnx") is None:
            return None
        self.report("rates of this machine")
        with self._remote(_RATES, {"threads": self.threads}) as remote:
            Watch([remote.pid]).settle()
            found: dict[str, float] = remote.call(
                "measure", working_set=working_set, tokens=tokens, width=width
            )
            return found

    def _seat(self, contender: Contender, stack: ExitStack) -> Seat:
        name = contender.name
        arguments = {"name": name, **self.arguments}
        self.report(f"{name}: preparing")
        with self._remote(self.contestant, arguments) as preparing:
            preparing.call("prepare")
        self.report(f"{name}: loading")
        with self._remote(_IMPORTING, {}) as importing:
            imports = importing.call("seconds", modules=contender.modules)
        remote = stack.enter_context(self._remote(self.contestant, arguments))
        Watch([remote.pid]).settle()
        return Seat(
            name=name,
            dtype=contender.dtype,
            settings=contender.settings,
            versions=installed_versions(contender.packages) or {},
            remote=remote,
            imports=imports,
            load=remote.call("load"),
        )

    def _remote(self, target: str, arguments: Mapping[str, Any]) -> Remote:
        # Nobody looks for a hub, and nobody's OpenMP or BLAS takes more threads than it was given.
        threads = str(self.threads)
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


def pids(seats: Sequence[Seat]) -> list[int]:
    """Return the processes that must be quiet."""
    return [seat.remote.pid for seat in seats]


def _unfit(contender: Contender) -> str | None:
    if installed_versions(contender.packages) is None:
        return f"not installed: pip install {' '.join(contender.packages[:1])}"
    return contender.unfit()
