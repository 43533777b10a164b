"""Language detection: in the first 30 seconds, in further ones if these leave doubt, and by spans.

Several windows are combined as faster-whisper does. A model is sure of the language of the larger
or louder part of a window even where a third is in another; so pieces between long pauses are
detected.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.features import MelWindows
from kvcast.engine.callers import Policy
from kvcast.speech.languages import LANGUAGES
from kvcast.speech.params import LanguageParams
from kvcast.speech.recordings import WindowSource, quiet_frame
from kvcast.transcripts.segments import FRAMES_PER_SECOND
from kvcast.whisper.requests import Features, likeliest
from kvcast.whisper.windows import WindowRequests
from kvcast.whisper.word_timestamps import WINDOW_FRAMES


@dataclass(frozen=True, kw_only=True)
class DetectedLanguage:
    """The language of a recording.

    Attributes:
        language: code of the likeliest language.
        probabilities: of every language that the model knows, by code, likeliest first.
        windows: how many windows were decoded.
        notices: about the recording, for the user, one line each.

    """

    language: str
    probabilities: Mapping[str, float]
    windows: int
    notices: tuple[str, ...] = ()

    @property
    def probability(self) -> float:
        """Of the likeliest language."""
        return self.probabilities[self.language]

    @property
    def name(self) -> str:
        """Its English name."""
        return LANGUAGES[self.language].title()


def detect(
    requests: WindowRequests, recording: MelWindows, params: LanguageParams
) -> Policy[DetectedLanguage]:
    """Detect the language of 30 s windows until one exceeds the threshold; silent ones are skipped.

    If none does, the probabilities are the mean, weighted by the length of the audio in each
    window. Raises UsageError for an English-only model.
    """
    totals: Counter[str] = Counter()
    weight, windows = 0, 0
    seeks = _audible(recording)[: params.language_detection_segments]
    for windows, seek in enumerate(seeks, 1):
        frames = max(min(WINDOW_FRAMES, recording.content_frames - seek), 1)  # also of no speech
        features_mt = recording.window(seek) if seek else recording.first_window()
        probabilities = yield from requests.languages(Features(features_mt))
        if max(probabilities.values()) > params.language_detection_threshold:
            return _ranked(probabilities, windows, recording.notices)
        totals.update({code: frames * value for code, value in probabilities.items()})
        weight += frames
    mean = {code: total / weight for code, total in totals.items()}
    return _ranked(mean, windows, recording.notices)


def _audible(recording: MelWindows) -> list[int]:
    """Return the first frames of windows that are not silent; if all are, of the first."""
    seeks = range(0, recording.content_frames, WINDOW_FRAMES)
    return [seek for seek in seeks if not recording.is_silent(seek, seek + WINDOW_FRAMES)] or [0]


def _ranked(
    probabilities: Mapping[str, float], windows: int, notices: tuple[str, ...]
) -> DetectedLanguage:
    likeliest_first = sorted(probabilities, key=lambda code: -probabilities[code])
    return DetectedLanguage(
        language=likeliest_first[0],
        probabilities={code: probabilities[code] for code in likeliest_first},
        windows=windows,
        notices=notices,
    )


AHEAD = 46 * FRAMES_PER_SECOND  # frames whose language is known ahead, as windows need it

_SHORT, _LONG = 16 * FRAMES_PER_SECOND, 28 * FRAMES_PER_SECOND
"""Maximum frames of a piece of audio, and of a piece in the same language as the previous one."""

_SHORTEST = 6 * FRAMES_PER_SECOND  # in shorter audio, models often detect a wrong language
_NEAR = 8 * FRAMES_PER_SECOND  # a change may be this far from the place where it was detected
_LEAST = 1 * FRAMES_PER_SECOND  # shorter pieces are not detected alone
_PAUSE = 0.3 * FRAMES_PER_SECOND  # a speaker who changes the language pauses for longer than this
_QUIET = 0.25  # quiet frames lie in this part of the range of loudness
_CERTAIN = 0.99  # above this, the whole piece is in one language
_DOUBTFUL = 0.5  # a piece without a language more probable than this has a neighbour's language
Probabilities = Mapping[str, float]


@dataclass(frozen=True)
class LanguageSpan:
    """A language, and the frame up to which it is surely spoken."""

    language: str
    end: int


@dataclass(frozen=True)
class _Piece:
    """The audio before frame `end`, and how probable each language is there."""

    end: int
    probabilities: Probabilities

    @property
    def likeliest(self) -> str:
        return likeliest(self.probabilities)

    @property
    def probability(self) -> float:
        return self.probabilities[self.likeliest]


class LanguageSpans:
    """The languages of one clip; detects them once, as far as `at` needs."""

    def __init__(
        self,
        audio: WindowSource,
        clip: tuple[int, int],
        detect: Callable[[NDArray[np.float32]], Policy[Probabilities]],
    ) -> None:
        """Prepare without detecting; `clip`: its first frame, and the frame after its last."""
        self._audio = audio
        self._begin, self._end = clip  # of the audio that is in no span yet
        self._detect = detect
        self._last: _Piece | None = None  # the last piece
        self._seek = self._begin  # its end
        self._undecided: _Piece | None = None
        self._decided: LanguageSpan | None = None  # whose end may be corrected
        self._known: list[LanguageSpan] = []
        self._is_begun = self._is_over = False

    def at(self, seek: int) -> Policy[LanguageSpan]:
        """Find the language from a frame on, and its end; at least AHEAD if it continues."""
        while not self._is_over and (not self._known or self._known[-1].end < seek + AHEAD):
            yield from self._detect_more()
        index = bisect_right(self._known, seek + _LEAST, key=lambda span: span.end)
        index = min(index, len(self._known) - 1)
        language = self._known[index].language
        while index + 1 < len(self._known) and self._known[index + 1].language == language:
            index += 1
        return self._known[index]

    def _detect_more(self) -> Policy[None]:
        """Detect until another span is known; languages change in a pause."""
        following = yield from self._next_decided()
        if (span := self._decided) is not None:
            if following is not None and following.language != span.language:
                end = yield from self._change(span, following)
                span = LanguageSpan(span.language, end)
            self._known.append(span)
            self._begin = span.end
        self._decided, self._is_over = following, following is None

    def _change(self, before: LanguageSpan, after: LanguageSpan) -> Policy[int]:
        """Find the change of language: between these spans, or in a longer pause nearby.

        A piece may begin or end with some seconds of the other language: it is not cut so soon.
        """
        cut = before.end
        start, end = max(cut - _NEAR, self._begin), min(cut + _NEAR, after.end)
        window_mt = self._audio.window(start, end)
        pauses = pauses_in(window_mt, end - start, _LEAST, end - start - _LEAST)
        pause = start + max(pauses, default=(0, cut - start))[1]
        if abs(pause - cut) < _LEAST:
            return cut
        probabilities = yield from self._detect(
            self._audio.window(min(pause, cut), max(pause, cut))
        )
        expected, other = (before, after) if pause > cut else (after, before)
        return pause if probabilities[expected.language] > probabilities[other.language] else cut

    def _next_decided(self) -> Policy[LanguageSpan | None]:
        """Detect the next piece's language, a neighbour's if in doubt; None at the clip's end."""
        if not self._is_begun:
            self._is_begun = True
            self._undecided = yield from self._next_piece()
        if (piece := self._undecided) is None:
            return None
        before = None if self._decided is None else self._decided.language
        following = self._undecided = yield from self._next_piece()
        return LanguageSpan(_language(piece, before, following), piece.end)

    def _next_piece(self) -> Policy[_Piece | None]:
        """Detect a piece's language; a piece is long only if surely in the language before."""
        if self._seek >= self._end:
            return None
        before = self._last
        window_mt = self._audio.window(self._seek, self._end)
        left = self._end - self._seek
        short = piece_frames(window_mt, left, _SHORT)
        piece = None
        if before is not None and before.probability >= _CERTAIN:
            long = piece_frames(window_mt, left, _LONG)
            piece = yield from self._piece(window_mt, long)
            is_same = piece.likeliest == before.likeliest and piece.probability >= _CERTAIN
            if not is_same and long != short:
                piece = None
        if piece is None:
            piece = yield from self._piece(window_mt, short)
        self._last, self._seek = piece, piece.end
        return piece

    def _piece(self, window_mt: NDArray[np.float32], frames: int) -> Policy[_Piece]:
        piece_mt = window_mt.copy()
        piece_mt[:, frames:] = 0
        probabilities = yield from self._detect(piece_mt)
        return _Piece(self._seek + frames, probabilities)


def _language(piece: _Piece, before: str | None, following: _Piece | None) -> str:
    if piece.probability > _DOUBTFUL:
        return piece.likeliest
    near = [before] if before is not None else []
    near += [following.likeliest] if following is not None else []
    return max(near, key=lambda code: piece.probabilities.get(code, 0.0), default=piece.likeliest)


def piece_frames(window_mt: NDArray[np.float32], frames: int, longest: int) -> int:
    """Return the frame to cut [n_mels, 3000] at: in the longest pause, or else the quietest place.

    `frames`: of the rest of the recording; may exceed the window. `longest`: of the piece.
    """
    latest = min(longest, frames - _SHORTEST)
    if latest < _SHORTEST:
        return frames
    if pauses := pauses_in(window_mt, frames, _SHORTEST, latest):
        return max(pauses)[1]
    return frames if frames <= longest else quiet_frame(window_mt, _SHORTEST, latest)


def pauses_in(
    window_mt: NDArray[np.float32], frames: int, earliest: int, latest: int
) -> list[tuple[int, int]]:
    """Return the lengths and the middles of pauses with the middle in these bounds."""
    runs = _runs(_quiet_frames(window_mt[:, :frames]))
    pauses = [(end - start, (start + end) // 2) for start, end in runs]
    return [pause for pause in pauses if pause[0] >= _PAUSE and earliest <= pause[1] <= latest]


def _quiet_frames(features_mt: NDArray[np.float32]) -> NDArray[np.bool_]:
    loudness_t = features_mt.mean(axis=0)
    low, high = np.percentile(loudness_t, [5, 95])
    return np.asarray(loudness_t <= low + _QUIET * (high - low))


def _runs(chosen_t: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(chosen_t, prepend=False, append=False))
    return [(int(start), int(end)) for start, end in list(pairwise(edges))[::2]]
