"""Writes bundles atomically: a killed export leaves either the old bundle or none.

A bundle is written to a folder beside its destination, with the manifest last; everything is
flushed to disk, and a rename puts it in place. Does not know the files' meaning.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kvcast.bundle.manifest import MANIFEST, Manifest, file_records, is_bundle
from kvcast.bundle.staging import publish, remove_abandoned, staging_folder
from kvcast.errors import InputOutputError, KvcastError, UsageError
from kvcast.saving import disk_problem, is_full, unwritable


@contextmanager
def staged(destination: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield an empty folder that becomes `destination` when the block succeeds.

    Raises:
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
    """Record all files of `folder` in the manifest, flush them, and write the manifest last."""
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
