"""The features of a sound as an encoder's input. Knows no recording and no model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from typing_extensions import override

from kvcast.engine.requests import Input
from kvcast.runtimes.base import Float32, Int32


@dataclass(frozen=True, eq=False)
class SoundFeatures(Input):
    """Features [frames, bands], which become so many positions."""

    features_tm: Float32
    encoded: int

    # A sound alone fills the encoder's products, and needs no padding.
    most_together: ClassVar[int | None] = 1

    @property
    @override
    def positions(self) -> int:
        return self.encoded

    @classmethod
    @override
    def batch(cls, inputs: Sequence[Self]) -> tuple[Float32, Int32]:
        features_btm = np.stack([sound.features_tm for sound in inputs])
        return features_btm, np.array([sound.encoded for sound in inputs], np.int32)
