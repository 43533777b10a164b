"""What a decoder that hears needs of its encoder, whichever it is. Knows no encoder."""

from collections.abc import Mapping
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.families.programs import Argument
from kvcast.spec.program import Node, ProgramWriter

FEATURES = Node("features")
"""The first input of `encode`: fp32 [batch, frames, bands]."""


class SoundEncoder(Protocol):
    """An encoder of sound whose results are embeddings of a decoder."""

    output: int
    """Size of an embedding."""

    n_mels: int
    """Bands of a frame."""

    beside: bool = False
    """Whether embeddings lie beside tokens: what a row reads at position p is the sum of both.

    Otherwise numbers from the vocabulary's size on stand for them.
    """

    @property
    def frames(self) -> int:
        """Frames that each input has; 0: as many as its sound has."""

    @property
    def most_frames(self) -> int:
        """Frames of the longest excerpt."""

    @property
    def positions(self) -> int:
        """Embeddings of the longest excerpt."""
        return self.encoded(self.most_frames)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuild from `asdict`'s output; raises TypeError for missing or unknown fields."""
        return cls(**fields)

    def encoded(self, frames: int) -> int:
        """Return how many embeddings so many frames become."""

    def arguments(self) -> tuple[Argument, ...]:
        """Return what `encode` takes."""

    def source(self, features_btm: NDArray[np.float32]) -> tuple[NDArray[Any], ...]:
        """Return inputs of equally many frames as `encode` takes them."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return every canonical name with its shape."""

    def constants(self) -> Mapping[str, NDArray[np.generic]]:
        """Return further constants of `encode`."""

    def written(self, write: ProgramWriter) -> Node:
        """Write the encoder: the arguments to embeddings [batch, 1, t, output]."""
