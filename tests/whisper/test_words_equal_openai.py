"""Real recordings, real weights: words lie where openai-whisper has them, on each runtime."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import kvcast
from kit.marks import slow, soak
from kit.openai_whisper import Oracle, interpreted
from kit.recordings import Load, Samples

pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")

LIMIT, USUAL = 0.05, 0.02
"""Seconds between our words' times and theirs: at most, and in the median."""


_interpreted = pytest.fixture(autouse=True)(interpreted)
"""Numba warns of what it compiles."""


def words_of(model: kvcast.WhisperModel, samples: Samples, **options: Any) -> list[Any]:
    segments = list(model.transcribe(samples, temperature=0.0, word_timestamps=True, **options))
    for segment in segments:
        for word in segment.words:
            assert segment.start <= word.start <= word.end <= segment.end
    words = [word for segment in segments for word in segment.words]
    for before, word in pairwise(words):
        assert before.end <= word.start
    assert words
    return words


def apart(words: list[Any], others: list[Any]) -> np.ndarray:
    """Seconds between the starts and the ends of the same words."""
    assert [word.word for word in words] == [word.word for word in others]
    times, expected = (
        np.array([t for word in timed for t in (word.start, word.end)]) for timed in (words, others)
    )
    return np.abs(times - expected)


def assert_near(distances: np.ndarray) -> None:
    assert distances.max() <= LIMIT + 1e-9, (
        f"{np.count_nonzero(distances > LIMIT)} of {len(distances)}"
    )
    assert np.median(distances) < USUAL


def assert_as_theirs(
    model: str,
    load: Load,
    oracle: Callable[[str], Oracle],
    samples: Samples,
    recording: str,
    runtime: str = "onnx",
    **options: Any,
) -> None:
    ours = load(model, runtime=runtime, quantize="none")
    words = words_of(ours, samples, stop_repetition=False, **options)  # they repeat theirs
    theirs = oracle(model).transcribe(
        recording, samples, temperature=0.0, word_timestamps=True, **options
    )
    expected = [
        kvcast.Word(**{name: word[name] for name in ("start", "end", "word", "probability")})
        for segment in theirs["segments"]
        for word in segment["words"]
    ]
    distances = apart(words, expected)
    print(
        f"{model} {recording}: {len(words)} words; apart max {distances.max():.3f} s, "
        f"median {np.median(distances):.3f} s, equal {np.mean(distances < 0.006):.1%}"
    )
    assert_near(distances)
    for word, other in zip(words, expected, strict=True):
        assert word.probability == pytest.approx(other.probability, abs=1e-2)


def test_words_lie_where_openai_whisper_has_them(load, oracle, recordings):
    assert_as_theirs("demo", load, oracle, recordings["001"], "001", "native")


@pytest.mark.parametrize(
    ("model", "recording", "runtime"),
    [
        soak("demo", "004", "onnx"),
        slow("demo-base", "001", "native"),
        soak("demo", "005", "onnx"),
        soak("demo", "beginning", "onnx"),
    ],
)
def test_other_recordings_and_another_model(model, recording, runtime, load, oracle, recordings):
    samples = recordings[recording]
    assert_as_theirs(model, load, oracle, samples, recording, runtime, language="en")


@pytest.mark.parametrize(
    ("recording", "options"),
    [
        slow("001", {"beam": 5}),
        slow("005", {"timestamps": False}),
        slow("two windows", {"hallucination_silence_threshold": 2.0}),
        soak("pauses", {"hallucination_silence_threshold": 2.0}),
    ],
    ids=str,
)
def test_other_ways_to_decode(recording, options, load, oracle, recordings):
    assert_as_theirs("demo", load, oracle, recordings[recording], recording, **options)


@pytest.mark.slow
def test_in_a_batch_words_lie_where_they_do_alone(load, recordings):
    model = load("demo", runtime="native", quantize="none")
    alone, together = (words_of(model, recordings["two windows"], batch=size) for size in (1, 2))
    distances = apart(together, alone)
    print(f"batch of 2: {len(alone)} words; apart max {distances.max():.3f} s")
    assert distances.max() <= USUAL


@pytest.fixture(scope="module")
def expected(load, recordings) -> list[Any]:
    """ONNX Runtime's words."""
    return words_of(load("demo", runtime="onnx", quantize="none"), recordings["two windows"])


# Compiling takes a minute each, and test_alignment.py has the same graphs of small models.
@pytest.mark.parametrize(
    "runtime", [slow("native"), soak("eager"), soak("aoti"), soak("executorch")]
)
def test_other_runtimes_place_words_as_onnx_runtime_does(runtime, expected, load, recordings):
    words = words_of(load("demo", runtime=runtime, quantize="none"), recordings["two windows"])
    distances = apart(words, expected)
    print(f"{runtime}: {len(words)} words; apart max {distances.max():.3f} s")
    assert distances.max() <= USUAL + 1e-9


@pytest.mark.slow
def test_quantised_weights_place_words_in_order(load, recordings):
    """Words may be others; `words_of` holds that they are in order and in their segments."""
    assert words_of(load("demo", runtime="onnx", quantize="int8"), recordings["001"])
