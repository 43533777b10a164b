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
from kvcast.bench.sources.trials import Trial
from kvcast.bench.turns import Result

FORMAT = "kvcast.bench.sources"
VERSION = 1

# The same for everybody, whatever the command line says.
_COMMON = {
    "decoding": "1 beam: greedy; more: the best of all, length penalty 1",
    "end_tokens": "held back until a target has all its tokens",
    "sources": "random tokens, the same for everybody",
    "warm_up": 1,
}
_FIGURES = {"first": "first", "step": "step", "whole": "seconds"}


@dataclass(frozen=True)
class Measured:
    """All that was found out; results and breakdowns by trial, then by contender's name."""

    seats: Sequence[Seat]
    precisions: Mapping[str, str]
    absent: Mapping[str, str]
    results: Mapping[Trial, Mapping[str, Result]]
    breakdowns: Mapping[str, Mapping[Trial, Mapping[str, Any]]]
    floors: Mapping[str, Mapping[str, Any]] | None


def document(measured: Measured, model: str, *, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object, of numbers, strings, lists and objects alone."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": model,
        "settings": {**settings, **_COMMON},
        "machine": machine_facts(),
        "contenders": [_contender(seat, measured) for seat in measured.seats],
        "absent": absent_facts(measured.absent),
        "breakdown": [
            {
                "name": name,
                **trial.to_json(),
                "seconds": found["seconds"],
                "parts": part_shares(found),
                "steps": sum(held > 0 for _, _, held, _ in found["decodes"]),
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
            _result(trial, by_name[seat.name], by_name.get(REFERENCES[precision]))
            for trial, by_name in measured.results.items()
        ],
    }


def _result(trial: Trial, result: Result, reference: Result | None) -> dict[str, Any]:
    if not result.stands:
        return {**trial.to_json(), "failure": result.failure}
    return {
        **trial.to_json(),
        **{f"{name}_seconds": summary(result.series(of)) for name, of in _FIGURES.items()},
        "tokens_per_second": trial.rows * trial.target / median(result.series("seconds")),
        "times_kvcast": None
        if reference is None or not reference.stands
        else {
            name: median(result.series(of)) / median(reference.series(of))
            for name, of in _FIGURES.items()
        },
        "tokens": result.last["tokens"],
        "peak_bytes": max(result.series("peak_bytes")),
        **surroundings(result),
    }
