"""Writes bundles atomically: a killed export leaves either the old bundle or none.

Output goes to a staging folder next to its destination, the manifest last; everything is flushed to
disk, and a rename puts it in place. The process that makes a staging folder locks a file in it. The
system releases the lock when the process ends, however it ends, so a process that can take the lock
knows that the maker is gone and removes the folder.

    .kvcast-k2j9x0aq.part/
        lock
        new/        becomes the destination
        old/NAME    the destination's former content, until the new one is in its place
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvcast.bundle.manifest import MANIFEST, Manifest, file_records, is_bundle
from kvcast.errors import InputOutputError, KvcastError, UsageError
from kvcast.saving import disk_problem, is_full, unwritable

if TYPE_CHECKING:
    from filelock import FileLock


@contextmanager
def stage(destination: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield an empty folder that becomes `destination` when the block succeeds.

    UsageError: the destination exists and is not a bundle, or is one and `overwrite` is false.
    InputOutputError: it cannot be written.
    """
    destination = destination.absolute()
    remove_abandoned(destination.parent)
    try:
        if destination.exists() and not (destination.is_dir() and _replaceable(destination)):
            raise UsageError(
                f"{destination} exists and is not a kvcast bundle; choose another folder"
            )
        if is_bundle(destination) and not overwrite:
            raise UsageError(f"{destination} is a bundle already; overwrite it with --force")
        destination.parent.mkdir(parents=True, exist_ok=True)
        with staging_folder(destination.parent) as new:
            with _telling_of_the_disk(destination, new):
                yield new
            publish(new, destination)
            _flush(destination.parent)
    except OSError as error:
        raise unwritable(destination, error) from None


@contextmanager
def _telling_of_the_disk(destination: Path, folder: Path) -> Iterator[None]:
    """Turn a library's error into InputOutputError if the disk is its cause."""
    temporary = Path(tempfile.gettempdir())
    try:
        yield
    except KvcastError:
        raise
    except Exception as error:
        if (problem := disk_problem(error, folder, temporary)) is None:
            raise
        full = temporary if is_full(temporary) and not is_full(folder) else destination
        raise InputOutputError(f"cannot write {full}: {problem}") from None


def seal(folder: Path, manifest: Manifest) -> Manifest:
    """Record all files in the manifest, flush them, and write the manifest last."""
    manifest_path = folder / MANIFEST
    paths = [path for path in folder.rglob("*") if path.is_file() and path != manifest_path]
    names = [path.relative_to(folder).as_posix() for path in paths]
    sealed = replace(manifest, files=dict(file_records(folder, names)))
    for path in paths:
        _flush(path)
    manifest_path.write_text(sealed.to_json(), encoding="utf-8")
    for path in paths:
        path.chmod(manifest_path.stat().st_mode)  # safetensors makes its files the owner's alone
    _flush(manifest_path)
    _flush(folder)
    return sealed


def _replaceable(folder: Path) -> bool:
    return is_bundle(folder) or not any(folder.iterdir())


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_PREFIX, _SUFFIX = ".kvcast-", ".part"
_LOCK, _NEW, _OLD = "lock", "new", "old"


@contextmanager
def staging_folder(parent: Path) -> Iterator[Path]:
    """Yield an empty folder, removed unless published; OSError if `parent` cannot be written."""
    folder, lock = _locked_folder(parent)
    try:
        new = folder / _NEW
        new.mkdir()
        yield new
    finally:
        _discard(folder)
        lock.release()


def publish(new: Path, destination: Path) -> None:
    """Rename to `destination`, which may exist: `remove_abandoned` undoes half of it."""
    if destination.exists():
        old = new.parent / _OLD
        old.mkdir()
        destination.rename(old / destination.name)
    new.rename(destination)


def remove_abandoned(parent: Path) -> None:
    """Remove staging folders whose makers are gone; never waits, never raises."""
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
