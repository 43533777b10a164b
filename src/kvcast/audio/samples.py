"""A recording as samples, in excerpts, for models that make features of an excerpt themselves.

One pass checks the recording; a long one is read again, forwards. Knows nothing of models.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.decode import SAMPLE_RATE, AudioSource
from kvcast.audio.features import CheckedAudio, RecordedSound
from kvcast.audio.mel import HOP

_KEPT = 600 * SAMPLE_RATE
"""Samples of recordings up to this length (38 MB) are kept: one pass is enough."""


class SampledSound(RecordedSound):
    """A recording as mono samples at 16 kHz.

    Made for moving forward: going back decodes the recording again, unless it is short.
    """

    def __init__(self, audio: AudioSource) -> None:
        """Read the recording once; raises InputOutputError as `CheckedAudio` does."""
        checked = CheckedAudio(audio)
        kept: list[NDArray[np.float32]] | None = []
        for block in checked.blocks():
            if kept is not None:
                kept.append(block)
            if checked.samples > _KEPT:
                kept = None
        super().__init__(audio, checked)
        self._samples = checked.samples
        self._kept = kept
        self._held, self._first = np.zeros(0, np.float32), 0
        self._blocks: Iterator[NDArray[np.float32]] = iter(())
        self._rewind()

    def samples(self, first: int, end: int) -> NDArray[np.float32]:
        """Return the samples of frames `first` to `end`, float32 [n].

        Those after the last whole frame belong to it.
        """
        start = first * HOP
        stop = self._samples if end >= self.content_frames else end * HOP
        if start < self._first:
            self._rewind()
        pieces, reached = [self._held[start - self._first :]], self._first + len(self._held)
        while reached < stop and (block := next(self._blocks, None)) is not None:
            if reached + len(block) > start:
                pieces.append(block[max(0, start - reached) :])
            reached += len(block)
        self._held, self._first = np.concatenate(pieces), start
        return self._held[: stop - start].copy()

    def close(self) -> None:
        """Release the recording."""
        self._kept = []
        self._rewind()
        self._audio.close()

    def _rewind(self) -> None:
        self._held, self._first = np.zeros(0, np.float32), 0
        self._blocks = self._audio.blocks() if self._kept is None else iter(self._kept)
