"""The language is heard in as many windows as it takes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from kit.scripted_runtimes import at_once, result_of
from kvcast.engine.callers import Policy
from kvcast.speech.params import LanguageParams
from kvcast.whisper import language_detection
from kvcast.whisper.language_detection import DetectedLanguage
from kvcast.whisper.requests import Features


@dataclass
class Sounds:
    """A recording; frames are numbered from 1 up."""

    content_frames: int
    notices: tuple[str, ...] = ("is mono",)
    silent_frames: int = 0

    def is_silent(self, seek: int, end: int) -> bool:
        return end <= self.silent_frames

    def first_window(self) -> np.ndarray:
        return self.window(0)

    def window(self, seek: int, end: int | None = None) -> np.ndarray:
        assert seek < self.content_frames or not seek
        return np.full((1, 3000), seek + 1, np.float32)


@dataclass
class Listener:
    """Stands in for `WindowRequests`; says for each window in turn what is spoken there."""

    script: Sequence[dict[str, float]]
    heard: list[int] = field(default_factory=list)

    def languages(self, window: Features) -> Policy[dict[str, float]]:
        self.heard.append(int(window.features_mt[0, 0]) - 1)
        return at_once(self.script[len(self.heard) - 1])


def detect(*given: Any) -> DetectedLanguage:
    return result_of(language_detection.detect(*given))


CLEAR = {"en": 0.1, "de": 0.8, "fr": 0.1}
DOUBTFUL = {"en": 0.45, "de": 0.25, "fr": 0.3}


def test_a_clear_window_is_enough():
    listener = Listener([CLEAR])
    detected = detect(listener, Sounds(90_000), LanguageParams())
    assert (detected.language, detected.name, detected.probability) == ("de", "German", 0.8)
    assert (detected.windows, listener.heard) == (1, [0])
    assert detected.notices == ("is mono",)
    assert list(detected.probabilities.items()) == [("de", 0.8), ("en", 0.1), ("fr", 0.1)]


def test_a_language_is_named_without_speech():
    assert detect(Listener([DOUBTFUL]), Sounds(0), LanguageParams()).probabilities["en"] == 0.45


def test_silent_windows_are_passed_over():
    listener = Listener([DOUBTFUL, CLEAR])
    detected = detect(listener, Sounds(90_000, silent_frames=7000), LanguageParams())
    assert (detected.windows, listener.heard) == (2, [6000, 9000])
    listener = Listener([CLEAR])
    assert detect(listener, Sounds(100, silent_frames=9000), LanguageParams()).language == "de"
    assert listener.heard == [0]


def test_a_doubtful_window_is_followed_by_the_next():
    listener = Listener([DOUBTFUL, DOUBTFUL, CLEAR])
    detected = detect(listener, Sounds(90_000), LanguageParams())
    assert (detected.language, detected.probability, detected.windows) == ("de", 0.8, 3)
    assert listener.heard == [0, 3000, 6000]


def test_the_threshold_itself_is_doubtful():
    half = {"en": 0.5, "de": 0.5}
    listener = Listener([half, CLEAR])
    assert detect(listener, Sounds(6000), LanguageParams()).language == "de"


def test_if_all_are_doubtful_their_mean_decides():
    french = {"en": 0.35, "de": 0.2, "fr": 0.45}
    listener = Listener([DOUBTFUL, french, french, DOUBTFUL, CLEAR])
    detected = detect(listener, Sounds(90_000), LanguageParams())
    assert len(listener.heard) == detected.windows == 4
    assert detected.language == "en"
    assert detected.probabilities == pytest.approx({"en": 0.4, "fr": 0.375, "de": 0.225})
    assert list(detected.probabilities) == ["en", "fr", "de"]


def test_a_short_rest_counts_as_little_as_it_holds():
    french = {"en": 0.05, "de": 0.45, "fr": 0.5}
    listener = Listener([DOUBTFUL, french])
    detected = detect(listener, Sounds(3300), LanguageParams())
    assert (detected.language, detected.windows) == ("en", 2)
    assert detected.probability == pytest.approx((3000 * 0.45 + 300 * 0.05) / 3300)


@pytest.mark.parametrize("frames", [1, 2999, 3000])
def test_a_short_recording_has_one_window(frames: int):
    detected = detect(Listener([DOUBTFUL]), Sounds(frames), LanguageParams())
    assert (detected.language, detected.windows) == ("en", 1)
    assert detected.probabilities == pytest.approx(DOUBTFUL)


def test_both_limits_are_options():
    params = LanguageParams(language_detection_segments=1)
    assert detect(Listener([DOUBTFUL]), Sounds(90_000), params).windows == 1
    careless = LanguageParams(language_detection_threshold=0.4)
    assert detect(Listener([DOUBTFUL]), Sounds(90_000), careless).probability == 0.45
