"""Sound models pass every check; one whose cache is wrong fails those that ask for it."""

from dataclasses import replace

import jsonschema
import numpy as np
import pytest

from kit.dimensions import GEMMA3, LLAMA, MISTRAL, SMALL
from kvcast.errors import KvcastError
from kvcast.spec.runtimes import BundlePrecision
from kvcast.verification.checks import CHECKS
from kvcast.verification.verifying import verify
from verification.faults import Around
from verification.subjects import EXACT, FAMILIES, INT8, failed, outcomes, subject
from verification.test_verification_report import SCHEMA

SKIPPED = {"recorded", "window", "alignment", "prefix", "dimensions", "weights", "programs"}
"""What some families have no use for, and random models no record of, or no files."""


@pytest.mark.parametrize("name", ["mistral"])
def test_a_sound_model_passes_every_check(name):
    report = verify(subject(FAMILIES[name]), positions=32)
    assert failed(report) == {}
    assert report.passed
    made = outcomes(report)
    assert list(made) == list(CHECKS)
    assert {each for each in made if made[each] == "skipped"} == SKIPPED - {"window", "prefix"}
    jsonschema.validate(report.document(), SCHEMA)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, INT8) for name in FAMILIES),
        # tests/runtimes/test_cache_checks.py has the others.
        *((name, EXACT) for name in ("marian", "nllb", "t5gemma", "t5gemma2", "moonshine")),
        *((name, EXACT) for name in ("streaming moonshine", "canary", "ctc", "tdt")),
        *((name, EXACT) for name in ("qwen3-asr", "voxtral", "llama", "whisper")),
    ],
    ids=lambda part: part if isinstance(part, str) else part.quantize,
)
def test_sound_models_of_every_family_pass(name, precision):
    report = verify(subject(FAMILIES[name], precision=precision), positions=40)
    assert failed(report) == {}
    made = outcomes(report)
    no_caches = {"layers"} if name == "ctc" else set()
    assert {each for each in made if made[each] == "skipped"} <= SKIPPED | no_caches
    assert made["alignment"] == ("passed" if name == "whisper" else "skipped")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("dimensions", "runtime", "precision"),
    [
        (SMALL, "onnx", EXACT),
        (LLAMA, "onnx", BundlePrecision(quantize="int8")),
        (MISTRAL, "onnx", BundlePrecision(quantize="int4", cache="int8")),
        (GEMMA3, "eager", EXACT),
    ],
)
def test_sound_bundles_pass(dimensions, runtime, precision, seed, tmp_path):
    folder = None if runtime == "eager" else tmp_path / "bundle"
    model = subject(dimensions, runtime, precision, seed, folder)
    assert failed(verify(model, positions=40, seed=seed)) == {}


class Forgetful(Around):
    """A runtime whose rows keep what they held when they begin anew."""

    def reset(self, cache, rows, inputs=None):
        return cache if cache.lengths.any() else self.inner.reset(cache, rows, inputs)


class Overflowing(Around):
    """A runtime whose logits overflow past some length."""

    def decode(self, tokens, cache, rows=None, positions=(-1,)):
        logits, grown = self.inner.decode(tokens, cache, rows, positions)
        if grown.lengths.max() > 20:
            logits[...] = np.inf
        return logits, grown


class Refusing(Around):
    def reorder(self, cache, parents):
        raise KvcastError("no room for beams")


def broken(model, how):
    return replace(model, runtime=how(model.runtime))


def test_what_is_wrong_is_reported_by_the_check_that_asks_for_it():
    model = subject(replace(LLAMA, windows=(None,)))
    report = verify(broken(model, Forgetful), positions=32)
    problems = failed(report)
    assert set(problems) == {"second-input", "rows-come-and-go", "memory"}
    assert "input 2 in the row of input 1" in problems["second-input"]
    assert "the first other token is" in problems["second-input"]
    assert not report.passed
    beams = failed(verify(broken(model, Refusing), only=["beams", "chunks"]))
    assert beams == {"beams": "it could not be finished: KvcastError: no room for beams"}


def test_logits_that_are_not_finite_fail():
    model = broken(subject(replace(LLAMA, windows=(None,))), Overflowing)
    problems = failed(verify(model, positions=32, only=["teacher-forced", "capacity"]))
    assert problems.keys() == {"teacher-forced", "capacity"}
    assert "not finite" in problems["teacher-forced"]
    assert "not finite" in problems["capacity"]
