"""Staging folders: output is written beside its destination and renamed when it is complete.

The process that makes a staging folder locks a file in it. The system releases the lock when the
process ends, however it ends. So a process that can take the lock knows that the maker is gone,
and removes the folder. Does not know the files' content.

    .kvcast-k2j9x0aq.part/
        lock
        new/        becomes the destination
        old/NAME    the destination's former content, until the new one is in its place
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import FileLock

_PREFIX, _SUFFIX = ".kvcast-", ".part"
_LOCK, _NEW, _OLD = "lock", "new", "old"


@contextmanager
def staging_folder(parent: Path) -> Iterator[Path]:
    """Yield an empty folder inside of `parent`; unpublished content is removed at the end.

    Raises OSError where `parent` cannot be written.
    """
    folder, lock = _locked_folder(parent)
    try:
        new = folder / _NEW
        new.mkdir()
        yield new
    finally:
        _discard(folder)
        lock.release()


def publish(new: Path, destination: Path) -> None:
    """Rename a staging folder's content to `destination`, which may exist.

    A process that is killed halfway leaves the old folder where `remove_abandoned` finds it and
    puts it back.
    """
    if destination.exists():
        old = new.parent / _OLD
        old.mkdir()
        destination.rename(old / destination.name)
    new.rename(destination)


def remove_abandoned(parent: Path) -> None:
    """Remove the staging folders in `parent` whose makers are gone; never waits, never raises."""
    with contextlib.suppress(OSError):
        for folder in sorted(parent.glob(f"{_PREFIX}*{_SUFFIX}")):
            _remove_if_abandoned(folder)


def _locked_folder(parent: Path) -> "tuple[Path, FileLock]":
    # Slow to import, and only exports need it.
    from filelock import FileLock, Timeout

    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, suffix=_SUFFIX, dir=parent))
        lock = FileLock(folder / _LOCK)
        # Until it is locked, another process may take the folder for an abandoned one.
        with contextlib.suppress(Timeout):
            lock.acquire(blocking=False)
            if (folder / _LOCK).exists():
                return folder, lock
            lock.release()


def _remove_if_abandoned(folder: Path) -> None:
    from filelock import FileLock, Timeout

    with contextlib.suppress(OSError):
        if not (folder / _LOCK).is_file():
            folder.rmdir()  # killed before there was a lock; refused unless it is empty
            return
        with contextlib.suppress(Timeout), FileLock(folder / _LOCK, blocking=False):
            _discard(folder)


def _discard(folder: Path) -> None:
    """Put back retired content that was not replaced; remove the rest, the lock last."""
    with contextlib.suppress(OSError):
        for old in (folder / _OLD).iterdir():
            destination = folder.parent / old.name
            if not destination.exists():
                old.rename(destination)
    for part in (_NEW, _OLD):
        shutil.rmtree(folder / part, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
