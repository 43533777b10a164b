"""Log-mel features whose bands are normalised over a sound, in NumPy.

The recipe is NeMo's: samples less most of those before them, a symmetric Hann window of 25 ms every
10 ms, centred in 32 ms with zeros around the sound; power; Slaney's mel filters; the natural
logarithm; each band less its mean, over its deviation. Knows nothing of files.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from kvcast.audio.mel import HOP, mel_filters, project

N_FFT, _WINDOW = 512, 400
_PREEMPHASIS = np.float32(0.97)
_LEAST_POWER = np.float32(2**-24)
_LEAST_DEVIATION = np.float32(1e-5)
_SHORTEST = 2 * HOP  # a deviation needs two frames
_BLOCK = 256  # frames at once: a few hundred kilobytes, which stay in the cache

_HANN = np.pad(
    0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / (_WINDOW - 1)), (N_FFT - _WINDOW) // 2
).astype(np.float32)


def normalised_log_mel(
    samples: NDArray[np.float32], n_mels: int, noise: float = 0.0
) -> NDArray[np.float32]:
    """Return the features of a sound, float32 [frames, n_mels], a frame for each whole 10 ms.

    Args:
        samples: float32 [n]; zeros follow where there are fewer than 20 ms.
        n_mels: number of mel bands.
        noise: deviation of what is added, the same for the same sound.

    """
    sound = np.pad(samples, (0, max(0, _SHORTEST - len(samples))))
    if noise:
        generator = np.random.default_rng(len(sound))
        sound = sound + np.float32(noise) * generator.standard_normal(len(sound), np.float32)
    emphasised = np.concatenate([sound[:1], sound[1:] - _PREEMPHASIS * sound[:-1]])
    frames = sliding_window_view(np.pad(emphasised, N_FFT // 2), N_FFT)[::HOP]
    log_mel_tm = np.empty((len(sound) // HOP, n_mels), np.float32)
    filters = mel_filters(n_mels, N_FFT)
    for start in range(0, len(log_mel_tm), _BLOCK):
        out = log_mel_tm[start : start + _BLOCK]
        spectrum = np.fft.rfft(frames[start : start + len(out)] * _HANN)
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        project(power, filters, out=out)
    np.log(log_mel_tm + _LEAST_POWER, out=log_mel_tm)
    log_mel_tm -= log_mel_tm.mean(axis=0)
    deviation_m = np.sqrt(np.square(log_mel_tm).sum(axis=0) / np.float32(len(log_mel_tm) - 1))
    log_mel_tm /= deviation_m + _LEAST_DEVIATION
    return log_mel_tm
