"""Log-mel features of two frames side by side, in NumPy.

The recipe is torchaudio's `MelSpectrogram` as Granite Speech's extractor calls it: a periodic Hann
window of 25 ms every 10 ms, centred with reflection in 32 ms; power; triangles on O'Shaughnessy's
mel scale, each of height 1; log10, floored at 8 below the maximum; x / 4 + 1. Knows nothing of
files.
"""

from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.audio.mel import HOP, normalised, project

_N_FFT, _WINDOW = 512, 400
_SHORTEST = _N_FFT  # reflection needs more than half of it
_SMALLEST_POWER = np.float32(1e-10)
_BLOCK = 256  # frames at once: a few hundred kilobytes, which stay in the cache

_HANN = np.pad(
    0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW), (_N_FFT - _WINDOW) // 2
).astype(np.float32)


def paired_log_mel(samples: NDArray[np.float32], n_mels: int) -> NDArray[np.float32]:
    """Return the features of a sound, float32 [samples // 320 or one more, 2 * n_mels].

    Args:
        samples: float32 [n]; zeros follow where there are fewer than 32 ms.
        n_mels: number of mel bands of 10 ms.

    """
    sound = np.pad(samples, (0, max(0, _SHORTEST - len(samples))))
    frames = sliding_window_view(np.pad(sound, _N_FFT // 2, mode="reflect"), _N_FFT)[::HOP]
    log_mel_tm, filters = np.empty((len(frames), n_mels), np.float32), _filters(n_mels)
    for start in range(0, len(frames), _BLOCK):
        spectrum = np.fft.rfft(frames[start : start + _BLOCK] * _HANN)
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        project(power, filters, out=log_mel_tm[start : start + _BLOCK])
    np.log10(np.maximum(log_mel_tm, _SMALLEST_POWER, out=log_mel_tm), out=log_mel_tm)
    scaled = normalised(log_mel_tm, log_mel_tm.max())
    return scaled[: len(scaled) // 2 * 2].reshape(-1, 2 * n_mels)


@cache
def _filters(n_mels: int) -> NDArray[np.float32]:
    """Return triangles from power spectrum to mel bands, float32 [257, n_mels]."""
    top = SAMPLE_RATE / 2
    mels = np.linspace(0, 2595 * np.log10(1 + top / 700), n_mels + 2)
    corners = 700 * (10 ** (mels / 2595) - 1)
    lower, centre, upper = corners[:-2], corners[1:-1], corners[2:]
    bins = np.linspace(0, top, _N_FFT // 2 + 1)[:, None]
    rising = (bins - lower) / (centre - lower)
    falling = (upper - bins) / (upper - centre)
    filters: NDArray[np.float32] = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    filters.flags.writeable = False  # shared by all callers
    return filters
