"""What a benchmark of speech needs: a recording's samples, what is spoken in it, and word error.

Word error follows a simple normalisation that is the same for everybody: lower case; the titles
Mr., Mrs. and Dr. spelled out as they are spoken; apostrophes inside words dropped, all other marks
become spaces. Numbers stay as they are written. Knows no model.
"""

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

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


def read_recording(source: str, reference: Path | None) -> dict[str, Any]:
    """Read a recording and what is spoken in it, as `workloads.speech.Speech` takes them.

    Samples are mono, 16 kHz, float32. Raises KvcastError with one line.
    """
    from kvcast.audio.decode import SAMPLE_RATE, open_audio

    spoken = None if reference is None else read_reference(reference)
    with closing(open_audio(source)) as audio:
        samples = np.concatenate([np.empty(0, np.float32), *audio.blocks()])
    if not len(samples):
        raise InputOutputError(f"{source} holds no sound")
    return {
        "samples": samples,
        "audio": {"name": Path(source).name, "seconds": len(samples) / SAMPLE_RATE},
        "reference": spoken,
    }


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
