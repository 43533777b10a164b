"""The interface between `kvcast.audio.decode` and decoding libraries.

A reader yields one file's samples in blocks, as they are stored. It knows nothing of file names,
mixing to mono, resampling or error messages.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

BLOCK_VALUES = 2**15
"""Samples times channels that a reader yields at once; this bounds memory."""


class UnreadableError(Exception):
    """The reader's library does not know the format or refuses its header; the text says why."""


class NoSoundError(UnreadableError):
    """The reader knows the format, and there is no sound in it; the text follows the name."""


class NoTrackError(Exception):
    """There is no such sound track; the text follows the name."""


class DamagedError(Exception):
    """The stream ended early or is damaged; earlier samples are good. The text follows the name."""


class SoundReader(Protocol):
    """One pass over one sound file."""

    rate: int
    """Samples per second and channel, as stored; not yet checked."""

    channels: int

    stores_floats: bool
    """Whether samples are stored as floats, which have no full scale of their own."""

    stops_at_damage: bool
    """Whether sound may follow a place where it is damaged."""

    notices: list[str]
    """Notices for the user after the last block; each follows the name."""

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Yield the samples, float32 [samples, channels], full scale 1.0.

        Raises:
            DamagedError: after the last good block, if the file promised more than it contains.

        """
        ...

    def close(self) -> None:
        """Free the decoder; the file under it stays open."""
        ...
