"""From measurements of generation to the JSON object and the tables, with simple figures."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tiny_text import TINY

from kvcast.bench.arena import Seat
from kvcast.bench.text.document import Measured, document
from kvcast.bench.text.floor import Floor
from kvcast.bench.text.limits import Limit
from kvcast.bench.text.peers.base import Task
from kvcast.bench.text.report import render
from kvcast.bench.text.trials import Trial
from kvcast.bench.turns import Result

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "bench-generate.schema.json").read_text(encoding="utf-8")
)
TASK = Task(model="demo-chat", folder="demo-chat", threads=2, vocab_size=96, window=8)
TEXT, FAR = Trial(rows=4, prompt=16, steps=2), Trial(rows=1, prompt=32, steps=16)
SETTINGS = {"prompt": 16, "new": 2, "batches": [4], "positions": [32], "window": 8}
DECODES = [["prefill", 4, 16, 0], ["step", 4, 1, 16], ["step", 4, 1, 17]]
RATES = {"read": 1e9, "read_again": 2e9, "int8": 1e12, "fp32": 1e11}


def seat(name: str) -> Seat:
    return Seat(name, "int8", "defaults", {name: "1.0"}, 0.5, 0.25, remote=None)  # type: ignore[arg-type]


def result(*steps: float, failure: str | None = None) -> Result:
    answers = [
        {"first": 10 * s, "step": s, "median_step": s / 2, "tokens": [1], "peak_bytes": 10**7}
        for s in steps
    ]
    return Result(answers, [0.0] * len(steps), 0, failure)


def measured(floor: bool) -> Measured:
    limit = Limit(Floor(dimensions=TINY, quantize="int8"), [RATES])
    far = {"kvcast-int8": result(2, 2, 2), "kvcast-int8-ring": result(1, 1, 1)}
    found = {
        "seconds": 4.0,
        "parts": {"prefill": 1.0, "step": 2.0, "loop": 1.0},
        "decodes": DECODES,
        "others": 0.0,
        "unsettled": 0,
    }
    return Measured(
        seats=[seat(name) for name in ("kvcast-int8", "kvcast-int8-ring", "slow", "odd", "ill")],
        precisions={
            "kvcast-int8": "int8",
            "kvcast-int8-ring": "int8",
            "slow": "int8",
            "odd": "int4",
            "ill": "int8",
        },
        absent={"missing": "not installed: pip install missing"},
        texts={
            TEXT: {
                "kvcast-int8": result(0.1, 0.2, 0.9),
                "slow": result(0.8, 0.6, 0.7),
                "odd": result(0.4),
                "ill": result(1, failure="its process ended"),
            }
        },
        positions={FAR: far},
        breakdowns={"kvcast-int8": {TEXT: found}},
        floors={"kvcast-int8": limit.held({TEXT: found}, {FAR: far["kvcast-int8"]})}
        if floor
        else None,
    )


def found(floor: bool = True) -> dict[str, Any]:
    return document(measured(floor), TASK, settings=SETTINGS, runs=3)


def results(name: str) -> list[dict[str, Any]]:
    (contender,) = (one for one in found()["contenders"] if one["name"] == name)
    return contender["results"]


@pytest.mark.parametrize("floor", [True, False])
def test_the_object_keeps_its_schema(floor: bool):
    jsonschema.validate(json.loads(json.dumps(found(floor))), SCHEMA)


def test_medians_are_compared_with_kvcast_of_the_same_precision():
    ours, far = results("kvcast-int8")
    (slow,), (odd,), (ill,) = results("slow"), results("odd"), results("ill")
    assert ours["step_seconds"] == {"median": 0.2, "min": 0.1, "max": 0.9, "all": [0.1, 0.2, 0.9]}
    assert ours["tokens_per_second"] == 20
    assert far["step_seconds"]["median"] == 1.0
    assert slow["times_kvcast"] == pytest.approx({"first": 3.5, "step": 3.5})
    assert odd["times_kvcast"] is None
    assert ill == {"measure": "text", "rows": 4, "prompt": 16, "steps": 2} | {
        "failure": "its process ended"
    }
    (ring,) = results("kvcast-int8-ring")
    assert ring["times_kvcast"] == {"step": 0.5}


def test_shares_steps_and_fractions_come_from_the_breakdown():
    whole = found()
    (entry,) = whole["breakdown"]
    assert entry["parts"]["loop"] == {"seconds": 1.0, "share": 0.25}
    assert entry["steps"] == 2
    (floor,) = whole["floor"]
    (held,), (far,) = floor["texts"], floor["positions"]
    assert (held["step"]["calls"], held["step"]["measured"]) == (2, 2.0)
    cost = Floor(dimensions=TINY, quantize="int8").decode(rows=1, new=1, held=32)
    assert far["floor"] == pytest.approx(cost.bytes / 2e9)
    assert far["fraction"] == pytest.approx(cost.bytes / 2e9 / 1.0)


def test_the_tables_show_every_contender_without_terminal_codes():
    text = render(found())
    assert "\x1b" not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["slow", "int8", "4", "7000.00"] in [row[:4] for row in rows]
    assert ["kvcast-int8-ring", "int8", "32", "500.00"] in [row[:4] for row in rows]
    assert "its process ended" in text
    assert "missing: not installed: pip install missing" in text


def test_without_a_floor_the_report_says_what_it_needs():
    assert "kvcast[export]" in render(found(floor=False))
