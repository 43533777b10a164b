"""Cuts a recording where it is quiet, into excerpts that are decoded independently.

An excerpt fits into a window of the encoder. Knows no model and no tokens but timestamps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcast.decoding.whisper import DecodingResult
from kvcast.tasks.whisper.passage import Ending, Sound
from kvcast.tasks.whisper.segments import FRAMES_PER_SECOND, FRAMES_PER_TIMESTAMP, Window

_LONGEST = 28 * FRAMES_PER_SECOND
"""Frames of 10 ms. Whisper takes a full window for one that ends within a sentence, and stops
before that; two seconds of nothing tell it that nobody goes on."""

_SHORTEST = 18 * FRAMES_PER_SECOND
"""Every excerpt costs the encoder a whole window, so none is cut earlier than this frame."""

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


def excerpts(sound: Sound, clip: tuple[int, int]) -> Iterator[Excerpt]:
    """Cut frames `clip[0]` to `clip[1]` of a recording into excerpts, in order and without gaps."""
    seek, end = clip
    while seek < end:
        window_mt = sound.window(seek, end)
        frames = end - seek
        if frames > _LONGEST:
            frames = quiet_frame(window_mt)
            window_mt[:, frames:] = 0
        yield Excerpt(seek, seek + frames, window_mt)
        seek += frames


def quiet_frame(window_mt: NDArray[np.float32]) -> int:
    """Return where to cut a window [n_mels, 3000]: late, in a place as quiet as there is."""
    loudness_t = window_mt[:, _SHORTEST:_LONGEST].mean(axis=0)
    smooth_t = np.convolve(loudness_t, np.full(_PAUSE_FRAMES, 1 / _PAUSE_FRAMES), "valid")
    limit = smooth_t.min() + _NEARLY * np.ptp(smooth_t)
    [quiet] = np.nonzero(smooth_t <= limit)
    return _SHORTEST + int(quiet[-1]) + _PAUSE_FRAMES // 2


def closing(timestamp_begin: int) -> Ending:
    """Return an ending for excerpts: nobody speaks across a quiet place.

    A text that the model has ended, without a timestamp, ends with its window. OpenAI's rule would
    decode what follows the last timestamp again, in a window of its own.
    """

    def ending(result: DecodingResult, window: Window) -> Sequence[int]:
        tokens = result.tokens
        timed = any(token >= timestamp_begin for token in tokens)
        if not (timed and result.complete and tokens[-1] < timestamp_begin):
            return tokens
        return (*tokens, timestamp_begin + window.frames // FRAMES_PER_TIMESTAMP)

    return ending
