"""The interface of a recording that is open, and resampling to the rate of everything behind it.

Knows no files and no arrays.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import soxr
from numpy.typing import NDArray

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

    @property
    def channels(self) -> int:
        """How many channels it has, before they are mixed."""
        ...

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Yield the recording from its start, mono float32 [samples] at 16 kHz."""
        ...

    def close(self) -> None:
        """Close the files that this object opened."""
        ...


def resampled(blocks: Iterable[NDArray[np.float32]], rate: int) -> Iterator[NDArray[np.float32]]:
    """Resample mono blocks from `rate` Hz to 16 kHz, with soxr's streaming resampler (HQ)."""
    if rate == SAMPLE_RATE:
        yield from blocks
        return
    stream = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
    for block in blocks:
        yield stream.resample_chunk(np.ascontiguousarray(block))
    yield stream.resample_chunk(np.empty(0, np.float32), last=True)
