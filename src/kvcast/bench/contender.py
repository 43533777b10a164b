"""What a contender of any benchmark must be able to do before it takes part, and its files.

What it does in a turn is for each benchmark to add.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Protocol

from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.spec.paths import cache_dir


class Contender(Protocol):
    """One program with one setting. Methods are called in the order in which they stand here.

    Making one imports no package of the contender's, and is not timed.
    """

    @property
    def name(self) -> str:
        """How tables and `--peers` call it."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Distributions that it needs, whose versions are printed."""

    @property
    def modules(self) -> tuple[str, ...]:
        """What is imported before a model can be loaded."""

    @property
    def settings(self) -> str:
        """What was chosen where it differs from its defaults, in words."""

    @property
    def dtype(self) -> str:
        """Kind of numbers of weights and arithmetic, in words."""

    def unfit(self) -> str | None:
        """Say why it cannot take this model, or None."""

    def prepare(self) -> None:
        """Make files that are made once per model; not timed."""

    def load(self) -> None:
        """Get ready for turns."""


def installed_versions(packages: Sequence[str]) -> dict[str, str] | None:
    """Return the versions of distributions, or None if one is not installed."""
    try:
        return {name: metadata.version(name) for name in packages}
    except metadata.PackageNotFoundError:
        return None


def needs_checkpoint(folder: Path) -> str | None:
    """Refuse a bundle, whose weights are ready for kvcast alone."""
    if is_bundle(folder):
        return "needs the checkpoint, and the model is a kvcast bundle"
    return None


def other_bundle(folder: Path, quantize: str) -> str | None:
    """Refuse a bundle that kvcast has exported with another quantisation."""
    if is_bundle(folder) and (has := read_bundle(folder).quantize) != quantize:
        return f"the bundle was exported with --quantize {has}"
    return None


def made_path(name: str) -> Path:
    """Return where a file or folder lies that is made once and kept in the cache folder."""
    return cache_dir() / "bench" / name


@contextmanager
def made_beside(path: Path) -> Iterator[Path]:
    """Give another path; what is made there takes the place of `path` when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        beside = Path(scratch) / path.name
        yield beside
        beside.rename(path)
