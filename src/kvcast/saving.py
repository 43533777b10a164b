"""Atomic writes of text files: a target holds either its old content or all of the new text."""

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from pathlib import Path

from kvcast.errors import InputOutputError

PART = ".part"
"""Ends the names of files that are not complete yet."""

_ROOM = 1 << 20
"""Bytes that are left of a disk on which a large file did not find room."""


def prepare_folder(folder: Path) -> None:
    """Create the folder and check that files can be made in it, before any work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = _part_of(folder)
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise unwritable(folder, error) from None


def check_target(target: Path) -> None:
    """Raise InputOutputError if the name is too long for a file, or a folder's."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise unwritable(target, error) from None
    if stat.S_ISDIR(mode):
        raise unwritable(target, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))


def save(target: Path, text: str, *, staging: Path | None = None) -> None:
    """Write UTF-8 with plain newlines atomically; characters that UTF-8 lacks are escaped.

    `staging` is the folder of the temporary file, on the same file system; by default the target's.
    Raises InputOutputError if it cannot be written; then the target is unchanged.
    """
    part = _part_of(staging or target.parent)
    try:
        with part.open("xb") as stream:
            stream.write(encoded(text))
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise unwritable(target, error) from None
    finally:
        with contextlib.suppress(OSError):  # renamed, or never made
            part.unlink()


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def disk_problem(error: Exception, *folders: Path) -> str | None:
    """Return the system's message if any library's error is a disk error; None if it is not.

    Some errors have the errno in their text, NumPy's none: any counts if a folder is full.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if (number := re.search(r"os error (\d+)", str(error))) is not None:
        return os.strerror(int(number[1]))
    return os.strerror(errno.ENOSPC) if any(map(is_full, folders)) else None


def is_full(folder: Path) -> bool:
    room = room_at(folder)
    return room is not None and room < _ROOM


def room_at(path: Path) -> int | None:
    """Return the bytes that can be written at a path, existing or not; None if unknown."""
    path = path.absolute()
    place = next((place for place in (path, *path.parents) if place.exists()), path)
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None


def unwritable(path: Path, error: OSError) -> InputOutputError:
    return InputOutputError(f"cannot write {path}: {error.strerror or error}")


def _part_of(folder: Path) -> Path:
    # Opened by the ordinary way, unlike tempfile's, so that the user's umask decides its mode.
    return folder / f".kvcast-{secrets.token_hex(8)}{PART}"


def _sync_folder(folder: Path) -> None:
    # The rename has happened already; not every file system can sync a folder.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
