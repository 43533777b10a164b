"""Log-mel spectrograms of Whisper, NeMo and Granite Speech, in NumPy.

Whisper's follows openai-whisper's `audio.py`: a periodic Hann window of 25 ms every 10 ms,
centred with reflection; power; Slaney's mel filters; log10, floored at 8 below the maximum;
(x + 4) / 4.
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

SILENCE: np.float32 = np.log10(_SMALLEST_POWER)  # the value of silent frames, before scaling

_RANGE = np.float32(8.0)
_BLOCK = 256  # frames at once: a few hundred kilobytes, which stay in the cache
_PIECE = 8  # frames of one product, see `_project`

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
    triangles = _triangles(corners, n_fft) * (2 / (corners[2:] - corners[:-2]))
    filters: NDArray[np.float32] = triangles.astype(np.float32)
    filters.flags.writeable = False  # shared by all callers
    return filters


def _triangles(corners: NDArray[np.float64], n_fft: int) -> NDArray[np.float64]:
    """Return triangles of height 1 between every three corners in hertz, [n_fft / 2 + 1, mels]."""
    lower, centre, upper = corners[:-2], corners[1:-1], corners[2:]
    bins = np.linspace(0, SAMPLE_RATE / 2, n_fft // 2 + 1)[:, None]
    rising = (bins - lower) / (centre - lower)
    falling = (upper - bins) / (upper - centre)
    return np.maximum(0, np.minimum(rising, falling))


def log_mel_frames(samples: NDArray[np.float32], n_mels: int) -> NDArray[np.float32]:
    """Return the log10 mel power of every whole frame, float32 [1 + (n - 400) // 160, n_mels].

    `samples`: float32 [n], n >= 400; frame t covers samples 160 t to 160 t + 399. Not floored or
    scaled, but no value is below SILENCE.
    """
    frames = sliding_window_view(samples, N_FFT)[::HOP]
    log_mel_tm = _mel_power(frames, _WINDOW, mel_filters(n_mels))
    np.maximum(log_mel_tm, _SMALLEST_POWER, out=log_mel_tm)
    return np.log10(log_mel_tm, out=log_mel_tm)


def _mel_power(
    frames: NDArray[np.float32], window: NDArray[np.float32], filters: NDArray[np.float32]
) -> NDArray[np.float32]:
    mel_tm = np.empty((len(frames), filters.shape[1]), np.float32)
    for start in range(0, len(frames), _BLOCK):
        spectrum = np.fft.rfft(frames[start : start + _BLOCK] * window)
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        _project(power, filters, out=mel_tm[start : start + _BLOCK])
    return mel_tm


def _project(
    power_tf: NDArray[np.float32], filters: NDArray[np.float32], out: NDArray[np.float32]
) -> None:
    """Multiply in pieces so small that BLAS uses one thread.

    Its threads wait for each other: beside a runtime's spinning threads, 1 ms of product took 40
    ms.
    """
    whole = len(power_tf) // _PIECE * _PIECE
    pieces = power_tf[:whole].reshape(-1, _PIECE, power_tf.shape[1])
    np.matmul(pieces, filters, out=out[:whole].reshape(-1, _PIECE, out.shape[1]))
    np.matmul(power_tf[whole:], filters, out=out[whole:])


def normalise(log_mel: NDArray[np.float32], loudest: np.float32) -> NDArray[np.float32]:
    """Return (max(log_mel, loudest - 8) + 4) / 4, the input that Whisper was trained on."""
    scaled: NDArray[np.float32] = np.maximum(log_mel, loudest - _RANGE)
    scaled += np.float32(4.0)
    scaled *= np.float32(0.25)
    return scaled


_WIDE_FFT, _WIDE_WINDOW = 512, 400
_PREEMPHASIS = np.float32(0.97)
_LEAST_POWER = np.float32(2**-24)
_LEAST_DEVIATION = np.float32(1e-5)
_TWO_FRAMES = 2 * HOP  # a deviation needs two frames

_SYMMETRIC_HANN = np.pad(
    0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WIDE_WINDOW) / (_WIDE_WINDOW - 1)),
    (_WIDE_FFT - _WIDE_WINDOW) // 2,
).astype(np.float32)


def normalised_log_mel(
    samples: NDArray[np.float32], n_mels: int, noise: float = 0.0
) -> NDArray[np.float32]:
    """Return NeMo's features, float32 [frames, n_mels], a frame for each whole 10 ms.

    Pre-emphasis; a symmetric Hann window of 25 ms every 10 ms, centred in a 32 ms FFT, with zeros
    around the audio; power; Slaney's mel filters; natural logarithm; each band normalized by its
    mean and standard deviation.

    `samples`: float32 [n]; zeros follow where there are fewer than 20 ms. `noise`: standard
    deviation of the added dither, which is the same for the same audio.
    """
    padded = np.pad(samples, (0, max(0, _TWO_FRAMES - len(samples))))
    if noise:
        generator = np.random.default_rng(len(padded))
        padded = padded + np.float32(noise) * generator.standard_normal(len(padded), np.float32)
    emphasised = np.concatenate([padded[:1], padded[1:] - _PREEMPHASIS * padded[:-1]])
    frames = sliding_window_view(np.pad(emphasised, _WIDE_FFT // 2), _WIDE_FFT)[::HOP]
    filters = mel_filters(n_mels, _WIDE_FFT)
    log_mel_tm = _mel_power(frames[: len(padded) // HOP], _SYMMETRIC_HANN, filters)
    np.log(log_mel_tm + _LEAST_POWER, out=log_mel_tm)
    log_mel_tm -= log_mel_tm.mean(axis=0)
    deviation_m = np.sqrt(np.square(log_mel_tm).sum(axis=0) / np.float32(len(log_mel_tm) - 1))
    log_mel_tm /= deviation_m + _LEAST_DEVIATION
    return log_mel_tm


_PERIODIC_HANN = np.pad(
    0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WIDE_WINDOW) / _WIDE_WINDOW),
    (_WIDE_FFT - _WIDE_WINDOW) // 2,
).astype(np.float32)


def paired_log_mel(samples: NDArray[np.float32], n_mels: int) -> NDArray[np.float32]:
    """Return Granite Speech's features, float32 [samples // 320 or one more, 2 * n_mels].

    Two frames side by side of torchaudio's `MelSpectrogram`: a periodic Hann window of 25 ms every
    10 ms, centred with reflection in 32 ms; power; triangles on O'Shaughnessy's mel scale, each of
    height 1; log10, floored at 8 below the maximum; x / 4 + 1. `samples`: float32 [n]; zeros follow
    where there are fewer than 32 ms. `n_mels`: number of mel bands of 10 ms.
    """
    # Reflection needs more than half of a window.
    padded = np.pad(samples, (0, max(0, _WIDE_FFT - len(samples))))
    frames = sliding_window_view(np.pad(padded, _WIDE_FFT // 2, mode="reflect"), _WIDE_FFT)[::HOP]
    log_mel_tm = _mel_power(frames, _PERIODIC_HANN, _unscaled_filters(n_mels))
    np.log10(np.maximum(log_mel_tm, _SMALLEST_POWER, out=log_mel_tm), out=log_mel_tm)
    scaled = normalise(log_mel_tm, log_mel_tm.max())
    return scaled[: len(scaled) // 2 * 2].reshape(-1, 2 * n_mels)


@cache
def _unscaled_filters(n_mels: int) -> NDArray[np.float32]:
    mels = np.linspace(0, 2595 * np.log10(1 + SAMPLE_RATE / 2 / 700), n_mels + 2)
    corners = 700 * (10 ** (mels / 2595) - 1)
    filters: NDArray[np.float32] = _triangles(corners, _WIDE_FFT).astype(np.float32)
    filters.flags.writeable = False  # shared by all callers
    return filters
