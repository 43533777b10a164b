"""A real multilingual model detects languages, window by window."""

import json
from itertools import groupby
from operator import attrgetter

import jiwer
import numpy as np
import pytest
from numpy.typing import NDArray

from kit.marks import soak
from kit.recordings import EXAMPLE, GERMAN, THREE_TURNS, Load, read
from kvcast.cli import main
from kvcast.whisper.model import WhisperModel

pytestmark = pytest.mark.slow
WINDOW = 30 * 16000
ENGLISH = EXAMPLE.with_suffix(".txt")


@pytest.fixture(scope="module")
def model(load: Load) -> WhisperModel:
    return load("demo-base", quantize="none")


@pytest.fixture(scope="module")
def mixed(recordings) -> NDArray[np.float32]:
    """A window of German, then a window of English."""
    german = recordings["german"]
    assert len(german) < WINDOW
    return np.concatenate([np.pad(german, (0, WINDOW - len(german))), recordings["example"]])


def test_languages_are_detected_with_probabilities(model, recordings):
    for name, language in ("german", "German"), ("example", "English"):
        detected = model.detect_language(recordings[name])
        assert (detected.name, detected.windows) == (language, 1)
        assert detected.probability > 0.9
        assert sum(detected.probabilities.values()) == pytest.approx(1, abs=1e-4)
        assert set(detected.probabilities) == set(model.languages)


@pytest.mark.parametrize("batch", [None, soak(2)])
def test_each_window_of_a_mixed_recording_is_in_its_language(batch, model, mixed):
    transcription = model.transcribe(mixed, multilingual=True, temperature=0.0, batch=batch)
    segments = list(transcription)
    assert transcription.language == "de"
    languages = [segment.language for segment in segments]
    assert languages == sorted(languages)  # de, then en
    german = " ".join(s.text for s in segments if s.language == "de")
    assert "Es war einmal" in german
    english = " ".join(s.text for s in segments if s.language == "en")
    words = jiwer.Compose([jiwer.ToLowerCase(), jiwer.RemovePunctuation(), jiwer.Strip()])
    error = jiwer.wer(words(ENGLISH.read_text(encoding="utf-8")), words(english))
    assert error < 0.2


@pytest.mark.parametrize("batch", [None, soak(2)])
def test_a_turn_within_windows_is_in_its_language(batch, load):
    """English up to 14 s, German up to 41 s, English; Whisper hears English in every window."""
    model = load("demo-base")
    transcription = model.transcribe(
        read(THREE_TURNS), multilingual=True, temperature=0.0, batch=batch
    )
    segments = list(transcription)
    assert transcription.language == "en"
    languages = [segment.language for segment in segments]
    assert [code for code, _ in groupby(languages)] == ["en", "de", "en"]
    first, german, last = (
        " ".join(segment.text for segment in turn)
        for _, turn in groupby(segments, attrgetter("language"))
    )
    assert "in the early morning" in first
    assert "Nobody spoke" in first
    assert "Es war einmal ein kleines Mädchen" in german
    assert "durch das Tal" in german
    assert "In the afternoon the wind became stronger" in last
    spoken = [segment for segment in segments if segment.language == "de"]
    assert (spoken[0].start, spoken[-1].end) == pytest.approx((14.7, 40.8), abs=1)


def test_the_command_prints_the_language(capsys):
    words = ["--model", "demo-base", "--runtime", "eager", "--threads", "1"]
    assert main(["detect", str(GERMAN), str(EXAMPLE), *words, "--json"]) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["language"] for document in documents] == ["de", "en"]
    assert main(["detect", str(GERMAN), *words]) == 0
    assert "  de   German          0.9" in capsys.readouterr().out
