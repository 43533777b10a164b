"""The interface of a recording that is open, and resampling to the rate of everything behind it.

Knows no files and no arrays.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import soxr
from numpy.typing import NDArray
from typing_extensions import override

SAMPLE_RATE = 16_000
"""Samples per second of everything that recordings yield."""

LOWEST_RATE, HIGHEST_RATE = 1_000, 768_000
"""A rate outside this range cannot carry speech, or is wrong."""


class AudioSource(Protocol):
    """A recording that can be read more than once, one pass at a time."""

    name: str
    """Its name in messages: printable, one line."""

    notices: tuple[str, ...]
    """Notices for the user after a complete pass, one line each."""

    unheard: tuple[str, ...] = ()
    """Notices for the user if no speech is recognised in it."""

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Yield the recording from its start, mono float32 [samples] at 16 kHz."""
        ...

    def close(self) -> None:
        """Close the files that this object opened."""
        ...


class ChannelSource(AudioSource, Protocol):
    """A recording whose channels can be heard one by one."""

    @property
    def channels(self) -> int:
        """How many channels it has, before they are mixed."""
        ...

    def of_channel(self, channel: int | None) -> Iterator[NDArray[np.float32]]:
        """Yield a channel, counted from 0, as `blocks` yields the mean of all."""
        ...


class ChannelAudio(ChannelSource):
    """One channel of a recording, which stays open."""

    def __init__(self, audio: ChannelSource, channel: int) -> None:
        self.name = f"{audio.name}, channel {channel + 1},"
        self._audio, self._channel = audio, channel

    @property
    @override
    def channels(self) -> int:
        return 1

    @property
    def notices(self) -> tuple[str, ...]:  # type: ignore[override]  # nobody sets them
        """Notices for the user after a complete pass, one line each."""
        return self._audio.notices

    @override
    def blocks(self) -> Iterator[NDArray[np.float32]]:
        return self.of_channel(None)

    @override
    def of_channel(self, channel: int | None) -> Iterator[NDArray[np.float32]]:
        return self._audio.of_channel(self._channel)

    @override
    def close(self) -> None:
        pass


def resampled(blocks: Iterable[NDArray[np.float32]], rate: int) -> Iterator[NDArray[np.float32]]:
    """Resample mono blocks from `rate` Hz to 16 kHz, with soxr's streaming resampler (HQ)."""
    if rate == SAMPLE_RATE:
        yield from blocks
        return
    stream = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
    for block in blocks:
        yield stream.resample_chunk(np.ascontiguousarray(block))
    yield stream.resample_chunk(np.empty(0, np.float32), last=True)
