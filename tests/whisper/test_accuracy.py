"""Word errors of quantized weights on real speech."""

import re

import jiwer
import numpy as np
import pytest

import kvcast
from kit.marks import slow, soak
from kit.recordings import EXAMPLE, SPOKEN, Load, Samples
from kvcast.runtimes.target import default_runtime
from kvcast.spec.runtimes import PrecisionRequest

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


@pytest.mark.parametrize("beam", [slow(1), soak(5)])
def test_the_default_is_within_three_tenths_of_a_point_of_full_precision(beam, load, recordings):
    full = word_error(load, recordings["example"], beam, quantize="none")
    assert full < 1.5
    assert word_error(load, recordings["example"], beam) <= full + 0.3


@pytest.mark.slow
def test_the_multilingual_default_is_near_full_precision_too(load: Load, recordings):
    full = word_error(load, recordings["example"], 1, "demo-base", quantize="none")
    assert word_error(load, recordings["example"], 1, "demo-base") <= full + 0.3


# One word of the 429 is 0.23 points. Of the person's 70 words neither precision gets any wrong.
# The synthetic voice's 359 are hard, and what is heard of them hangs by a thread: with 0 to 0.5 s
# of silence before it, fp32 itself makes 32 to 54 errors with tiny.en and 35 to 95 with base, one
# window after the other, since an error is part of the text that precedes the next window. So the
# errors of several such beginnings are counted. Measured with 6 of them, in points more than fp32:
# tiny.en +0.63 in batches of 8 and -0.43 one after the other (from 7.3 and 9.4), base -0.35 and
# -0.08 (from 9.7 and 13.5); with the first alone 0.00, -3.50, -0.23 and +3.26. 0.2 points are less
# than can be told apart here.
MOST = {8: 1.0, None: 3.0}


@pytest.mark.parametrize(
    ("model", "batch", "beginnings"),
    [
        slow("demo", 8, 1),
        *(soak(model, *case) for model in ("demo", "demo-base") for case in ((8, 6), (None, 3))),
    ],
)
def test_int8_makes_hardly_more_errors_than_full_precision_over_218_seconds(
    model, batch, beginnings, load, recordings
):
    rates = {}
    for quantize in ("none", "int8"):
        opened = load(model, runtime="native", quantize=quantize)
        counts = [errors(opened, recordings, batch, begin) for begin in range(beginnings)]
        rates[quantize] = 100 * np.mean(counts) / WORDS
        print(f"{model}, batch {batch}, {quantize}: {counts}, {rates[quantize]:.2f} %")
    assert rates["int8"] - rates["none"] <= MOST[batch]


TEXTS = {"example": REFERENCE, "spoken": SPOKEN.with_suffix(".txt").read_text(encoding="utf-8")}
WORDS = sum(len(words(text).split()) for text in TEXTS.values())


def errors(
    model: kvcast.WhisperModel, recordings: dict[str, Samples], batch: int | None, begin: int
) -> int:
    """Count wrong words in both recordings, after as many tenths of a second of silence."""
    silence, count = np.zeros(1600 * begin, np.float32), 0
    for name, text in TEXTS.items():
        samples = np.concatenate([silence, recordings[name]])
        segments = model.transcribe(samples, temperature=0.0, batch=batch)
        heard = words("".join(segment.text for segment in segments))
        compared = jiwer.process_words(words(text), heard)
        count += compared.substitutions + compared.deletions + compared.insertions
    return count


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
def test_other_weights_read_nearly_the_same(runtime, quantize, most, load, recordings):
    options = {"runtime": runtime, "quantize": quantize}
    assert word_error(load, recordings["example"], 1, **options) < most


def test_the_reference_is_that_of_the_recording():
    assert words("And Mr. John Dashwood, had then") == "and mister john dashwood had then"
    assert words(REFERENCE) == REFERENCE.strip()
