"""What takes long is made once for all workers of a run: the first makes it, others wait."""

from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

_folders: list[Path] = []


def share(folder: Path) -> None:
    """Tell where all workers of this run can write."""
    _folders[:] = [folder]


def once(name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` has written; it must write nothing where it fails."""
    folder = _folders[0] / f"shared-{name}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            make(folder)
    return folder
