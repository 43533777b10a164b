"""What a benchmark of speech is given: a recording's samples, what is spoken in it, and word error.

Word error follows a simple normalisation that is the same for everybody: lower case; the titles
Mr., Mrs. and Dr. spelled out as they are spoken; apostrophes inside words dropped, all other marks
become spaces. Numbers stay as they are written.
"""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import InputMissingError, InputOutputError, UsageError

_SPOKEN = {"mr": "mister", "mrs": "missus", "dr": "doctor"}


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
    from kvcast.audio.decode import open_audio

    audio = open_audio(source)
    try:
        blocks = list(audio.blocks())
    finally:
        audio.close()
    samples = np.concatenate([np.empty(0, np.float32), *blocks])
    if not len(samples):
        raise InputOutputError(f"{source} holds no sound")
    return samples


def normalise(text: str) -> str:
    """Return the words of `text`, one space between."""
    joined = re.sub(r"(?<=\w)['\u2019](?=\w)", "", text.lower())
    words = re.sub(r"[^\w]|_", " ", joined).split()
    return " ".join(_SPOKEN.get(word, word) for word in words)


def word_error(reference: str, hypothesis: str) -> float:
    """Return substitutions, deletions and insertions over the words of the reference.

    Raises UsageError if the reference has no words.
    """
    import jiwer

    expected = normalise(reference)
    if not expected:
        raise UsageError("the reference holds no words")
    return float(jiwer.wer(expected, normalise(hypothesis)))
