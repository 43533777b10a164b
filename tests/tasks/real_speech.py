"""Where the recordings are, and how the fixtures that transcribe them are typed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

import kvcast

TESTS = Path(__file__).parents[1]
EXAMPLE = TESTS.parent / "examples" / "sense-and-sensibility.flac"
CARDS = sorted((TESTS / "data" / "cards").glob("*.wav"))
SPOKEN = TESTS / "data" / "spoken.ogg"

Samples = NDArray[np.float32]
Load = Callable[..., kvcast.WhisperModel]


def read(path: Path) -> Samples:
    samples, rate = soundfile.read(path, dtype="float32")
    assert rate == 16000
    assert samples.ndim == 1
    return samples
