"""What every contender is given, and what it must be able to do."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvcast.bench import contender
from kvcast.checkpoints.base import WhisperCheckpoint
from kvcast.checkpoints.source import open_checkpoint
from kvcast.errors import KvcastError

Samples = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Task:
    """The same for everybody.

    Attributes:
        model: as the user called it.
        folder: where it lies.
        threads: to compute with.
        language: code of what is spoken.

    """

    model: str
    folder: str
    threads: int
    language: str

    def checkpoint(self) -> WhisperCheckpoint:
        """Open the weights that everybody uses."""
        return whisper_checkpoint(Path(self.folder))


def whisper_checkpoint(folder: Path) -> WhisperCheckpoint:
    """Open a checkpoint; raises KvcastError if it is no Whisper."""
    checkpoint = open_checkpoint(folder)
    if isinstance(checkpoint, WhisperCheckpoint):
        return checkpoint
    raise KvcastError(f"{folder} is no Whisper, so it cannot transcribe")


class Contender(contender.Contender, Protocol):
    """A contender that transcribes."""

    def transcribe(self, samples: Samples, beam: int) -> str:
        """Turn mono 16 kHz float32 [samples] into text.

        At temperature 0 without fallback, with timestamps, and with no text of one window as the
        prompt of the next.
        """
