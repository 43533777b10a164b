"""Contenders take turns: A B C, A B C, and so on, each with the machine to itself.

Knows contenders by what they answer, and nothing of processes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, Protocol

from kvcast.errors import KvcastError


class Player(Protocol):
    """Transcribes once when it is called; see `Contestant.transcribe` for the answer."""

    def transcribe(self, beam: int) -> Mapping[str, Any]:
        """Take a turn."""


class Referee(Protocol):
    """What surrounds every turn."""

    def settle(self) -> bool:
        """Wait until all is quiet; False if it never is."""

    def watch(self, turn: Callable[[], Mapping[str, Any]]) -> tuple[Mapping[str, Any], float]:
        """Take the turn, and return its answer and what others used meanwhile (0 to 1)."""


@dataclass
class Result:
    """One contender at one beam."""

    seconds: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    unsettled: int = 0
    text: str = ""
    peak_bytes: int = 0
    failure: str | None = None

    @property
    def median(self) -> float:
        """Seconds."""
        return median(self.seconds)

    @property
    def stands(self) -> bool:
        """Whether there is anything to show."""
        return self.failure is None and bool(self.seconds)


def take_turns(
    players: Mapping[str, Player],
    referee: Referee,
    *,
    beam: int,
    runs: int,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Result]:
    """Let every player transcribe once to warm up and `runs` times more, one after the other.

    A player that fails has no more turns, and its result says why.
    """
    results = {name: Result() for name in players}
    for number in range(runs + 1):
        for name, player in players.items():
            result = results[name]
            if result.failure is not None:
                continue
            report(f"beam {beam}, " + (f"run {number} of {runs}" if number else "warm-up"))
            is_quiet = referee.settle()
            try:
                answer, others = referee.watch(partial(player.transcribe, beam))
            except KvcastError as error:
                result.failure = str(error)
                continue
            result.text = answer["text"]
            result.peak_bytes = answer["peak_bytes"]
            if number:
                result.unsettled += not is_quiet
                result.seconds.append(answer["seconds"])
                result.others.append(others)
    return results
