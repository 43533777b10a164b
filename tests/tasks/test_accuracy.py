"""What weights of fewer bits cost: word errors on real speech."""

import re

import jiwer
import pytest
from real_speech import EXAMPLE, Load, Samples

from kvcast.spec.runtimes import PrecisionRequest
from kvcast.tasks.targets import default_runtime

REFERENCE = EXAMPLE.with_suffix(".txt").read_text()


def words(text: str) -> str:
    plain = re.sub(r"\bmr\b\.?", "mister", text.lower())
    return " ".join(re.sub(r"[^a-z' ]", " ", plain).split())


def word_error(
    load: Load, samples: Samples, beam: int, model: str = "demo", **options: str
) -> float:
    """In percent, with the options that people have who give none."""
    segments = load(model, **options).transcribe(samples, beam=beam)
    return 100 * jiwer.wer(words(REFERENCE), words("".join(segment.text for segment in segments)))


@pytest.mark.slow
@pytest.mark.parametrize("beam", [1, 5])
def test_the_default_is_within_three_tenths_of_a_point_of_full_precision(
    beam: int, load: Load, recordings
):
    full = word_error(load, recordings["example"], beam, quantize="none")
    assert full < 1.5
    assert word_error(load, recordings["example"], beam) <= full + 0.3


@pytest.mark.slow
def test_so_is_the_default_of_the_multilingual_model(load: Load, recordings):
    full = word_error(load, recordings["example"], 1, "demo-base", runtime="eager")
    assert word_error(load, recordings["example"], 1, "demo-base") <= full + 0.3


def test_the_default_is_int8_on_the_default_runtime(load: Load, recordings):
    default = load("demo").transcribe(recordings["004"])
    assert list(default) == list(
        load("demo", quantize="int8", runtime=default_runtime(PrecisionRequest())).transcribe(
            recordings["004"]
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "quantize", "most"), [("onnx", "int4", 10), ("eager", "int8", 1.5)]
)
def test_other_weights_read_nearly_the_same(
    runtime: str, quantize: str, most: float, load: Load, recordings
):
    options = {"runtime": runtime, "quantize": quantize}
    assert word_error(load, recordings["example"], 1, **options) < most


def test_the_reference_is_that_of_the_recording():
    assert words("And Mr. John Dashwood, had then") == "and mister john dashwood had then"
    assert words(REFERENCE) == REFERENCE.strip()
