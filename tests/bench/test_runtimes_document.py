"""From measurements of every runtime to the JSON object and the tables, with simple figures."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tiny_text import TINY

from kvcast.bench.arena import Seat
from kvcast.bench.runtimes.contenders import Cached, Recomputing, Task
from kvcast.bench.runtimes.document import Measured, document
from kvcast.bench.runtimes.forms import Form
from kvcast.bench.runtimes.report import render
from kvcast.bench.runtimes.speech import ENCODE, STEP, TRANSCRIBE, SpeechPlan
from kvcast.bench.runtimes.text import FIRST, TOKEN, TextPlan
from kvcast.bench.turns import Result
from random_models import SMALL

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "bench-runtimes.schema.json").read_text(encoding="utf-8")
)
SPEECH = SpeechPlan(
    dimensions=SMALL, language="en", position=7, samples="", seconds=2.5, reference="one two"
)
TEXT = TextPlan(dimensions=TINY, prompt=16, new=4)
TASK = Task(model="demo", folder="", threads=2)
ONNX, AOTI = (Form(runtime=runtime, precision="int8") for runtime in ("onnx", "aoti"))
SETTINGS = {"threads": 2, "runs": 3, "runtimes": ["onnx", "aoti"], "precisions": ["int8"]}
RATES = {"read": 1e9, "read_again": 2e9, "int8": 1e12, "fp32": 1e11}


def seat(contender: Cached) -> Seat:
    versions = {"kvcast": "1.0"}
    return Seat(contender.name, "int8", "", versions, 0.5, 0.25, remote=None)  # type: ignore[arg-type]


def result(seconds: float, **facts: Any) -> Result:
    names = (STEP, ENCODE, TRANSCRIBE, FIRST, TOKEN)
    answers = [
        dict.fromkeys(names, seconds * factor) | {"peak_bytes": 10**7, **facts}
        for factor in (1, 2, 9)
    ]
    return Result(answers, [0.0] * 3)


def measured(floor: bool = True) -> Measured:
    contenders = [Cached(TASK, ONNX), Cached(TASK, AOTI), Recomputing(TASK, AOTI)]
    times = dict(zip((one.name for one in contenders), (0.1, 0.05, 0.4), strict=True))
    results = {
        measure: {name: result(time, text=" One, too.", tokens=[3]) for name, time in times.items()}
        for measure in (STEP, ENCODE, TRANSCRIBE, "continue")
    }
    results[ENCODE]["aoti-int8"] = Result(failure="its process ended")
    return Measured(
        contenders=contenders,
        seats=[seat(one) for one in contenders],
        absent={"onnx-bf16": "bundles of ONNX Runtime are in fp32"},
        results=results,
        rates={"int8": [RATES]} if floor else None,
    )


def found(floor: bool = True, plan: Any = SPEECH) -> dict[str, Any]:
    return document(measured(floor), plan, model="demo", settings=SETTINGS)


def result_of(whole: dict[str, Any], name: str, figure: str) -> dict[str, Any]:
    (contender,) = (one for one in whole["contenders"] if one["name"] == name)
    return next(one for one in contender["results"] if one["figure"] == figure)


@pytest.mark.parametrize("plan", [SPEECH, TEXT])
@pytest.mark.parametrize("floor", [True, False])
def test_the_object_keeps_its_schema(floor: bool, plan: Any):
    jsonschema.validate(json.loads(json.dumps(found(floor, plan))), SCHEMA)


def test_medians_are_compared_with_onnx_and_with_the_cached_form():
    whole = found()
    assert result_of(whole, "aoti-int8", STEP)["times_onnx"] == pytest.approx(0.5)
    assert result_of(whole, "aoti-int8", STEP)["times_cached"] is None
    recomputing = result_of(whole, "aoti-int8-recompute", STEP)
    assert recomputing["times_onnx"] == pytest.approx(4)
    assert recomputing["times_cached"] == pytest.approx(8)
    assert recomputing["seconds"]["median"] == pytest.approx(0.8)
    # What it would be compared with has failed.
    assert result_of(whole, "aoti-int8-recompute", ENCODE)["times_cached"] is None


def test_a_recording_has_a_word_error_and_no_floor():
    end_to_end = result_of(found(), "onnx-int8", TRANSCRIBE)
    assert end_to_end["word_error"] == 0.5
    assert end_to_end["text"] == "One, too."
    assert end_to_end["floor"] is None
    unknown = document(measured(), replace(SPEECH, reference=None), model="demo", settings=SETTINGS)
    assert result_of(unknown, "onnx-int8", TRANSCRIBE)["word_error"] is None


def test_fractions_are_of_each_forms_own_floor():
    whole = found()
    step = result_of(whole, "onnx-int8", STEP)
    cost = SPEECH.costs(ONNX, recomputes=False)[STEP]
    assert step["floor"] == pytest.approx(
        max(cost.bytes / 2e9, cost.int8 / 1e12 + cost.fp32 / 1e11)
    )
    assert step["fraction"] == pytest.approx(step["floor"] / 0.2)
    assert whole["rates"][0]["step_bytes"] == round(cost.bytes)


def test_recomputing_is_charged_the_projections_that_encode_is_spared():
    cached, again = (SPEECH.costs(ONNX, recomputes=recomputes) for recomputes in (False, True))
    weights = SMALL.decoder_layers * 2 * SMALL.d_model**2
    operations = 2 * SMALL.source_positions * weights
    assert again[STEP].int8 - cached[STEP].int8 == operations
    assert again[STEP].bytes - cached[STEP].bytes == weights
    assert cached[ENCODE].int8 - again[ENCODE].int8 == operations


def test_bf16_is_charged_half_the_bytes_and_no_fp32():
    whole, half = (
        TEXT.costs(Form(runtime="aoti", precision=precision), recomputes=False)[TOKEN]
        for precision in ("fp32", "bf16")
    )
    assert half.bytes == whole.bytes / 2
    assert (half.int8, half.fp32) == (whole.fp32, 0)


def test_the_tables_show_every_contender_and_say_what_was_done():
    text = render(found())
    assert "\x1b" not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["aoti-int8-recompute", "int8", "800.00", "400.00"] in [row[:4] for row in rows]
    assert "its process ended" in text
    assert "onnx-bf16: bundles of ONNX Runtime are in fp32" in text
    assert "1 row, 1 new token at position 7, 25 source positions" in text
    assert "2.50 s of sound to text: greedy (beam 1)" in text


def test_without_a_floor_the_report_says_what_it_needs():
    assert "kvcast[export]" in render(found(floor=False))
