"""Languages are told where they change, in few hearings, and each frame has one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kit.scripted_runtimes import at_once, result_of
from kvcast.whisper.language_detection import AHEAD, LanguageSpans, piece_frames

LANGUAGES = ("en", "de", "fr")
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
            part = np.full(frames, 1.0 + 0.01 * LANGUAGES.index(language), np.float32)
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
        counts = [int(np.isclose(window_mt, 1 + 0.01 * i).sum()) for i in range(len(LANGUAGES))]
        self.heard.append(sum(counts))
        shares = np.array(counts) / max(sum(counts), 1)
        best = int(shares.argmax())
        rest = (1 - self.sure) / 2
        return {code: self.sure if i == best else rest for i, code in enumerate(LANGUAGES)}

    def hear(self, window_mt: NDArray[np.float32]) -> Any:
        return at_once(self.detect(window_mt))


def all_turns(spoken: Spoken) -> list[tuple[int, int, str]]:
    """First frame, end and language, one after the other."""
    turns = LanguageSpans(spoken, (0, spoken.frames), spoken.hear)
    seek, spans = 0, []
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

    turns = LanguageSpans(spoken, (0, spoken.frames), lambda window_mt: at_once(detect(window_mt)))
    assert {result_of(turns.at(seek)).language for seek in range(0, spoken.frames, 50)} == {"en"}


def test_detection_reads_no_further_than_needed() -> None:
    spoken = Spoken([("en", 60_000)])
    result_of(LanguageSpans(spoken, (0, spoken.frames), spoken.hear).at(0))
    assert sum(spoken.heard) < AHEAD + 3 * 1600


@given(
    turns=st.lists(
        st.tuples(st.sampled_from(LANGUAGES), st.integers(1, 4000)), min_size=1, max_size=5
    ),
    seeks=st.lists(st.floats(0, 1), max_size=5),
)
def test_whatever_is_spoken_every_moment_has_a_language(turns, seeks) -> None:
    spoken = Spoken(turns)
    spans = all_turns(spoken)
    assert spans[-1][1] == spoken.frames
    again = LanguageSpans(spoken, (0, spoken.frames), spoken.hear)
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
