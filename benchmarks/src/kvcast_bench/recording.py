"""Inputs of a benchmark of speech: recordings, their references, and word error.

Word error follows a simple normalisation, the same for all programs: lower case; the titles
Mr., Mrs. and Dr. spelled out as spoken; apostrophes inside words dropped, all other marks
become spaces. Numbers are not changed.
"""

import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import InputMissingError, InputOutputError, UsageError

_SPOKEN = {"mr": "mister", "mrs": "missus", "dr": "doctor"}


def read_reference(path: Path) -> str:
    """Read a reference text; raises KvcastError with one line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputMissingError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError):
        raise InputOutputError(f"{path} cannot be read as UTF-8 text") from None
    if not normalise(text):
        raise UsageError(f"{path} holds no words")
    return text


def read_recordings(sources: Sequence[str], references: Sequence[Path]) -> dict[str, Any]:
    """Read recordings and their reference texts, as `workloads.speech.SpeechWorkload` takes them.

    Several files make one long recording, in their order, and so do their references. Each
    file of a folder is a separate recording if a `.txt` of the same name has its transcript.
    Samples are mono, 16 kHz, float32. Raises KvcastError with one line.
    """
    from kvcast.audio.decode import SAMPLE_RATE

    folder = Path(sources[0])
    if folder.is_dir():
        if len(sources) > 1 or references:
            raise UsageError(f"{folder} is a folder: give it alone, with texts beside its files")
        files = _spoken_files(folder)
        name = folder.resolve().name
        recordings = [_samples(str(file)) for file in files]
        spoken = [read_reference(file.with_suffix(".txt")) for file in files]
    else:
        name = " ".join(Path(source).name for source in sources)
        spoken = ["\n".join(map(read_reference, references))] if references else []
        recordings = [np.concatenate([_samples(source) for source in sources])]
    seconds = sum(map(len, recordings)) / SAMPLE_RATE
    return {
        "recordings": recordings,
        "audio": {"name": name, "recordings": len(recordings), "seconds": seconds},
        "references": spoken or None,
    }


def _spoken_files(folder: Path) -> list[Path]:
    """List the files of a folder that have a `.txt` of the same name."""
    others = sorted(path for path in folder.iterdir() if path.suffix != ".txt" and path.is_file())
    if spoken := [path for path in others if path.with_suffix(".txt").is_file()]:
        return spoken
    raise InputMissingError(
        f"{folder} holds no recording with a text beside it, such as a.wav and a.txt"
    )


def _samples(source: str) -> NDArray[np.float32]:
    from kvcast.audio.decode import open_audio

    with closing(open_audio(source)) as audio:
        samples = np.concatenate([np.empty(0, np.float32), *audio.blocks()])
    if not len(samples):
        raise InputOutputError(f"{source} holds no sound")
    return samples


def normalise(text: str) -> str:
    """Return the words of `text`, one space between."""
    joined = re.sub(r"(?<=\w)['\u2019](?=\w)", "", text.lower())
    words = re.sub(r"[^\w]|_", " ", joined).split()
    return " ".join(_SPOKEN.get(word, word) for word in words)


def word_error(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Return substitutions, deletions and insertions over the words of all references.

    Raises UsageError if a reference has no words.
    """
    import jiwer

    expected = list(map(normalise, references))
    if not all(expected):
        raise UsageError("the reference holds no words")
    return float(jiwer.wer(expected, list(map(normalise, hypotheses))))
