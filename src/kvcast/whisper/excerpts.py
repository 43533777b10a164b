"""Cuts a recording where it is quiet, into excerpts that are decoded independently.

An excerpt fits into a window of the encoder. Knows no model and no tokens but timestamps.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.whisper.decoding import DecodingOptions, DecodingResult
from kvcast.whisper.passage import Ending
from kvcast.whisper.segments import FRAMES_PER_SECOND, FRAMES_PER_TIMESTAMP, Window
from kvcast.whisper.sound import Sound
from kvcast.whisper.tokenizer import timestamps_from

_LONGEST = 28 * FRAMES_PER_SECOND
"""Frames of 10 ms. Whisper takes a full window for one that ends within a sentence, and stops
before that; two seconds of nothing tell it that nobody goes on."""

_SHORTEST = 18 * FRAMES_PER_SECOND
"""Every excerpt costs the encoder a whole window, so none is cut earlier than this frame."""

_REMNANT = 1.0
"""Seconds before the end in which no segment begins: it is the pause in which the cut lies."""

_PAUSE_FRAMES = 25
"""Loudness is a mean over so many frames of 10 ms: more than a stop consonant, less than a word."""

_NEARLY = 0.1
"""A place is as good as the quietest one within this part of the range of loudness."""


@dataclass(frozen=True, eq=False)
class Excerpt(Sound):
    """Frames `first` to `end` of a recording, [n_mels, 3000], zeros after the last."""

    first: int
    end: int
    window_mt: NDArray[np.float32]

    def window(self, seek: int, end: int | None = None) -> NDArray[np.float32]:
        """Return [n_mels, 3000] from frame `seek` of the recording on; zeros from `end` on."""
        found_mt = np.zeros_like(self.window_mt)
        stop = self.end if end is None else min(end, self.end)
        found_mt[:, : stop - seek] = self.window_mt[:, seek - self.first : stop - self.first]
        return found_mt


def excerpts(
    sound: Sound,
    clip: tuple[int, int],
    joints: Sequence[float] = (),
    *,
    stop: Callable[[int], int] | None = None,
) -> Iterator[Excerpt]:
    """Cut frames `clip[0]` to `clip[1]` of a recording into excerpts, in order and without gaps.

    Where something was left out, at `joints` in seconds, it is cut first. An excerpt that begins
    at a frame ends no later than `stop` says.
    """
    joined = [round(joint * FRAMES_PER_SECOND) for joint in joints]
    seek, last = clip
    while seek < last:
        end = last if stop is None else stop(seek)
        window_mt = sound.window(seek, end)
        frames = end - seek
        if frames > _LONGEST:
            # What is left must not be too short to be understood.
            earliest = min(_SHORTEST, max(frames - _LONGEST, _LONGEST // 2))
            latest = min(_LONGEST, frames - _SHORTEST // 2)
            near = [frame - seek for frame in joined if earliest <= frame - seek <= latest]
            frames = near[-1] if near else quiet_frame(window_mt, earliest, latest)
            window_mt[:, frames:] = 0
        yield Excerpt(seek, seek + frames, window_mt)
        seek += frames


def quiet_frame(window_mt: NDArray[np.float32], earliest: int, latest: int) -> int:
    """Return where to cut a window [n_mels, 3000]: late, in a place as quiet as there is."""
    loudness_t = window_mt[:, earliest:latest].mean(axis=0)
    smooth_t = np.convolve(loudness_t, np.full(_PAUSE_FRAMES, 1 / _PAUSE_FRAMES), "valid")
    limit = smooth_t.min() + _NEARLY * np.ptp(smooth_t)
    [quiet] = np.nonzero(smooth_t <= limit)
    return earliest + int(quiet[-1]) + _PAUSE_FRAMES // 2


@dataclass(frozen=True)
class QuietEnding(Ending):
    """Excerpts end where it is quiet, so nobody goes on.

    OpenAI's rules leave what follows the last timestamp to the next window. An excerpt has none, so
    the model must finish what it begins, and a text that it ends ends with the excerpt.
    """

    timestamp_begin: int

    @override
    def options(self, options: DecodingOptions, window: Window) -> DecodingOptions:
        return replace(options, latest_start=max(0.0, window.duration - _REMNANT))

    @override
    def tokens(self, result: DecodingResult, window: Window) -> Sequence[int]:
        tokens = result.tokens
        timestamps = timestamps_from(self.timestamp_begin)
        timed = [token in timestamps for token in tokens]
        if not any(timed) or not result.complete:
            return tokens
        if timed[-2:] == [True, True]:  # a segment in the remnant
            return tokens[:-1]
        if timed[-1]:
            return tokens
        return (*tokens, self.timestamp_begin + window.frames // FRAMES_PER_TIMESTAMP)

    @override
    def resumed(self, after_words: int, after_timestamps: int) -> int:
        return after_timestamps
