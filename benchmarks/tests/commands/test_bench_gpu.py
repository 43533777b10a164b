"""`kvcast bench gpu` without a CUDA device, and what it measures, on the CPU with tiny models."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from kit.dimensions import MISTRAL, SMALL
from kvcast.checkpoints.source import read_dimensions
from kvcast.cli.arguments import Parser
from kvcast.errors import KvcastError, UsageError
from kvcast.runtimes.aoti.precision import Precision
from kvcast_bench import machine
from kvcast_bench.commands import gpu
from kvcast_bench.gpu import measure_on
from kvcast_bench.render import render
from kvcast_bench.workloads.gpu import BYTES, PUBLISHED, TimedModel

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "tests" / "data" / "configs"
SCHEMA = json.loads((ROOT / "docs" / "bench.schema.json").read_text(encoding="utf-8"))
MODELS = {
    "speech": TimedModel(
        dimensions=replace(SMALL, decoder_layers=1, alignment_heads=()), prompt=4, new=3
    ),
    "text": TimedModel(dimensions=MISTRAL, prompt=5, new=3),
}


def arguments(*words: str) -> argparse.Namespace:
    parser = Parser()
    gpu.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture(scope="module")
def measured() -> tuple[dict[str, Any], Any]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(machine, "PATIENCE", 0.2)  # figures do not matter here
        return measure_on(
            "cpu", MODELS, lambda module, _: module, dtype="fp32", runs=2, copied=2**16
        )


@pytest.fixture(scope="module")
def document(measured: tuple[dict[str, Any], Any]) -> dict[str, Any]:
    return measured[0]


def rows(document: dict[str, Any], model: str) -> list[dict[str, Any]]:
    return [row for row in document["rows"] if row["trial"]["model"] == model]


@pytest.mark.slow
def test_the_document_is_valid_and_says_what_was_measured(document: dict[str, Any]):
    jsonschema.validate(json.loads(json.dumps(document)), SCHEMA)
    names = [row["backend"] for row in document["rows"]]
    assert names == ["speech-recompute", "speech-cond", "speech-programs", "text-programs"]
    assert {absent["name"] for absent in document["absent"]} == {
        f"{model}-{variant}" for model in MODELS for variant in ("graphs", "graphs-library")
    }
    for row in document["rows"]:
        step = row["metrics"]["step"]
        assert row["facts"]["agreeing"] == 3
        assert len(step["all"]) == 2
        assert row["facts"]["tokens_per_second"] == pytest.approx(1 / step["median"])


@pytest.mark.slow
def test_the_limit_is_bytes_over_the_best_rate(document: dict[str, Any]):
    assert [rates["of"] for rates in document["rates"]] == list(MODELS)
    for rates in document["rates"]:
        floor = rates["step_bytes"] / max(rates["rates"].values())
        for row in rows(document, rates["of"]):
            step = row["metrics"]["step"]
            assert step["floor"] == pytest.approx(floor, rel=1e-4)
            assert step["fraction"] == pytest.approx(step["floor"] / step["median"])


@pytest.mark.slow
def test_people_read_every_variant_and_why_one_is_absent(measured: tuple[dict[str, Any], Any]):
    shown = render(*measured)
    for words in ("projected at every step", "torch.cond", "two programs", "need a CUDA device"):
        assert words in shown
    assert "speech: 3 steps after 4 tokens" in shown


def test_without_a_cuda_device_it_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(KvcastError, match="no CUDA device is present") as raised:
        gpu.run(arguments())
    assert raised.value.exit_code == 1


@pytest.mark.parametrize("words", [("--runs", "0"), ("--new", "0"), ("--prompt", "-1")])
def test_numbers_below_one_are_wrong_usage(words: tuple[str, ...]):
    with pytest.raises(UsageError, match="must be 1 or more"):
        arguments(*words)


def test_a_text_longer_than_the_model_is_wrong_usage():
    models = {"speech": replace(MODELS["speech"], new=29)}
    with pytest.raises(UsageError, match="more than the 32 of speech"):
        measure_on("cpu", models, lambda module, _: module, dtype="fp32", runs=1)


def test_the_command_offers_published_models_and_the_dtypes_that_there_are():
    assert arguments().model == list(PUBLISHED)
    assert [arguments("--dtype", name).dtype for name in BYTES] == list(BYTES)
    for name, timed in PUBLISHED.items():
        assert timed.dimensions == read_dimensions(CONFIGS / name)
    for name, size in BYTES.items():
        assert Precision(dtype=name).torch_dtype.itemsize == size
