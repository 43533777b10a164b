"""Live transcription of real speech by real models: as good as that of the whole recording."""

import re

import jiwer
import numpy as np
import pytest
from real_speech import EXAMPLE, TESTS, Load, Samples

import kvcast

RATE = 16_000
SPOKEN = (TESTS / "data" / "spoken.txt").read_text(encoding="utf-8").split("\n\n")
# Of these recordings, seconds from and to, and what is said: two paragraphs of the longer one.
EXCERPTS = {
    "example": (0, 30, EXAMPLE.with_suffix(".txt").read_text(encoding="utf-8")),
    "spoken": (55, 149, " ".join(SPOKEN[2:4])),
}


def words(text: str) -> str:
    plain = re.sub(r"\bmr\b\.?", "mister", text.lower())
    return " ".join(re.sub(r"[^a-z' ]", " ", plain).split())


def heard_live(model: kvcast.WhisperModel, samples: Samples, piece: float, **options) -> str:
    """Feed pieces of so many seconds, and hold every update against the others."""
    live = model.live(**options)
    size = round(piece * RATE)
    updates = []
    for at in range(0, len(samples), size):
        updates += live.feed(samples[at : at + size])
    updates += live.finish()
    segments = [update.segment for update in updates if update.segment is not None]
    settled = "".join(update.settled for update in updates)
    assert settled == "".join(segment.text for segment in segments)
    times = [time for segment in segments for time in (segment.start, segment.end)]
    assert times == sorted(times)
    assert times[-1] <= live.duration
    assert live.duration == len(samples) / RATE
    return settled


def error(truth: str, text: str) -> float:
    """In percent."""
    return 100 * jiwer.wer(words(truth), words(text))


def test_a_command_is_understood(load: Load, recordings):
    text = heard_live(load("demo", quantize="none"), recordings["004"], 0.5)
    whole = load("demo", quantize="none").transcribe(recordings["004"])
    assert words(text) == words("".join(segment.text for segment in whole))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "piece"), [("example", 40.0), ("spoken", 4.0)])
def test_live_is_within_two_points_of_the_whole_recording(
    name: str, piece: float, load: Load, recordings
):
    model = load("demo", quantize="none")
    start, end, truth = EXCERPTS[name]
    samples = recordings[name][start * RATE : end * RATE]
    whole = error(truth, "".join(segment.text for segment in model.transcribe(samples)))
    assert whole < 10
    assert error(truth, heard_live(model, samples, piece)) <= whole + 2


@pytest.mark.slow
def test_silence_between_utterances_says_nothing(load: Load, recordings):
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
