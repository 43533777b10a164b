"""Backends take turns: A B C, A B C, and so on, each with the machine to itself.

Knows backends by their answers, and nothing of processes or of a turn's task.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvcast.errors import KvcastError
from kvcast_bench.machine import IdleGate

Trial = Mapping[str, Any]
"""The task of a turn, the same for all backends; `measure` names its kind."""
TurnAnswer = Mapping[str, Any]
"""Seconds by metric, and a workload's further facts about a turn."""


@dataclass
class BackendResult:
    """One backend in one trial: answers of the turns that count, and the machine's other load."""

    answers: list[TurnAnswer] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    unsettled: int = 0
    failure: str | None = None

    @property
    def stands(self) -> bool:
        return self.failure is None

    @property
    def last(self) -> TurnAnswer:
        return self.answers[-1]

    def series(self, name: str) -> list[float]:
        return [answer[name] for answer in self.answers]

    def surroundings(self) -> dict[str, Any]:
        """Return the load of other programs meanwhile, for the JSON object."""
        return {"others": max(self.others), "unsettled": self.unsettled}


Results = list[tuple[Trial, dict[str, BackendResult]]]
"""Of every trial, in order, the results by backend's name."""


def take_turns(
    players: Mapping[str, Callable[[], TurnAnswer]], gate: IdleGate, *, runs: int, label: str
) -> dict[str, BackendResult]:
    """Run every player once to warm up and `runs` times more, in turn.

    A player that fails has no more turns, and its result has the reason. `label` appears in the
    progress at a terminal.
    """
    results = {name: BackendResult() for name in players}
    for number in range(runs + 1):
        for name, play in players.items():
            result = results[name]
            if result.failure is not None:
                continue
            say(f"{label}, {f'run {number} of {runs}' if number else 'warm-up'}: {name}")
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
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"\r\x1b[K{message}", end="", file=sys.stderr, flush=True)
