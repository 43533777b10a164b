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
from kvcast.bench.speech.peers.base import Task
from kvcast.bench.speech.peers.ours import Kvcast
from kvcast.bench.speech.wer import word_error
from kvcast.bench.turns import Result

FORMAT = "kvcast.bench.transcribe"
VERSION = 1

# The same for everybody, whatever the command line says.
_COMMON = {
    "temperature": 0,
    "fallback": False,
    "condition_on_previous_text": False,
    "timestamps": True,
    "initial_prompt": None,
    "input": "samples in memory, mono 16 kHz float32",
    "warm_up": 1,
}


@dataclass(frozen=True)
class Measured:
    """All that was found out."""

    seats: Sequence[Seat]
    absent: Mapping[str, str]
    results: Mapping[int, Mapping[str, Result]]
    breakdowns: Mapping[int, Mapping[str, Any]]
    floor: Mapping[str, Any] | None


def document(
    measured: Measured,
    task: Task,
    *,
    audio: Mapping[str, Any],
    runs: int,
    reference: str | None,
) -> dict[str, Any]:
    """Return the object, of numbers, strings, lists and objects alone."""
    beams = list(measured.results)
    return {
        "format": FORMAT,
        "version": VERSION,
        "audio": dict(audio),
        "model": task.model,
        "settings": {
            "language": task.language,
            "threads": task.threads,
            "beams": beams,
            "runs": runs,
            **_COMMON,
        },
        "machine": machine_facts(),
        "contenders": [_contender(seat, measured.results, reference) for seat in measured.seats],
        "absent": absent_facts(measured.absent),
        "breakdown": [_breakdown(beam, measured.breakdowns[beam]) for beam in beams],
        "floor": None if measured.floor is None else _floor(measured.floor),
    }


def _contender(
    seat: Seat, results: Mapping[int, Mapping[str, Result]], reference: str | None
) -> dict[str, Any]:
    return {
        **seat_facts(seat),
        "results": [
            _result(beam, by_name[seat.name], by_name[Kvcast.name], reference)
            for beam, by_name in results.items()
        ],
    }


def _result(beam: int, result: Result, ours: Result, reference: str | None) -> dict[str, Any]:
    if not result.stands:
        return {"beam": beam, "failure": result.failure}
    seconds, text = summary(result.series("seconds")), result.last["text"]
    times = seconds["median"] / median(ours.series("seconds")) if ours.stands else None
    return {
        "beam": beam,
        "seconds": seconds,
        "times_kvcast": times,
        "word_error": None if reference is None else word_error(reference, text),
        "text": text.strip(),
        "peak_bytes": result.last["peak_bytes"],
        **surroundings(result),
    }


def _breakdown(beam: int, found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "beam": beam,
        "seconds": found["seconds"],
        "parts": part_shares(found),
        "windows": found["windows"],
        "others": found["others"],
        "unsettled": found["unsettled"],
        "steps": sum(held > 0 for _, _, held, _ in found["decodes"]),
    }


def _floor(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rates": found["rates"],
        "step_bytes": found["step_bytes"],
        "beams": [{"beam": beam, **parts} for beam, parts in found["beams"].items()],
    }
