"""Recordings, real models on each runtime, and openai-whisper with the same weights."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from numpy.typing import NDArray
from openai_oracle import Oracle

import kvcast
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.errors import InputMissingError

TESTS = Path(__file__).parents[1]
EXAMPLE = TESTS.parent / "examples" / "sense-and-sensibility.flac"
THREADS = 2

Load = Callable[..., kvcast.WhisperModel]
Samples = NDArray[np.float32]


def read(path: Path) -> Samples:
    samples, rate = soundfile.read(path, dtype="float32")
    assert rate == 16000
    assert samples.ndim == 1
    return samples


@pytest.fixture(scope="session")
def recordings() -> dict[str, Samples]:
    """Real speech, the same with pauses, and a synthetic voice that reads for over 3 minutes."""
    example = read(EXAMPLE)
    pause = np.zeros(40 * 16000, np.float32)
    return {
        "example": example,
        "two windows": np.concatenate([example, pause[: 3 * 16000], example[: 9 * 16000]]),
        "pauses": np.concatenate([example, pause, example]),
        "spoken": read(TESTS / "data" / "spoken.ogg"),
    } | {path.stem: read(path) for path in sorted((TESTS / "data" / "cards").glob("*.wav"))}


@pytest.fixture(scope="session")
def load() -> Load:
    """`kvcast.load` with two threads, which opens each model once."""

    @cache
    def opened(model: str, **options: Any) -> kvcast.WhisperModel:
        try:
            return kvcast.load(model, threads=THREADS, **options)
        except InputMissingError as error:
            pytest.skip(str(error))

    return opened


@pytest.fixture(scope="session")
def oracle() -> Callable[[str], Oracle]:
    """openai-whisper with a packaged model's weights."""

    @cache
    def opened(model: str) -> Oracle:
        torch.set_num_threads(THREADS)
        try:
            return Oracle(open_checkpoint(locate(model)))
        except InputMissingError as error:
            pytest.skip(str(error))

    return opened
