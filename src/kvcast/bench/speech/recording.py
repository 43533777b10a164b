"""What a benchmark of speech is given: a recording's samples, and what is spoken in it."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.decode import open_audio
from kvcast.bench.speech.wer import normalise
from kvcast.errors import InputMissingError, InputOutputError, UsageError


def read_reference(path: Path) -> str:
    """Read what is spoken; raises KvcastError with one line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputMissingError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError):
        raise InputOutputError(f"{path} cannot be read as UTF-8 text") from None
    if not normalise(text):
        raise UsageError(f"{path} holds no words")
    return text


def read_samples(source: str) -> NDArray[np.float32]:
    """Read all of a recording, mono, 16 kHz; raises KvcastError with one line."""
    audio = open_audio(source)
    try:
        blocks = list(audio.blocks())
    finally:
        audio.close()
    samples = np.concatenate([np.empty(0, np.float32), *blocks])
    if not len(samples):
        raise InputOutputError(f"{source} holds no sound")
    return samples
