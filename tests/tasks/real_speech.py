"""Where the recordings are, and how the fixtures that transcribe them are typed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

import kvcast
from bundles import exported

TESTS = Path(__file__).parents[1]
EXAMPLE = TESTS.parent / "examples" / "sense-and-sensibility.flac"
CARDS = sorted((TESTS / "data" / "cards").glob("*.wav"))
SPOKEN = TESTS / "data" / "spoken.ogg"
GERMAN = TESTS / "data" / "german.ogg"

Samples = NDArray[np.float32]
Load = Callable[..., kvcast.WhisperModel]


def source(model: str, options: Mapping[str, Any]) -> str | Path:
    """Return what to load: all tests share one bundle of a model in fp32."""
    is_exact = options == {"runtime": "onnx", "quantize": "none"}
    return exported(model, quantize="none") if is_exact else model


def read(path: Path) -> Samples:
    samples, rate = soundfile.read(path, dtype="float32")
    assert rate == 16000
    assert samples.ndim == 1
    return samples
