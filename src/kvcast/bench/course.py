"""The course of a benchmark of generation: rates, turns, a breakdown of each of kvcast's, rates.

Knows in which precisions kvcast takes part, and neither models nor what a trial asks for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from kvcast.bench.arena import Arena, Quiet, Seat, pids, players
from kvcast.bench.command import say
from kvcast.bench.precision import OURS
from kvcast.bench.turns import Result, take_turns
from kvcast.errors import KvcastError


class Trial(Protocol):
    """What is asked of everybody in a turn; hashable."""

    def to_json(self) -> dict[str, int]:
        """Return its fields, for a pipe."""


TrialT = TypeVar("TrialT", bound=Trial)
Breakdown = Mapping[str, Any]
Rates = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Course:
    """Who measures how often.

    Attributes:
        arena: where contenders meet.
        quantize: kvcast's bundles that take part.
        runs: of each trial, after one to warm up.

    """

    arena: Arena
    quantize: Sequence[str]
    runs: int

    def rates(
        self, step_bytes: Callable[[str], int], tokens: int, width: int
    ) -> dict[str, Rates | None]:
        """Measure the machine for each quantisation, whose steps read more or less.

        `tokens` and `width` are of the largest product; None where it cannot be measured.
        """
        return {
            quantize: self.arena.rates(step_bytes(quantize), tokens, width)
            for quantize in self.quantize
        }

    def turns(
        self, trials: Sequence[TrialT], taking: Sequence[Seat], seats: Sequence[Seat]
    ) -> dict[TrialT, dict[str, Result]]:
        """Let some take turns while all are quiet."""
        referee = Quiet(pids(seats))
        return {
            trial: take_turns(players(taking), referee, trial.to_json(), runs=self.runs, report=say)
            for trial in trials
        }

    def present(self, absent: Mapping[str, str]) -> dict[str, str]:
        """Return kvcast's contenders that take part, by quantisation.

        Raises KvcastError with the first's reason if none does.
        """
        names = {quantize: OURS[quantize] for quantize in self.quantize}
        present = {quantize: name for quantize, name in names.items() if name not in absent}
        if not present:
            raise KvcastError(f"kvcast itself: {absent[next(iter(names.values()))]}")
        return present

    def breakdowns(
        self, target: str, model: str, present: Mapping[str, str], trials: Sequence[TrialT]
    ) -> dict[str, dict[TrialT, Breakdown]]:
        """Say by contender's name and trial where kvcast's time goes; see `Arena.breakdown`."""
        found: dict[str, dict[TrialT, Breakdown]] = {}
        for quantize, name in present.items():
            arguments = {"model": model, "quantize": quantize, "threads": self.arena.threads}
            asked = [trial.to_json() for trial in trials]
            answers = self.arena.breakdown(target, arguments, asked, self.runs)
            found[name] = dict(zip(trials, answers, strict=True))
        return found


def known_rates(
    *measurements: Mapping[str, Rates | None],
) -> dict[str, list[Rates]] | None:
    """Gather what was measured for each quantisation; None if there is none of some."""
    known = {
        quantize: [
            one for by_quantize in measurements if (one := by_quantize[quantize]) is not None
        ]
        for quantize in measurements[0]
    }
    return known if all(known.values()) else None


def of_contender(results: Mapping[TrialT, Mapping[str, Result]], name: str) -> dict[TrialT, Result]:
    """Return one contender's results."""
    return {trial: by_name[name] for trial, by_name in results.items() if name in by_name}
