"""What every contender is given, and what it must be able to do."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import WhisperCheckpoint
from kvcast.checkpoints.source import open_checkpoint
from kvcast.spec.paths import cache_dir

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
        return open_checkpoint(Path(self.folder))


class Contender(Protocol):
    """One program with one setting. Methods are called in the order in which they stand here."""

    name: ClassVar[str]
    """How tables and `--peers` call it."""

    packages: ClassVar[tuple[str, ...]]
    """Distributions that it needs, whose versions are printed."""

    modules: ClassVar[tuple[str, ...]]
    """What is imported before a model can be loaded."""

    settings: ClassVar[str]
    """What was chosen where it differs from its defaults, in words."""

    def __init__(self, task: Task) -> None:
        """Remember; no package of the contender's is imported. Not timed."""

    @property
    def dtype(self) -> str:
        """Kind of numbers of weights and arithmetic, in words."""

    @staticmethod
    def unfit(folder: Path) -> str | None:
        """Say why it cannot take this model, or None."""

    def prepare(self) -> None:
        """Make files that are made once per model; not timed."""

    def load(self) -> None:
        """Get ready to transcribe."""

    def transcribe(self, samples: Samples, beam: int) -> str:
        """Turn mono 16 kHz float32 [samples] into text.

        At temperature 0 without fallback, with timestamps, and with no text of one window as the
        prompt of the next.
        """


def installed_versions(packages: tuple[str, ...]) -> dict[str, str] | None:
    """Return the versions of distributions, or None if one is not installed."""
    try:
        return {name: metadata.version(name) for name in packages}
    except metadata.PackageNotFoundError:
        return None


def needs_checkpoint(folder: Path) -> str | None:
    """Refuse a bundle, whose weights are ready for kvcast alone."""
    if (folder / "bundle.json").is_file():
        return "needs the checkpoint, and the model is a kvcast bundle"
    return None


def made_path(name: str) -> Path:
    """Return where a file lies that is made once and kept in the cache folder."""
    return cache_dir() / "bench" / name


@contextmanager
def made_beside(path: Path) -> Iterator[Path]:
    """Give another path, whose file takes the place of `path` when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        beside = Path(scratch) / path.name
        yield beside
        beside.rename(path)
