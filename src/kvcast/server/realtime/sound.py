"""Bytes that arrive piece by piece, as samples at 16 kHz.

Unlike `kvcast.audio.stream` it knows the coding of sound, and guesses nothing from its beginning.
Knows no protocol.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import soxr
from numpy.typing import NDArray

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.audio.g711 import decode_a_law, decode_mu_law

Samples: TypeAlias = NDArray[np.float32]

_FULL_SCALE = np.float32(2**15)


class Coding(NamedTuple):
    """How samples lie in bytes: `width` bytes each."""

    width: int
    decode: Callable[[bytes], NDArray[np.int16]]


CODINGS: Mapping[str, Coding] = {
    "audio/pcm": Coding(2, lambda data: np.frombuffer(data, "<i2").astype(np.int16)),
    "audio/pcmu": Coding(1, decode_mu_law),
    "audio/pcma": Coding(1, decode_a_law),
}
"""By the protocol's names."""


class SessionSound:
    """One stream of mono sound."""

    def __init__(self, coding: str, rate: int) -> None:
        """Wait for bytes of a coding, of so many samples a second."""
        self._coding = CODINGS[coding]
        self._rate = rate
        self._held = b""
        self._resampler = self._opened()

    def feed(self, data: bytes) -> Samples:
        """Return the samples [n] that these bytes complete; few or none at first."""
        data = self._held + data
        whole = len(data) // self._coding.width * self._coding.width
        self._held = data[whole:]
        samples = self._coding.decode(data[:whole]).astype(np.float32)
        return self._resampled(samples / _FULL_SCALE)

    def finish(self) -> Samples:
        """Return the resampler's rest of the sound so far; the next samples begin another sound."""
        rest = self._resampled(np.empty(0, np.float32), last=True)
        self._held, self._resampler = b"", self._opened()
        return rest

    def _opened(self) -> soxr.ResampleStream | None:
        if self._rate == SAMPLE_RATE:
            return None
        return soxr.ResampleStream(self._rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")

    def _resampled(self, samples: Samples, *, last: bool = False) -> Samples:
        if self._resampler is None:
            return samples
        resampled: Samples = self._resampler.resample_chunk(samples, last=last)
        return resampled
