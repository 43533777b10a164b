"""From measurements of a T5 to the JSON object and the tables, with simple figures."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tiny_sources import TINY

from kvcast.bench.arena import Seat
from kvcast.bench.sources.document import Measured, document
from kvcast.bench.sources.floor import Floor
from kvcast.bench.sources.limits import Limit
from kvcast.bench.sources.report import render
from kvcast.bench.sources.trials import Trial
from kvcast.bench.turns import Result

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "bench-sources.schema.json").read_text(encoding="utf-8")
)
BEAMS = Trial(rows=2, source=16, beams=4, target=3)
SHORT, LONG = (Trial(rows=1, source=source, beams=1, target=3) for source in (8, 32))
SETTINGS = {
    "threads": 2,
    "runs": 3,
    "source": 16,
    "target": 3,
    "batches": [2],
    "beams": [4],
    "lengths": [8, 32],
}
DECODES = [[2, 1, 0, 1], [8, 1, 1, 1], [8, 1, 2, 1]]
RATES = {"read": 1e9, "read_again": 2e9, "int8": 1e12, "fp32": 1e11}
FLOOR = Floor(dimensions=TINY, quantize="int8")


def seat(name: str) -> Seat:
    return Seat(name, "int8", "defaults", {name: "1.0"}, 0.5, 0.25, remote=None)  # type: ignore[arg-type]


def result(*steps: float, failure: str | None = None) -> Result:
    answers = [
        {"first": 10 * s, "step": s, "seconds": 12 * s, "tokens": [7], "peak_bytes": 10**7}
        for s in steps
    ]
    return Result(answers, [0.0] * len(steps), 0, failure)


def measured(floor: bool) -> Measured:
    found = {
        "seconds": 10.0,
        "parts": {"encode": 4.0, "prefill": 1.0, "step": 2.0, "reorder": 1.0, "loop": 2.0},
        "decodes": DECODES,
        "others": 0.0,
        "unsettled": 0,
    }
    everybody = {
        "kvcast-int8": result(0.1, 0.2, 0.9),
        "slow": result(0.8, 0.6, 0.7),
        "odd": result(0.4),
        "ill": result(1, failure="its process ended"),
    }
    precisions = {"kvcast-int8": "int8", "slow": "int8", "odd": "int4", "ill": "int8"}
    longer = {name: result(0.3) for name in everybody}
    breakdowns = {"kvcast-int8": {BEAMS: found}}
    held = Limit(FLOOR, [RATES]).held(breakdowns["kvcast-int8"], step_bytes=100)
    return Measured(
        seats=[seat(name) for name in precisions],
        precisions=precisions,
        absent={"missing": "not installed: pip install missing"},
        results={BEAMS: everybody, SHORT: everybody, LONG: longer},
        breakdowns=breakdowns,
        floors={"kvcast-int8": held} if floor else None,
    )


def found(floor: bool = True) -> dict[str, Any]:
    return document(measured(floor), "random:t5-small", settings=SETTINGS)


def first_result(name: str) -> dict[str, Any]:
    (contender,) = (one for one in found()["contenders"] if one["name"] == name)
    return contender["results"][0]


@pytest.mark.parametrize("floor", [True, False])
def test_the_object_keeps_its_schema(floor: bool):
    jsonschema.validate(json.loads(json.dumps(found(floor))), SCHEMA)


def test_medians_are_compared_with_kvcast_of_the_same_precision():
    ours, slow = first_result("kvcast-int8"), first_result("slow")
    assert ours["step_seconds"] == {"median": 0.2, "min": 0.1, "max": 0.9, "all": [0.1, 0.2, 0.9]}
    assert ours["tokens_per_second"] == pytest.approx(2 * 3 / 2.4)
    assert slow["times_kvcast"] == pytest.approx({"first": 3.5, "step": 3.5, "whole": 3.5})
    assert first_result("odd")["times_kvcast"] is None
    assert first_result("ill") == {**BEAMS.to_json(), "failure": "its process ended"}


def test_shares_steps_and_fractions_come_from_the_breakdown():
    whole = found()
    (entry,) = whole["breakdown"]
    assert entry["parts"]["reorder"] == {"seconds": 1.0, "share": 0.1}
    assert entry["steps"] == 2
    (floor,) = whole["floor"]
    (held,) = floor["targets"]
    assert (held["step"]["calls"], held["step"]["measured"]) == (2, 2.0)
    encode = FLOOR.encode(inputs=2, source=16)
    assert held["encode"]["floor"] == pytest.approx(
        max(encode.bytes / 2e9, encode.int8 / 1e12 + encode.fp32 / 1e11)
    )
    prefill = FLOOR.decode(rows=2, new=1, held=0, inputs=2, source=16)
    assert held["prefill"]["floor"] == pytest.approx(prefill.bytes / 2e9)
    parts = [held[part]["floor"] for part in ("encode", "prefill", "step")]
    assert held["whole"]["floor"] == pytest.approx(sum(parts))


def test_the_tables_show_every_contender_without_terminal_codes():
    text = render(found())
    assert "\x1b" not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["slow", "int8", "2", "4", "7000.00"] in [row[:5] for row in rows]
    assert "its process ended" in text
    assert "missing: not installed: pip install missing" in text


def test_steps_are_compared_over_the_lengths_of_sources():
    rows = [line.split() for line in render(found()).splitlines()]
    (short, long) = (row for row in rows if row[:1] == ["kvcast-int8"] and row[2:3] != ["2"])
    assert (short[2], short[4], short[-1]) == ("8", "200.00", "1.00")
    assert (long[2], long[4], long[-1]) == ("32", "300.00", "1.50")


def test_without_a_floor_the_report_says_what_it_needs():
    assert "kvcast[export]" in render(found(floor=False))
