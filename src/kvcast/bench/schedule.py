"""Backends take turns: A B C, A B C, and so on, each with the machine to itself.

Knows backends by what they answer, and nothing of processes or of what a turn is about.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from kvcast.errors import KvcastError

Trial = Mapping[str, Any]
"""What is to be done in a turn, the same for everybody; `measure` says what kind of thing it is."""
Answer = Mapping[str, Any]
"""Seconds by metric, and whatever else a workload wants to know of a turn."""


class Gate(Protocol):
    """What surrounds every turn; see `kvcast.bench.idle.IdleGate`."""

    def settle(self) -> bool:
        """Wait until all is quiet; False if it never is."""

    def watch(self, turn: Callable[[], Answer]) -> tuple[Answer, float]:
        """Take the turn, and return its answer and what others used meanwhile (0 to 1)."""


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
        return self.failure is None and bool(self.answers)

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


def take_turns(
    players: Mapping[str, Callable[[Trial], Answer]],
    gate: Gate,
    trial: Trial,
    *,
    runs: int,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Result]:
    """Let every player do a trial once to warm up and `runs` times more, one after the other.

    A player that fails has no more turns, and its result says why.
    """
    results = {name: Result() for name in players}
    what = ", ".join(f"{name} {value}" for name, value in trial.items())
    for number in range(runs + 1):
        for name, play in players.items():
            result = results[name]
            if result.failure is not None:
                continue
            run = f"run {number} of {runs}" if number else "warm-up"
            report(f"{what}, {run}: {name}")
            is_quiet = gate.settle()
            try:
                answer, others = gate.watch(partial(play, trial))
            except KvcastError as error:
                result.failure = str(error)
                continue
            if number:
                result.unsettled += not is_quiet
                result.answers.append(answer)
                result.others.append(others)
    return results
