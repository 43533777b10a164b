"""Real recordings, real weights: segments are openai-whisper's, token for token.

fp32 on each runtime at temperature 0 (samples cannot be compared: random numbers differ), with what
repeats itself left in, as there.
"""

from collections.abc import Callable
from typing import Any

import pytest

from kit.marks import slow, soak
from kit.openai_whisper import Oracle
from kit.recordings import Load, Samples

# openai-whisper sorts torch tensors with NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")

ALONE = {"condition_on_previous_text": False}
UNTIMED = {"timestamps": False}
BEAMS = {"beam": 5}


def assert_equal(
    model: str,
    runtime: str,
    load: Load,
    oracle: Callable[[str], Oracle],
    recordings: dict[str, Samples],
    recording: str,
    options: dict[str, Any],
) -> list[Any]:
    samples = recordings[recording]
    ours = load(model, runtime=runtime, quantize="none").transcribe(
        samples, temperature=0.0, stop_repetition=False, **options
    )
    segments = list(ours)
    theirs = oracle(model).transcribe(recording, samples, temperature=0.0, **options)
    assert segments
    assert [(s.seek, s.start, s.end, list(s.tokens), s.text, s.temperature) for s in segments] == [
        (s["seek"], s["start"], s["end"], s["tokens"], s["text"], s["temperature"])
        for s in theirs["segments"]
    ]
    for segment, expected in zip(segments, theirs["segments"], strict=True):
        assert segment.avg_logprob == pytest.approx(expected["avg_logprob"], abs=1e-3)
        assert segment.no_speech_prob == pytest.approx(expected["no_speech_prob"], abs=1e-3)
        assert segment.compression_ratio == expected["compression_ratio"]
    assert ours.language == theirs["language"]
    return segments


@pytest.mark.parametrize(
    ("runtime", "options"),
    [
        slow("native", {}),
        soak("onnx", {}),
        slow("onnx", BEAMS | UNTIMED),
        soak("eager", {}),
        soak("eager", BEAMS),
    ],
    ids=str,
)
def test_real_speech(runtime, options, load, oracle, recordings):
    assert_equal("demo", runtime, load, oracle, recordings, "example", options)


@pytest.mark.parametrize(
    ("runtime", "options"),
    [soak("eager", {}), soak("onnx", UNTIMED), slow("onnx", ALONE), soak("onnx", BEAMS | ALONE)],
    ids=str,
)
def test_speech_with_40_seconds_of_silence_inside(runtime, options, load, oracle, recordings):
    assert_equal("demo", runtime, load, oracle, recordings, "pauses", options)


@pytest.mark.parametrize(("recording", "seconds"), [slow("beginning", 75), soak("spoken", 180)])
def test_minutes_of_speech(recording, seconds, load, oracle, recordings):
    segments = assert_equal("demo", "onnx", load, oracle, recordings, recording, {})
    assert segments[-1].end > seconds


# Scripted models have all options, in test_transcription_equals_openai.py and in
# test_window_decoder_equals_openai.py.
@pytest.mark.parametrize(
    "options",
    [
        slow({"initial_prompt": "word " * 400, "clip_end": 17.3}),
        soak({"clip_timestamps": [1.0, 6.5, 9.0, 20.0, 24.0]}),
        slow({"suppress_tokens": "", "clip_start": 5.0, "clip_end": 17.3}),
        soak({"beam": 5, "max_new_tokens": 20, "clip_end": 17.3}),
        soak({"initial_prompt": "Mrs. Dashwood, Elinor & Marianne.", "clip_start": 3.21}),
        soak({"suppress_tokens": "11,13,-1", "clip_end": 17.3}),
        soak({"beam": 3, "patience": 2.0, "length_penalty": 0.6}),
        soak({"no_speech_threshold": 0.0, "logprob_threshold": -0.2}),
    ],
    ids=lambda options: str(options)[:60],
)
def test_two_windows_with_options(options, load, oracle, recordings):
    assert_equal("demo", "onnx", load, oracle, recordings, "two windows", options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"task": "translate", "language": "de"}], ids=str)
def test_a_multilingual_model(options, load, oracle, recordings):
    """Without a language it is detected; the second takes English for German."""
    assert_equal("demo-base", "eager", load, oracle, recordings, "example", options)
