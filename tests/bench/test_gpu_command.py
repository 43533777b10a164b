"""`kvcast bench gpu` without a CUDA device, and what it measures, on the CPU with tiny models."""

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from kvcast.bench import gpu
from kvcast.bench.device.measure import MODELS, Entry, measure
from kvcast.bench.device.report import render
from kvcast.bench.device.subjects import decoder_subject, whisper_subject
from kvcast.errors import KvcastError, UsageError
from random_decoders import MISTRAL
from random_models import SMALL

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "bench-gpu.schema.json").read_text(encoding="utf-8")
)
SPEECH = replace(SMALL, decoder_layers=1)
ENTRIES = {
    "speech": Entry(make=partial(whisper_subject, "speech", SPEECH), positions=32, prompt=4, new=3),
    "text": Entry(make=partial(decoder_subject, "text", MISTRAL), positions=4096, prompt=5, new=3),
}


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    gpu.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return measure(ENTRIES, "cpu", lambda module, _: module, dtype="fp32", runs=2, copied=2**16)


def test_the_document_is_valid_and_says_what_was_measured(found: dict[str, Any]):
    jsonschema.validate(json.loads(json.dumps(found)), SCHEMA)
    speech, text = found["models"]
    assert [form["name"] for form in speech["forms"]] == ["recompute", "cond", "programs"]
    assert [form["name"] for form in text["forms"]] == ["programs"]
    assert {absent["name"] for absent in text["absent"]} == {"graphs", "graphs-library"}
    for form in (*speech["forms"], *text["forms"]):
        assert form["agreeing"] == 3
        assert len(form["step_seconds"]["all"]) == 2
        assert form["tokens_per_second"] == pytest.approx(1 / form["step_seconds"]["median"])


def test_the_limit_is_bytes_over_the_best_rate(found: dict[str, Any]):
    for model in found["models"]:
        floor = model["step_bytes"] / max(found["rates"].values())
        assert model["floor_seconds"] == pytest.approx(floor)
        for form in model["forms"]:
            assert form["fraction"] == pytest.approx(floor / form["step_seconds"]["median"])


def test_people_read_every_form_and_why_one_is_absent(found: dict[str, Any]):
    shown = render(found)
    for words in ("projected at every step", "torch.cond", "two programs", "need a CUDA device"):
        assert words in shown


def test_without_a_cuda_device_it_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(KvcastError, match="no CUDA device is present") as raised:
        gpu.run(arguments())
    assert raised.value.exit_code == 1


@pytest.mark.parametrize("words", [("--runs", "0"), ("--new", "0"), ("--prompt", "-1")])
def test_numbers_below_one_are_wrong_usage(words: tuple[str, ...]):
    with pytest.raises(UsageError, match="must be 1 or more"):
        gpu.run(arguments(*words))


def test_a_text_longer_than_the_model_is_wrong_usage():
    entry = replace(MODELS["whisper-large-v3-turbo"], prompt=400, new=49)
    with pytest.raises(UsageError, match="more than the 448 of turbo"):
        entry.check("turbo")


def test_the_command_offers_the_models_and_numbers_that_there_are():
    from kvcast.bench.device.measure import NUMBERS

    assert arguments().model == list(MODELS)
    assert [arguments("--dtype", name).dtype for name in NUMBERS] == list(NUMBERS)
