"""From measurements to the JSON object and the tables, with figures that are easy to divide."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvcast.bench.arena import Seat
from kvcast.bench.speech.document import Measured, document
from kvcast.bench.speech.peers.base import Task
from kvcast.bench.speech.report import render
from kvcast.bench.turns import Result

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "bench.schema.json").read_text(encoding="utf-8")
)
TASK = Task(model="demo", folder="demo", threads=2, language="en")
PARTS = {"mel": 0.1, "encode": 0.4, "prefill": 0.1, "step": 0.3, "reorder": 0.0, "loop": 0.1}


def seat(name: str) -> Seat:
    return Seat(name, "int8", "defaults", {name: "1.0"}, 0.5, 0.25, remote=None)  # type: ignore[arg-type]


def result(*seconds: float, text: str = "a b", failure: str | None = None) -> Result:
    answers = [{"seconds": one, "text": text, "peak_bytes": 10**7} for one in seconds]
    return Result(answers, [0.0] * len(seconds), 0, failure)


def measured(floor: dict[str, Any] | None = None) -> Measured:
    held = {"floor": 0.1, "measured": 0.4, "fraction": 0.25, "calls": 2}
    rates = {"read": 2e10, "read_again": 8e10, "int8": 2e12, "fp32": 4e11}
    parts = dict.fromkeys(("encode", "prefill", "step", "whole"), held)
    return Measured(
        seats=[seat("kvcast"), seat("slow"), seat("ill")],
        absent={"missing": "not installed: pip install missing"},
        results={
            1: {
                "kvcast": result(1, 2, 9),
                "slow": result(8, 6, 7, text="a c"),
                "ill": result(1, failure="its process ended"),
            }
        },
        breakdowns={
            1: {
                "seconds": 1.0,
                "parts": PARTS,
                "windows": 1,
                "others": 0.0,
                "unsettled": 0,
                "decodes": [(1, 3, 0, 2), (1, 1, 3, 1), (1, 1, 4, 1)],
            }
        },
        floor=floor and {"rates": rates, "step_bytes": 33, "beams": {1: parts}},
    )


def found(floor: bool = True, reference: str | None = "a b") -> dict[str, Any]:
    return document(
        measured({"any": 1} if floor else None),
        TASK,
        audio={"name": "talk.flac", "seconds": 20.0},
        runs=3,
        reference=reference,
    )


@pytest.mark.parametrize(("floor", "reference"), [(True, "a b"), (False, None)])
def test_the_object_keeps_its_schema(floor: bool, reference: str | None):
    jsonschema.validate(json.loads(json.dumps(found(floor, reference))), SCHEMA)


def test_medians_are_compared_within_the_run():
    ours, slow, ill = (contender["results"][0] for contender in found()["contenders"])
    assert ours["seconds"] == {"median": 2, "min": 1, "max": 9, "all": [1, 2, 9]}
    assert (ours["times_kvcast"], ours["word_error"]) == (1.0, 0.0)
    assert (slow["times_kvcast"], slow["word_error"]) == (3.5, 0.5)
    assert ill == {"beam": 1, "failure": "its process ended"}


def test_shares_and_steps_come_from_the_breakdown():
    (entry,) = found()["breakdown"]
    assert entry["parts"]["encode"] == {"seconds": 0.4, "share": 0.4}
    assert entry["steps"] == 2


def test_the_tables_show_every_contender_without_terminal_codes():
    text = render(found())
    assert "\x1b" not in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.split()}
    assert rows["slow"][1:7] == ["1", "7.000", "6.000", "8.000", "3.50", "50.0%"]
    assert "its process ended" in text
    assert "missing: not installed: pip install missing" in text
    assert rows["encode"][-2:] == ["25%", "200.00"]


def test_without_a_floor_the_report_says_what_it_needs():
    assert "kvcast[export]" in render(found(floor=False))


def test_a_busy_machine_is_marked():
    crowded = found()
    crowded["contenders"][0]["results"][0]["others"] = 0.4
    text = render(crowded)
    assert "2.000 *" in text
    assert "others used up to 40% of the machine" in text
