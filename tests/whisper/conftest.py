"""Recordings, real models on each runtime, and openai-whisper with the same weights."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import kvcast
from kit.openai_whisper import Oracle
from kit.recordings import CARDS, EXAMPLE, GERMAN, SPOKEN, Load, Samples, read
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.errors import InputMissingError

THREADS = 1  # tests share the cores


@pytest.fixture(scope="session")
def recordings() -> dict[str, Samples]:
    """Real speech, the same with pauses, and a synthetic voice that reads for over 3 minutes."""
    example, spoken = read(EXAMPLE), read(SPOKEN)
    pause = np.zeros(40 * 16000, np.float32)
    return {
        "example": example,
        "two windows": np.concatenate([example, pause[: 3 * 16000], example[: 9 * 16000]]),
        "pauses": np.concatenate([example, pause, example[: 9 * 16000]]),
        "spoken": spoken,
        "beginning": spoken[: 80 * 16000],
        "minute": spoken[: 55 * 16000],
        "german": read(GERMAN),
    } | {path.stem: read(path) for path in CARDS}


@pytest.fixture(scope="module")
def load() -> Load:
    """`kvcast.load`, which opens each model once a module: all at once would take gigabytes."""

    @cache
    def opened(model: str, **options: Any) -> kvcast.WhisperModel:
        try:
            return kvcast.load(model, threads=THREADS, **options)
        except InputMissingError as error:
            pytest.skip(str(error))

    return opened


@pytest.fixture(scope="module")
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
