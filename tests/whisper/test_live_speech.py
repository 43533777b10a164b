"""Live transcription of real speech by real models: as good as that of the whole recording."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jiwer
import numpy as np
import pytest
from test_accuracy import words

import kvcast
from kit.far import FINDS_THIS
from kit.marks import slow, soak
from kit.recordings import EXAMPLE, TESTS, Load, Samples
from kvcast.speech.live import LiveTranscription

RATE = 16_000
SPOKEN = (TESTS / "data" / "spoken.txt").read_text(encoding="utf-8")
TRUTHS = {
    "example": EXAMPLE.with_suffix(".txt").read_text(encoding="utf-8"),
    "minute": SPOKEN.partition("\n\nBut")[0],
    "spoken": SPOKEN,
}
MEGABYTE = 1 << 20


def heard_live(model: kvcast.WhisperModel, samples: Samples, piece: float, **options) -> str:
    """Feed pieces of so many seconds, and hold every update against the others."""
    return settled_live(model.live(**options), samples, piece)


def settled_live(live: LiveTranscription, samples: Samples, piece: float) -> str:
    size, arrived = round(piece * RATE), 0
    # As if hearing took no time: delays are those of waiting for what comes next.
    live._clock = lambda: arrived / RATE
    updates = []
    for at in range(0, len(samples), size):
        arrived = min(at + size, len(samples))
        updates += live.feed(samples[at : at + size])
    updates += live.finish()
    segments = [update.segment for update in updates if update.segment is not None]
    confirmed = "".join(update.settled for update in updates)
    assert confirmed == "".join(segment.text for segment in segments)
    times = [time for segment in segments for time in (segment.start, segment.end)]
    assert times == sorted(times)
    assert times[-1] <= live.duration
    assert live.duration == len(samples) / RATE
    return confirmed


def error(truth: str, text: str) -> float:
    """In percent."""
    return 100 * jiwer.wer(words(truth), words(text))


def test_a_command_is_understood(load: Load, recordings):
    text = heard_live(load("demo"), recordings["004"], 0.5)
    whole = load("demo").transcribe(recordings["004"])
    assert words(text) == words("".join(segment.text for segment in whole))


@pytest.mark.parametrize(
    ("model", "name", "piece"),
    [
        slow("demo", "example", 0.5),
        soak("demo", "minute", 1.0),
        slow("demo-base", "example", 2.0),
        soak("demo", "example", 40.0),
        soak("demo", "spoken", 1.0),
        soak("demo", "spoken", 4.0),
        soak("demo-base", "spoken", 1.0),
    ],
)
def test_live_is_within_two_points_of_the_whole_recording(model, name, piece, load, recordings):
    loaded, samples = load(model), recordings[name]
    truth = TRUTHS[name]
    whole = error(truth, "".join(segment.text for segment in loaded.transcribe(samples)))
    assert whole < 15
    live = loaded.live()
    errors = error(truth, settled_live(live, samples, piece))
    half, most = live.delays.quantile(0.5), live.delays.quantile(0.95)
    print(
        f"\n{model}, {name}, pieces of {piece:g} s: {errors:.1f}% live, {whole:.1f}% whole; delay "
        f"median {half:.1f} s, 95% within {most:.1f} s, longest {live.delays.longest:.1f} s"
    )
    assert errors <= whole + 2
    assert live.delays.longest <= 30 + piece


@pytest.mark.parametrize("minutes", [soak(2), soak(30)])
def test_all_of_it_takes_the_memory_of_its_first_sixth(minutes: int, load: Load):
    """Traced memory is exact; the process's settles after minutes."""
    load("demo")  # or the test is skipped
    words = [sys.executable, Path(__file__).with_name("live_memory.py"), str(minutes)]
    ran = subprocess.run(
        words, env=os.environ | FINDS_THIS, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["updates"] > 6 * minutes
    early, late = report["held"]
    assert late - early < 2 * MEGABYTE
    if minutes >= 30:
        early, late = report["resident"]
        assert late - early < 16 * MEGABYTE


@pytest.mark.slow
def test_silence_between_utterances_has_no_words(load: Load, recordings):
    model = load("demo", quantize="none")
    utterance = recordings["example"][: 9 * RATE]
    pause = np.zeros(40 * RATE, np.float32)
    text = heard_live(model, np.concatenate([utterance, pause, utterance]), 2.0)
    whole = "".join(segment.text for segment in model.transcribe(utterance))
    assert abs(len(words(text).split()) - 2 * len(words(whole).split())) <= 2


@pytest.mark.slow
def test_a_language_is_detected_and_kept(load: Load, recordings):
    model = load("demo-base", runtime="eager")
    live = model.live()
    live.feed(recordings["example"][: 8 * RATE])
    live.finish()
    assert live.language == "en"
    assert model.live(language="German").language == "de"


def test_noise_that_is_no_speech_ends(load: Load):
    live = load("demo", quantize="none").live()
    rng = np.random.default_rng(0)
    live.feed((0.02 * rng.standard_normal(3 * RATE)).astype(np.float32))
    live.finish()
    assert live.duration == 3
