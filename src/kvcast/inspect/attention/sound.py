"""The part of a recording whose attention is shown, and its spectrogram. Knows no model."""

from contextlib import closing
from typing import Any

import numpy as np

from kvcast.audio.decode import SAMPLE_RATE, open_audio
from kvcast.audio.mel import HOP, N_FFT, log_mel_frames, normalised
from kvcast.errors import UsageError
from kvcast.runtimes.base import Float32

_MELS = 80


def excerpt(source: str, start: float, seconds: float) -> Float32:
    """Return mono samples at 16 kHz, of so many seconds at most.

    Raises UsageError where the recording ends before; InputMissingError and InputOutputError as
    `open_audio`.
    """
    first = round(start * SAMPLE_RATE)
    most = first + round(seconds * SAMPLE_RATE)
    blocks: list[Any] = []
    with closing(open_audio(source)) as audio:
        for block in audio.blocks():
            blocks.append(block)
            if sum(map(len, blocks)) >= most:
                break
    samples: Float32 = np.concatenate(blocks)[first:most] if blocks else np.empty(0, np.float32)
    if len(samples) < N_FFT:
        raise UsageError(f"{source} has no sound at {start:g} s")
    return samples


def spectrogram(samples: Float32) -> Float32:
    """Return the log-mel spectrogram [mels, frames of 10 ms], from 0 for silence to 1."""
    reflected = np.pad(samples, N_FFT // 2, mode="reflect")
    frames_tm = log_mel_frames(reflected, _MELS)[: len(samples) // HOP]
    scaled = normalised(frames_tm, frames_tm.max()).T
    lowest = scaled.min()
    shares_mf: Float32 = (scaled - lowest) / max(float(scaled.max() - lowest), 1e-6)
    return shares_mf
