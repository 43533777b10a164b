"""Channels of sound become one: their mean, one of them, or the loudest where they cancel out.

Also tells floats that are integers, which have another full scale. Knows neither files nor rates.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_CANCELLED = 0.2
"""The mean of n unrelated channels has 1 / n of their power, that of related ones more."""

_MEMORY = 4000
"""Samples after which a moment counts half as much, so that blocks may have any length."""

_FIRST = 500
"""Samples that tell too little of how channels go together."""

_OFTEN = 0.1
"""Channels that cancel out in a larger part of a recording are worth a notice."""

_NO_FLOAT = 16.0
"""No float of sound, whose full scale is 1, is as large: 24 dB above it."""

_LOUD, _SEVERAL, _FEW = 4.0, 1e-4, 20
"""Few samples above it may be damage; where they are more, and more than this part, all are
integers."""

_FULL_SCALES = {2.0**15: "16-bit", 2.0**23: "24-bit", 2.0**31: "32-bit"}


CANCELLED = "has channels that cancel each other out: the louder one is used there, not the mean"
"""The notice; it follows the name."""


class Mixer:
    """Makes one channel of blocks [samples, channels], and counts where they cancelled out."""

    def __init__(self, channel: int | None = None, scale: float = 1.0) -> None:
        """Mix all channels, or take one (silence, if there is none); multiply by `scale`."""
        self._channel, self._scale = channel, np.float32(scale)
        self._samples = self._cancelled = 0
        self._mean_power, self._powers_c = 0.0, np.zeros(1, np.float32)  # of the last moments

    def mono(self, block_sc: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return one channel [samples]."""
        with np.errstate(over="ignore", invalid="ignore"):  # what is no sound is refused later
            samples_s = self._chosen(block_sc)
            return samples_s if self._scale == 1 else samples_s * self._scale

    @property
    def cancelled(self) -> bool:
        """Whether channels cancelled out in a good part of the sound."""
        return self._cancelled > _OFTEN * self._samples

    def _chosen(self, block_sc: NDArray[np.float32]) -> NDArray[np.float32]:
        channels = block_sc.shape[1]
        if self._channel is not None and self._channel >= channels:
            return np.zeros(len(block_sc), np.float32)
        if channels == 1 or self._channel is not None:
            return block_sc[:, self._channel or 0]
        # One side of a cable or a microphone may be wired the wrong way round.
        mean_s: NDArray[np.float32] = block_sc.mean(axis=1, dtype=np.float32)
        kept = 0.5 ** (len(block_sc) / _MEMORY)
        self._mean_power = kept * self._mean_power + float(mean_s @ mean_s)
        self._powers_c = kept * self._powers_c + np.square(block_sc).sum(axis=0)
        self._samples += len(block_sc)
        cancels = self._mean_power * channels**2 < _CANCELLED * float(self._powers_c.sum())
        if self._samples < _FIRST or not cancels:
            return mean_s
        self._cancelled += len(block_sc)
        return block_sc[:, int(self._powers_c.argmax())]


class FullScale(NamedTuple):
    """Full scale of floats: 1, or that of the integers that they are; a notice follows the name."""

    value: float
    notice: str | None


def full_scale(blocks: Iterable[NDArray[np.float32]]) -> FullScale:
    """Measure floats, in blocks of any shape."""
    peak, samples, loud = 0.0, 0, 0
    for block in blocks:
        sizes = np.abs(block)
        peak = max(peak, float(sizes.max(initial=0.0)))
        loud += int(np.count_nonzero(sizes > _LOUD))
        samples += block.size
    scale = next((scale for scale in _FULL_SCALES if peak <= scale), None)
    if scale is None or peak <= _NO_FLOAT or loud < max(_FEW, _SEVERAL * samples):
        return FullScale(1.0, None)
    return FullScale(
        scale,
        f"has floats up to {peak:g}, where 1 is full scale: they are taken as "
        f"{_FULL_SCALES[scale]} integers, and divided by {scale:.0f}",
    )
