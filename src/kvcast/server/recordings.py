"""Recordings that were uploaded, as samples: read beside the engine, and no longer than allowed.

Knows no endpoint.
"""

import threading
from collections.abc import Callable
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.arrays import ArrayAudio
from kvcast.audio.decode import SAMPLE_RATE, open_audio
from kvcast.server.errors import ApiError, busy

_NAME = "the recording"

_AT_ONCE = 4
"""The samples of so many of the longest recordings may be in memory."""


class Recordings:
    """Reads recordings, and bounds the memory that samples take."""

    def __init__(self, minutes: float) -> None:
        """Take the minutes that a recording may have."""
        self._minutes = minutes
        self._longest = round(60 * minutes * SAMPLE_RATE)
        self._room = _AT_ONCE * self._longest
        self._lock = threading.Lock()

    def read(
        self, file: BinaryIO, track: str | None, check: Callable[[], None]
    ) -> "UploadedRecording":
        """Return a recording; it must be released.

        Args:
            file: that was uploaded.
            track: number or language of its sound track.
            check: raises if the client has left; called for each block.

        Raises:
            ApiError: it is too long, or there is no room for it now.
            InputOutputError: it cannot be read.

        """
        check()
        source = open_audio(file, _NAME, track=track)
        taken: list[NDArray[np.float32]] = []
        recording = UploadedRecording(self)
        try:
            for block in source.blocks():
                check()
                recording.take(len(block))
                taken.append(block)
                self._check(recording)
        except BaseException:
            recording.release()
            raise
        finally:
            source.close()
        samples_t = np.concatenate(taken) if taken else np.zeros(0, np.float32)
        recording.audio = ArrayAudio(samples_t, name=_NAME, notices=source.notices)
        return recording

    def _check(self, recording: "UploadedRecording") -> None:
        if recording.length > self._longest:
            raise ApiError(
                400,
                f"the recording is longer than {self._minutes:g} minutes",
                code="audio_too_long",
                param="file",
            )

    def take(self, samples: int) -> None:
        """Take note of samples in memory; raises ApiError if there are too many."""
        with self._lock:
            if samples > self._room:
                raise busy("too many recordings are waiting: try again later")
            self._room -= samples


class UploadedRecording:
    """A recording, as samples in memory."""

    audio: ArrayAudio

    def __init__(self, room: Recordings) -> None:
        self.length = 0
        self._room = room

    def take(self, samples: int) -> None:
        """Make room for more samples."""
        self._room.take(samples)
        self.length += samples

    def release(self) -> None:
        """Give the room back; again has no effect."""
        self._room.take(-self.length)
        self.length = 0
