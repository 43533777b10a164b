"""In which language which part of a recording is spoken.

A model names one language for what it hears, that of the larger or louder part, and is sure of it
even where a third is in another. So it hears what lies between long pauses. Knows no tokens.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from kvcast.whisper.decoding import likeliest
from kvcast.whisper.excerpts import quiet_frame
from kvcast.whisper.segments import FRAMES_PER_SECOND
from kvcast.whisper.sound import Sound

AHEAD = 46 * FRAMES_PER_SECOND
"""Frames of 10 ms that are known after a moment: all on which it depends where windows end."""

_SHORT, _LONG = 16 * FRAMES_PER_SECOND, 28 * FRAMES_PER_SECOND
"""Most frames of a piece that is heard at once, and of one after which nothing changed."""

_SHORTEST = 6 * FRAMES_PER_SECOND
"""In less than this, models often hear another language."""

_NEAR = 8 * FRAMES_PER_SECOND
"""So far from where a change was heard it may be."""

_LEAST = 1 * FRAMES_PER_SECOND
"""What is shorter than this is not heard alone."""

_PAUSE = 0.3 * FRAMES_PER_SECOND
"""Who goes on in another language pauses for longer than this."""

_QUIET = 0.25
"""What is quiet lies in this part of the range of loudness."""

_CERTAIN = 0.99
"""So probable is no language of a piece of which another third is spoken."""

_DOUBTFUL = 0.5
"""A piece without a language more probable than this is in that of one of its neighbours."""

Probabilities = Mapping[str, float]


@dataclass(frozen=True)
class Turn:
    """A language, and the frame up to which it is surely spoken."""

    language: str
    end: int


@dataclass(frozen=True)
class _Piece:
    """What lies before frame `end`, and how probable each language is there."""

    end: int
    probabilities: Probabilities

    @property
    def likeliest(self) -> str:
        return likeliest(self.probabilities)

    @property
    def probability(self) -> float:
        return self.probabilities[self.likeliest]


class Turns:
    """The languages of one clip; hears it once, as far as somebody asks."""

    def __init__(
        self,
        sound: Sound,
        clip: tuple[int, int],
        detect: Callable[[NDArray[np.float32]], Probabilities],
    ) -> None:
        """Prepare; nothing is heard yet.

        Args:
            sound: the recording.
            clip: its first frame, and the one after its last.
            detect: returns how probable each language is in a window [n_mels, 3000].

        """
        self._sound = sound
        self._first, self._end = clip
        self._detect = detect
        self._coming = self._corrected()
        self._known: list[Turn] = []

    def at(self, seek: int) -> Turn:
        """Return the language from a frame on, and up to where; at least AHEAD if it goes on."""
        self._listen(seek + AHEAD)
        index = bisect_right(self._known, seek + _LEAST, key=lambda turn: turn.end)
        index = min(index, len(self._known) - 1)
        language = self._known[index].language
        while index + 1 < len(self._known) and self._known[index + 1].language == language:
            index += 1
        return self._known[index]

    def stop(self, seek: int) -> int:
        """Return up to where the language from a frame on is spoken, as far as it is known."""
        return self.at(seek).end

    def _listen(self, until: int) -> None:
        while not self._known or self._known[-1].end < until:
            turn = next(self._coming, None)
            if turn is None:
                return
            self._known.append(turn)

    def _corrected(self) -> Iterator[Turn]:
        """Yield pieces with their languages, which change in the right pauses."""
        begin, held = self._first, None
        for turn in self._decided():
            if held is not None:
                if turn.language != held.language:
                    held = Turn(held.language, self._change(begin, held, turn))
                yield held
                begin = held.end
            held = turn
        if held is not None:
            yield held

    def _change(self, begin: int, before: Turn, after: Turn) -> int:
        """Return where the language changes: between these turns, or in a longer pause nearby.

        A piece may begin or end with some seconds of the other language: it is not cut so soon.
        """
        cut = before.end
        start, end = max(cut - _NEAR, begin), min(cut + _NEAR, after.end)
        window_mt = self._sound.window(start, end)
        pauses = pauses_in(window_mt, end - start, _LEAST, end - start - _LEAST)
        pause = start + max(pauses, default=(0, cut - start))[1]
        if abs(pause - cut) < _LEAST:
            return cut
        heard = self._detect(self._sound.window(min(pause, cut), max(pause, cut)))
        expected, other = (before, after) if pause > cut else (after, before)
        return pause if heard[expected.language] > heard[other.language] else cut

    def _decided(self) -> Iterator[Turn]:
        """Yield pieces with their languages; a doubtful one has that of a neighbour."""
        before: str | None = None
        piece: _Piece | None = None
        for following in chain(self._pieces(), [None]):
            if piece is not None:
                before = _language(piece, before, following)
                yield Turn(before, piece.end)
            piece = following

    def _pieces(self) -> Iterator[_Piece]:
        seek, before = self._first, None
        while seek < self._end:
            before = self._piece(seek, before)
            yield before
            seek = before.end

    def _piece(self, seek: int, before: _Piece | None) -> _Piece:
        """Hear a piece: a long one only where it surely is in the language before."""
        window_mt = self._sound.window(seek, self._end)
        short = piece_frames(window_mt, self._end - seek, _SHORT)
        if before is not None and before.probability >= _CERTAIN:
            long = piece_frames(window_mt, self._end - seek, _LONG)
            piece = self._heard(window_mt, seek, long)
            is_same = piece.likeliest == before.likeliest and piece.probability >= _CERTAIN
            if is_same or long == short:
                return piece
        return self._heard(window_mt, seek, short)

    def _heard(self, window_mt: NDArray[np.float32], seek: int, frames: int) -> _Piece:
        heard_mt = window_mt.copy()
        heard_mt[:, frames:] = 0
        return _Piece(seek + frames, self._detect(heard_mt))


def _language(piece: _Piece, before: str | None, following: _Piece | None) -> str:
    """Return the language of a piece, given that before it and what comes after it."""
    if piece.probability > _DOUBTFUL:
        return piece.likeliest
    near = [before] if before is not None else []
    near += [following.likeliest] if following is not None else []
    return max(near, key=lambda code: piece.probabilities.get(code, 0.0), default=piece.likeliest)


def piece_frames(window_mt: NDArray[np.float32], frames: int, longest: int) -> int:
    """Return after how many frames to cut: in the longest pause, or else where it is quietest.

    Args:
        window_mt: log-mel features [n_mels, 3000].
        frames: of the recording from there on; more than the window has if it goes on.
        longest: most frames of the piece.

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
    """Return the lengths and the middles of pauses of which the middle is in these bounds."""
    found = _runs(_quiet_frames(window_mt[:, :frames]))
    pauses = [(end - start, (start + end) // 2) for start, end in found]
    return [one for one in pauses if one[0] >= _PAUSE and earliest <= one[1] <= latest]


def _quiet_frames(features_mt: NDArray[np.float32]) -> NDArray[np.bool_]:
    loudness_t = features_mt.mean(axis=0)
    low, high = np.percentile(loudness_t, [5, 95])
    return np.asarray(loudness_t <= low + _QUIET * (high - low))


def _runs(chosen_t: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the stretches of frames that are chosen: the first, and the one after the last."""
    edges = np.flatnonzero(np.diff(chosen_t, prepend=False, append=False))
    return [(int(start), int(end)) for start, end in list(pairwise(edges))[::2]]
