"""What a decoding library must offer to `kvcast.audio.decode`.

A reader turns one container into blocks of samples as they are stored. It knows nothing of file
names, mono, 16 kHz or how an error is worded to a user.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

BLOCK_VALUES = 2**15
"""Samples times channels that a reader yields at once: the unit that bounds memory."""


class UnreadableError(Exception):
    """The reader's library does not know this format or refuses its header; the text says why."""


class DamagedError(Exception):
    """The stream ended early or broke off; what came before is good. The text follows the name."""


class Reader(Protocol):
    """One pass over one sound file."""

    rate: int
    """Samples per second and channel, as stored; not yet checked."""

    channels: int

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Yield the samples, float32 [samples, channels], full scale 1.0.

        Raises:
            DamagedError: after the last good block, when the file promised more than it held.

        """
        ...

    def close(self) -> None:
        """Free the decoder; the file under it stays open."""
        ...
