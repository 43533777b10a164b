"""Reads binary files from their beginning on; every count is checked against what is left."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import map_file
from kvcast.errors import InputOutputError


class FileCursor:
    """A position in a mapped file. `advice` ends the messages about damage."""

    def __init__(self, path: Path, advice: str) -> None:
        self._path, self._advice = path, advice
        self._data = map_file(path)
        self.position = 0

    def error(self, reason: str) -> InputOutputError:
        return InputOutputError(f"{self._path} is damaged: {reason}; {self._advice}")

    @property
    def remaining(self) -> int:
        return len(self._data) - self.position

    def take(self, count: int, label: str = "") -> NDArray[np.uint8]:
        """Return the next bytes, a view; InputOutputError, naming `label`, if they are too few."""
        if count > self.remaining:
            raise self.error(f"it ends within {label}" if label else "it ends too early")
        start = self.position
        self.position += count
        return self._data[start : self.position]

    def terminated(self, length: int, label: str) -> str:
        """Read ASCII that ends with a NUL, without it.

        It may end up in a message, so line breaks and terminal codes are an InputOutputError.
        """
        text = self.take(length, label).tobytes().decode("ascii", errors="replace")
        if not text.endswith("\0") or not text[:-1].isprintable() or not text.isascii():
            raise self.error(f"{label} is not text")
        return text[:-1]
