"""The JSON object that a measurement ends with; docs/bench.md describes it field by field.

Everything that is shown comes from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from kvcast.bench.arena import Seat
from kvcast.bench.figures import absent_facts, part_shares, seat_facts, summary, surroundings
from kvcast.bench.machine import machine_facts
from kvcast.bench.precision import REFERENCES
from kvcast.bench.text.breakdown import STEP
from kvcast.bench.text.peers.base import Task
from kvcast.bench.text.trials import Trial
from kvcast.bench.turns import Result

FORMAT = "kvcast.bench.generate"
VERSION = 1
TEXT, POSITION = "text", "position"
"""What a result is of: a prompt and what follows, or steps at a position."""

# At a position few steps are taken, so their median counts; over a text all of its time does.
_FIGURES = {TEXT: {"first": "first", "step": "step"}, POSITION: {"step": "median_step"}}
# The same for everybody, whatever the command line says.
_COMMON = {
    "decoding": "greedy",
    "end_tokens": "ignored",
    "prompts": "random tokens, the same for everybody",
    "warm_up": 1,
}
Results = Mapping[Trial, Mapping[str, Result]]


@dataclass(frozen=True)
class Measured:
    """All that was found out; results and breakdowns by trial, then by contender's name."""

    seats: Sequence[Seat]
    precisions: Mapping[str, str]
    absent: Mapping[str, str]
    texts: Results
    positions: Results
    breakdowns: Mapping[str, Mapping[Trial, Mapping[str, Any]]]
    floors: Mapping[str, Mapping[str, Any]] | None


def document(
    measured: Measured, task: Task, *, settings: Mapping[str, Any], runs: int
) -> dict[str, Any]:
    """Return the object, of numbers, strings, lists and objects alone."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": task.model,
        "settings": {"threads": task.threads, "runs": runs, **settings, **_COMMON},
        "machine": machine_facts(),
        "contenders": [_contender(seat, measured) for seat in measured.seats],
        "absent": absent_facts(measured.absent),
        "breakdown": [
            {
                "name": name,
                "rows": trial.rows,
                "seconds": found["seconds"],
                "parts": part_shares(found),
                "steps": sum(part == STEP for part, *_ in found["decodes"]),
                "others": found["others"],
                "unsettled": found["unsettled"],
            }
            for name, trials in measured.breakdowns.items()
            for trial, found in trials.items()
        ],
        "floor": None
        if measured.floors is None
        else [{"name": name, **floor} for name, floor in measured.floors.items()],
    }


def _contender(seat: Seat, measured: Measured) -> dict[str, Any]:
    precision = measured.precisions[seat.name]
    return {
        **seat_facts(seat),
        "precision": precision,
        "results": [
            _result(measure, trial, by_name, seat.name, REFERENCES[precision])
            for measure, results in ((TEXT, measured.texts), (POSITION, measured.positions))
            for trial, by_name in results.items()
            if seat.name in by_name
        ],
    }


def _result(
    measure: str, trial: Trial, by_name: Mapping[str, Result], name: str, ours: str
) -> dict[str, Any]:
    result = by_name[name]
    facts = {"measure": measure, **trial.to_json()}
    if not result.stands:
        return {**facts, "failure": result.failure}
    reference = by_name.get(ours)
    figures = _FIGURES[measure]
    return {
        **facts,
        **{f"{field}_seconds": summary(result.series(of)) for field, of in figures.items()},
        "tokens_per_second": trial.rows / median(result.series(figures["step"])),
        "times_kvcast": None
        if reference is None or not reference.stands
        else {
            field: median(result.series(of)) / median(reference.series(of))
            for field, of in figures.items()
        },
        "tokens": result.last["tokens"],
        "peak_bytes": max(result.series("peak_bytes")),
        **surroundings(result),
    }
