"""Sound bundles of every family and runtime pass, whatever the weights and the texts."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kit.dimensions import EXECUTORCH, MISTRAL, MIXED, NEOX
from kvcast.spec.runtimes import BundlePrecision
from kvcast.verification.verifying import verify
from verification.subjects import FAMILIES, failed, subject

SEEDS = 20
PRECISIONS: Mapping[str, BundlePrecision] = {
    "fp32": BundlePrecision(quantize="none"),
    "fp16 caches": BundlePrecision(quantize="none", cache="fp16"),
    "int8": BundlePrecision(quantize="int8", cache="fp16"),
    "int4": BundlePrecision(quantize="int4", cache="fp16"),
    "onnx int8": BundlePrecision(quantize="int8"),
    "onnx int4": BundlePrecision(quantize="int4", cache="int8"),
    "bf16": BundlePrecision(quantize="none", dtype="bf16", cache="bf16"),
    "8da8w": BundlePrecision(quantize="8da8w"),
}
_LIKE_OTHERS = ("cross-biased t5", "nllb", "streaming moonshine", "ctc", "voxtral", "simbert")
EVERY = {name: sizes for name, sizes in FAMILIES.items() if name not in _LIKE_OTHERS}
EVERY["neox"] = NEOX
ON_ONNX = ("whisper", "t5", "marian", "llama", "gemma3", "mixtral", "qwen3.5", "roformer")
SOAKED: Sequence[tuple[str, Any, str, str]] = [
    *(
        (name, dimensions, "native", precision)
        for name, dimensions in EVERY.items()
        for precision in ("fp32", "fp16 caches", "int8", "int4")
    ),
    *(
        (name, EVERY[name], "onnx", precision)
        for name in ON_ONNX
        for precision in ("fp32", "onnx int8")
    ),
    ("mistral", MISTRAL, "onnx", "onnx int4"),
]
COMPILED: Sequence[tuple[str, Any, str, str]] = [
    ("mixed", MIXED, "aoti", "fp32"),
    ("mixed", MIXED, "aoti", "bf16"),
    *((name, dimensions, "executorch", "fp32") for name, dimensions in EXECUTORCH.items()),
    ("mixed", MIXED, "executorch", "8da8w"),
]
"""Compiling takes long: of one set of weights, with many texts."""


def title(case: tuple[str, Any, str, str]) -> str:
    name, _, runtime, precision = case
    return f"{name} {runtime} {precision}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [case for case in SOAKED if title(case) in {"granite4 native int8", "t5 onnx onnx int8"}],
    ids=title,
)
def test_a_sound_bundle_passes(case, tmp_path):
    _, dimensions, runtime, precision = case
    model = subject(dimensions, runtime, PRECISIONS[precision], 1, tmp_path / "bundle")
    assert failed(verify(model, positions=40, seed=1)) == {}


@pytest.mark.soak
@pytest.mark.parametrize("case", SOAKED, ids=title)
def test_no_seed_of_weights_and_texts_gives_a_false_alarm(case, tmp_path):
    _, dimensions, runtime, precision = case
    for seed in range(SEEDS):
        folder = tmp_path / str(seed)
        model = subject(dimensions, runtime, PRECISIONS[precision], seed, folder)
        assert failed(verify(model, positions=40, seed=seed)) == {}, seed


@pytest.mark.soak
@pytest.mark.parametrize("case", COMPILED, ids=title)
def test_no_seed_of_texts_gives_a_false_alarm(case, tmp_path):
    _, dimensions, runtime, precision = case
    model = subject(dimensions, runtime, PRECISIONS[precision], 0, tmp_path / "bundle")
    for seed in range(SEEDS):
        assert failed(verify(model, positions=40, seed=seed)) == {}, seed
