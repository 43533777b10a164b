"""Where the recordings are, and how the fixtures that transcribe them are typed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

import kvcast

TESTS = Path(__file__).parents[1]
EXAMPLE = TESTS.parent / "examples" / "sense-and-sensibility.flac"
CARDS = sorted((TESTS / "data" / "cards").glob("*.wav"))
SPOKEN = TESTS / "data" / "spoken.ogg"
GERMAN = TESTS / "data" / "german.ogg"
THREE_TURNS = TESTS / "data" / "three-turns.ogg"

Samples = NDArray[np.float32]
Load = Callable[..., kvcast.WhisperModel]


def read(path: Path) -> Samples:
    samples, rate = soundfile.read(path, dtype="float32")
    assert rate == 16000
    assert samples.ndim == 1
    return samples


def told(transcripts: Sequence[Sequence[Any]]) -> list[list[tuple[Any, ...]]]:
    """What must be equal; probabilities may differ by a rounding."""
    return [
        [(s.id, s.seek, s.start, s.end, s.tokens, s.temperature) for s in segments]
        for segments in transcripts
    ]
