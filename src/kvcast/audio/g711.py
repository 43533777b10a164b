"""G.711, the coding of telephones: a byte a sample, mu-law (PCMU) or A-law (PCMA).

Source: ITU-T Recommendation G.711, "Pulse code modulation (PCM) of voice frequencies", tables 1
and 2. Decodes by table. Knows neither streams nor rates.
"""

import numpy as np
from numpy.typing import NDArray

_CODES = np.arange(256)
_SEGMENT_BITS, _STEP_BITS = 0x70, 0x0F


def _mu_law() -> NDArray[np.int16]:
    """Return the 16-bit value of each code: in each segment 16 steps, twice as wide as before."""
    codes = ~_CODES & 0xFF  # sent inverted
    segments, steps = (codes & _SEGMENT_BITS) >> 4, codes & _STEP_BITS
    magnitudes = (((steps << 3) + 0x84) << segments) - 0x84
    return np.where(codes & 0x80, -magnitudes, magnitudes).astype(np.int16)


def _a_law() -> NDArray[np.int16]:
    """Return the 16-bit value of each code: the first two segments are equally wide."""
    codes = _CODES ^ 0x55  # sent with every second bit inverted
    segments, steps = (codes & _SEGMENT_BITS) >> 4, codes & _STEP_BITS
    first = (steps << 4) + 0x08
    magnitudes = np.where(segments == 0, first, (first + 0x100) << np.maximum(segments - 1, 0))
    return np.where(codes & 0x80, magnitudes, -magnitudes).astype(np.int16)


_MU_LAW, _A_LAW = _mu_law(), _a_law()


def decode_mu_law(data: bytes) -> NDArray[np.int16]:
    """Return the samples [n] of n bytes, with 16-bit full scale."""
    return _MU_LAW[np.frombuffer(data, np.uint8)]


def decode_a_law(data: bytes) -> NDArray[np.int16]:
    """Return the samples [n] of n bytes, with 16-bit full scale."""
    return _A_LAW[np.frombuffer(data, np.uint8)]
