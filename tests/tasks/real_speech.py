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


def ten_minutes(recordings: Mapping[str, Samples]) -> list[Samples]:
    """Ten minutes of speech that begin anywhere, in pieces of 5 to 90 s."""
    whole = np.concatenate([recordings["spoken"], recordings["example"]])
    rng = np.random.default_rng(0)
    pieces: list[Samples] = []
    while sum(map(len, pieces)) < 10 * 60 * 16000:
        begin = rng.integers(len(whole) - 5 * 16000)
        pieces.append(whole[begin : begin + rng.integers(5, 90) * 16000])
    return pieces
