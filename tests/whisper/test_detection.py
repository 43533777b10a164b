"""Languages: their names, detection window by window, and changes between turns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kit.scripted_runtimes import at_once, result_of
from kvcast.engine.callers import Policy
from kvcast.errors import UsageError
from kvcast.speech.languages import COUNTRIES, LANGUAGES, OTHER_NAMES, language_code
from kvcast.speech.params import LanguageParams, TranscribeParams
from kvcast.whisper import language_detection
from kvcast.whisper.language_detection import AHEAD, DetectedLanguage, LanguageSpans, piece_frames
from kvcast.whisper.requests import Features


@pytest.mark.parametrize(
    ("written", "code"),
    [
        *(("en", "en"), ("EN", "en"), ("English", "en"), ("eng", "en"), ("en-US", "en")),
        *(("en_GB", "en"), ("de-AT-1996", "de"), ("Deutsch", "de"), ("ger", "de"), ("deu", "de")),
        *(("zh-CN", "zh"), ("zh-Hant-TW", "zh"), ("cmn", "zh"), ("中文", "zh"), ("普通话", "zh")),
        *(("yue", "yue"), ("zh-yue", "yue"), ("yue-HK", "yue"), ("廣東話", "yue")),
        *(("pt-BR", "pt"), ("português", "pt"), ("español", "es"), ("castellano", "es")),
        *(("nb", "no"), ("nb-NO", "no"), ("nn-NO", "nn"), ("norsk bokmål", "no")),
        *(("iw", "he"), ("in", "id"), ("ji", "yi"), ("jv", "jw"), ("fil", "tl"), ("mo", "ro")),
        *(("haitian  Creole", "ht"), ("haw", "haw"), ("ARB", "ar"), ("日本語", "ja")),
    ],
)
def test_codes_and_names_are_understood(written: str, code: str):
    assert language_code(written, LANGUAGES) == code


@pytest.mark.parametrize(
    ("written", "advice"),
    [
        ("englsh", "did you mean english?"),
        ("germna", "did you mean german?"),
        ("espanhol", "did you mean espanol?"),
        ("jp", "did you mean ja, Japanese?"),
        *[
            (other, "give a code such as en, or a name")
            for other in ("sorbian", "irish", "frisian", "kurdish", "dutsch", "ga", "xx-YY", "")
        ],
    ],
)
def test_no_advice_crosses_to_another_language(written: str, advice: str):
    with pytest.raises(UsageError, match="unknown language") as error:
        language_code(written, LANGUAGES)
    assert str(error.value).endswith(f": {advice}")


def test_a_name_belongs_to_one_language():
    names = [name for names in (*OTHER_NAMES.values(), LANGUAGES.values()) for name in names]
    assert len(names) == len(set(names))
    assert {*OTHER_NAMES, *COUNTRIES.values()} <= set(LANGUAGES)
    assert not set(COUNTRIES) & {*names, *LANGUAGES}
    assert all(name == name.lower() for name in names)


def test_auto_is_as_if_no_language_were_given():
    assert TranscribeParams(language=" Auto") == TranscribeParams()
    assert TranscribeParams(language="auto", multilingual=True).multilingual


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
class VoiceDetector:
    """Stands in for `WindowRequests`; scripts the language of each window."""

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
    listener = VoiceDetector([CLEAR])
    detected = detect(listener, Sounds(90_000), LanguageParams())
    assert (detected.language, detected.name, detected.probability) == ("de", "German", 0.8)
    assert (detected.windows, listener.heard) == (1, [0])
    assert detected.notices == ("is mono",)
    assert list(detected.probabilities.items()) == [("de", 0.8), ("en", 0.1), ("fr", 0.1)]


def test_silent_windows_are_passed_over():
    listener = VoiceDetector([DOUBTFUL, CLEAR])
    detected = detect(listener, Sounds(90_000, silent_frames=7000), LanguageParams())
    assert (detected.windows, listener.heard) == (2, [6000, 9000])
    listener = VoiceDetector([CLEAR])
    assert detect(listener, Sounds(100, silent_frames=9000), LanguageParams()).language == "de"
    assert listener.heard == [0]


@pytest.mark.parametrize("doubtful", [DOUBTFUL, {"en": 0.5, "de": 0.5}])
def test_a_doubtful_window_is_followed_by_the_next(doubtful):
    listener = VoiceDetector([doubtful, DOUBTFUL, CLEAR])
    detected = detect(listener, Sounds(90_000), LanguageParams())
    assert (detected.language, detected.probability, detected.windows) == ("de", 0.8, 3)
    assert listener.heard == [0, 3000, 6000]


def test_if_all_are_doubtful_their_mean_decides():
    french = {"en": 0.35, "de": 0.2, "fr": 0.45}
    listener = VoiceDetector([DOUBTFUL, french, french, DOUBTFUL, CLEAR])
    detected = detect(listener, Sounds(90_000), LanguageParams())
    assert len(listener.heard) == detected.windows == 4
    assert detected.language == "en"
    assert detected.probabilities == pytest.approx({"en": 0.4, "fr": 0.375, "de": 0.225})
    assert list(detected.probabilities) == ["en", "fr", "de"]


def test_a_short_rest_counts_as_little_as_it_holds():
    french = {"en": 0.05, "de": 0.45, "fr": 0.5}
    listener = VoiceDetector([DOUBTFUL, french])
    detected = detect(listener, Sounds(3300), LanguageParams())
    assert (detected.language, detected.windows) == ("en", 2)
    assert detected.probability == pytest.approx((3000 * 0.45 + 300 * 0.05) / 3300)


@pytest.mark.parametrize("frames", [0, 1, 2999, 3000])
def test_a_short_recording_has_one_window(frames: int):
    detected = detect(VoiceDetector([DOUBTFUL]), Sounds(frames), LanguageParams())
    assert (detected.language, detected.windows) == ("en", 1)
    assert detected.probabilities == pytest.approx(DOUBTFUL)


def test_both_limits_are_options():
    params = LanguageParams(language_detection_segments=1)
    assert detect(VoiceDetector([DOUBTFUL]), Sounds(90_000), params).windows == 1
    careless = LanguageParams(language_detection_threshold=0.4)
    assert detect(VoiceDetector([DOUBTFUL]), Sounds(90_000), careless).probability == 0.45


SPOKEN = ("en", "de", "fr")
QUIET = 0.1
TURN = 100
"""Frames of the pause between turns."""


@dataclass
class Spoken:
    """Turns of (language, frames), with a long pause between them and short ones within.

    A frame holds the number of its language, or silence; the larger part of a stretch decides what
    is heard in it, as surely as `sure` says.
    """

    turns: Sequence[tuple[str, int]]
    sure: float = 0.9
    heard: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts = []
        for language, frames in self.turns:
            part = np.full(frames, 1.0 + 0.01 * SPOKEN.index(language), np.float32)
            part[::270] = QUIET
            for frame in range(270, frames - 40, 270):
                part[frame : frame + 40] = QUIET
            parts += [part, np.full(TURN, QUIET, np.float32)]
        self.frames_t = np.concatenate(parts)

    @property
    def frames(self) -> int:
        return len(self.frames_t)

    @property
    def changes(self) -> list[int]:
        """The middles of the pauses between turns."""
        ends = np.cumsum([frames + TURN for _, frames in self.turns])
        return [int(end) - TURN // 2 for end in ends[:-1]]

    def window(self, seek: int, end: int | None = None) -> NDArray[np.float32]:
        window_t = self.frames_t[seek : min(seek + 3000, end or seek + 3000)]
        return np.pad(window_t, (0, 3000 - len(window_t)))[None]

    def is_silent(self, seek: int, end: int) -> bool:
        return False

    def detect(self, window_mt: NDArray[np.float32]) -> dict[str, float]:
        counts = [int(np.isclose(window_mt, 1 + 0.01 * i).sum()) for i in range(len(SPOKEN))]
        self.heard.append(sum(counts))
        shares = np.array(counts) / max(sum(counts), 1)
        best = int(shares.argmax())
        rest = (1 - self.sure) / 2
        return {code: self.sure if i == best else rest for i, code in enumerate(SPOKEN)}

    def turns_from(self, detect: Callable[..., dict[str, float]] | None = None) -> LanguageSpans:
        detect = detect or self.detect
        return LanguageSpans(self, (0, self.frames), lambda window_mt: at_once(detect(window_mt)))


def all_turns(spoken: Spoken) -> list[tuple[int, int, str]]:
    """First frame, end and language, one after the other."""
    turns, seek, spans = spoken.turns_from(), 0, []
    while seek < spoken.frames:
        turn = result_of(turns.at(seek))
        assert turn.end > seek
        if spans and spans[-1][2] == turn.language:
            spans[-1] = (spans[-1][0], turn.end, turn.language)
        else:
            spans.append((seek, turn.end, turn.language))
        seek = turn.end
    return spans


@pytest.mark.parametrize(
    "turns",
    [
        [("en", 1400), ("de", 2600), ("en", 1300)],
        [("en", 1400), ("de", 1600), ("en", 1400)],
        [("de", 5000), ("en", 900), ("de", 4000)],
        [("en", 2500), ("de", 1000), ("fr", 1000), ("en", 1000)],
    ],
    ids=str,
)
def test_changes_are_found_in_the_pauses_between(turns) -> None:
    spoken = Spoken(turns)
    spans = all_turns(spoken)
    assert [language for _, _, language in spans] == [language for language, _ in turns]
    assert [first for first, _, _ in spans[1:]] == pytest.approx(spoken.changes, abs=TURN // 2)


def test_a_certain_language_is_detected_in_long_pieces() -> None:
    doubtful, sure = (Spoken([("en", 60_000)], sure=sure) for sure in (0.9, 0.999))
    assert [turn[2] for turn in all_turns(doubtful) + all_turns(sure)] == ["en"] * 2
    assert 60_000 / 1600 <= len(doubtful.heard) <= 60_000 / 600
    assert len(sure.heard) < 0.75 * len(doubtful.heard)


def test_a_doubtful_piece_is_in_a_neighbours_language() -> None:
    spoken = Spoken([("en", 3000), ("fr", 700), ("en", 3000)], sure=0.9)
    clear = spoken.detect

    def detect(window_mt: NDArray[np.float32]) -> dict[str, float]:
        probabilities = clear(window_mt)
        return {"fr": 0.4, "en": 0.3, "de": 0.3} if probabilities["fr"] > 0.5 else probabilities

    turns = spoken.turns_from(detect)
    assert {result_of(turns.at(seek)).language for seek in range(0, spoken.frames, 50)} == {"en"}


def test_detection_reads_no_further_than_needed() -> None:
    spoken = Spoken([("en", 60_000)])
    result_of(spoken.turns_from().at(0))
    assert sum(spoken.heard) < AHEAD + 3 * 1600


@given(
    turns=st.lists(
        st.tuples(st.sampled_from(SPOKEN), st.integers(1, 4000)), min_size=1, max_size=5
    ),
    seeks=st.lists(st.floats(0, 1), max_size=5),
)
def test_whatever_is_spoken_every_moment_has_a_language(turns, seeks) -> None:
    spoken = Spoken(turns)
    spans = all_turns(spoken)
    assert spans[-1][1] == spoken.frames
    again = spoken.turns_from()
    for seek in sorted(int(share * (spoken.frames - 1)) for share in seeks):
        turn = result_of(again.at(seek))
        assert turn.end > seek
        assert turn.end == spoken.frames or turn.end - seek >= 100


@given(
    loudness=st.lists(st.floats(-1, 2, width=32), min_size=1, max_size=40),
    frames=st.integers(1, 9000),
    longest=st.sampled_from([1600, 2800]),
)
def test_pieces_are_neither_short_nor_long(loudness, frames, longest) -> None:
    window_t = np.repeat(np.array(loudness, np.float32), 75)[:3000]
    window_mt = np.pad(window_t, (0, 3000 - len(window_t)))[None]
    cut = piece_frames(window_mt, frames, longest)
    assert cut == frames < 1200 or min(600, frames) <= cut <= longest
    assert cut == frames or frames - cut >= 600
