"""Whisper's log-mel spectrogram in NumPy.

The recipe is that of openai-whisper's `audio.py`: a periodic Hann window of 25 ms every 10 ms,
centred with reflection; power; Slaney's mel filters; log10, floored at 8 below the maximum;
(x + 4) / 4. Knows nothing of files or of a recording's length.
"""

from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from kvcast.audio.decode import SAMPLE_RATE

N_FFT = 400
HOP = 160
FRAMES_PER_SECOND = SAMPLE_RATE // HOP

_SMALLEST_POWER = np.float32(1e-10)

SILENCE: np.float32 = np.log10(_SMALLEST_POWER)
"""The value of frames without sound, before scaling."""

_RANGE = np.float32(8.0)
_BLOCK = 256  # frames at once: a few hundred kilobytes, which stay in the cache
_PIECE = 8  # frames of one product, see `project`

# float32 throughout, which NumPy 2's rfft keeps. It takes 3.1 ms for 30 s on one core; a product
# with the 400 x 402 DFT matrix takes 9.1, and 4.5 after using its symmetry twice.
_WINDOW = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)).astype(np.float32)


@cache
def mel_filters(n_mels: int, n_fft: int = N_FFT) -> NDArray[np.float32]:
    """Return triangular filters from power spectrum to mel bands, float32 [n_fft / 2 + 1, n_mels].

    The scale of Slaney's Auditory Toolbox, as in librosa: linear below 1 kHz, logarithmic above,
    each triangle with unit area in hertz; from 0 to 8 kHz.
    """
    hertz_per_mel, first_log_mel, log_step = 200 / 3, 15.0, np.log(6.4) / 27
    top_mel = first_log_mel + np.log(SAMPLE_RATE / 2 / 1000) / log_step
    mels = np.linspace(0, top_mel, n_mels + 2)
    log_hertz = 1000 * np.exp(log_step * (mels - first_log_mel))
    corners = np.where(mels < first_log_mel, mels * hertz_per_mel, log_hertz)
    lower, centre, upper = corners[:-2], corners[1:-1], corners[2:]
    bins = np.linspace(0, SAMPLE_RATE / 2, n_fft // 2 + 1)[:, None]
    rising = (bins - lower) / (centre - lower)
    falling = (upper - bins) / (upper - centre)
    triangles = np.maximum(0, np.minimum(rising, falling)) * (2 / (upper - lower))
    filters: NDArray[np.float32] = triangles.astype(np.float32)
    filters.flags.writeable = False  # shared by all callers
    return filters


def log_mel_frames(samples: NDArray[np.float32], n_mels: int) -> NDArray[np.float32]:
    """Return the log10 mel power of every whole frame that starts on a hop, not floored or scaled.

    Args:
        samples: float32 [n], n >= 400; frame t covers samples 160 t to 160 t + 399.
        n_mels: number of mel bands.

    Returns:
        float32 [1 + (n - 400) // 160, n_mels], with no value below SILENCE.

    """
    filters = mel_filters(n_mels)
    frames = sliding_window_view(samples, N_FFT)[::HOP]
    log_mel_tm = np.empty((len(frames), n_mels), np.float32)
    for start in range(0, len(frames), _BLOCK):
        spectrum = np.fft.rfft(frames[start : start + _BLOCK] * _WINDOW)
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        project(power, filters, out=log_mel_tm[start : start + _BLOCK])
    np.maximum(log_mel_tm, _SMALLEST_POWER, out=log_mel_tm)
    return np.log10(log_mel_tm, out=log_mel_tm)


def project(
    power_tf: NDArray[np.float32], filters: NDArray[np.float32], out: NDArray[np.float32]
) -> None:
    """Multiply in pieces so small that BLAS uses one thread.

    Its threads wait for each other. While a runtime's threads still spin, waiting for work, that
    took 40 ms for a product of 1 ms.
    """
    whole = len(power_tf) // _PIECE * _PIECE
    pieces = power_tf[:whole].reshape(-1, _PIECE, power_tf.shape[1])
    np.matmul(pieces, filters, out=out[:whole].reshape(-1, _PIECE, out.shape[1]))
    np.matmul(power_tf[whole:], filters, out=out[whole:])


def normalised(log_mel: NDArray[np.float32], loudest: np.float32) -> NDArray[np.float32]:
    """Return (max(log_mel, loudest - 8) + 4) / 4, the input that Whisper was trained on."""
    scaled: NDArray[np.float32] = np.maximum(log_mel, loudest - _RANGE)
    scaled += np.float32(4.0)
    scaled *= np.float32(0.25)
    return scaled
