"""Result files: named after their input, never half written, never in each other's way.

A file is written beside its target, synced and renamed, so that a target holds either what it
held before or all of the new text, whenever the process ends. Knows no format and no model.
"""

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from kvcast.errors import InputOutputError, UsageError

STANDARD_INPUT = "-"


def shown(source: str) -> str:
    """Return what messages call an input."""
    return "standard input" if source == STANDARD_INPUT else source


def stem(source: str) -> str:
    """Return the name, without extension, of the files that belong to an input."""
    return "stdin" if source == STANDARD_INPUT else Path(source).stem


def refuse_shared_names(sources: Iterable[str]) -> None:
    """Raise UsageError if two inputs would write the same files."""
    owners: dict[str, str] = {}
    for source in sources:
        name = stem(source)
        if name in owners:
            raise UsageError(
                f"{owners[name]} and {source} would both be saved as {name}.*; "
                "transcribe them in two runs, each with its own --output-dir"
            )
        owners[name] = source


def prepare_folder(folder: Path) -> None:
    """Create the folder and prove that files can be made in it, before any work is done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = _beside(folder / "probe")
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise _unwritable(folder, error) from None


def save(target: Path, text: str) -> None:
    """Put `text` into `target` all at once, as UTF-8 with plain newlines."""
    part = _beside(target)
    try:
        with part.open("x", encoding="utf-8", errors="backslashreplace", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise _unwritable(target, error) from None
    finally:
        with contextlib.suppress(OSError):  # renamed, or never made
            part.unlink()


def _beside(target: Path) -> Path:
    # Opened by the ordinary way, unlike tempfile's, so that the user's umask decides its mode.
    return target.with_name(f".kvcast-{secrets.token_hex(8)}.part")


def _sync_folder(folder: Path) -> None:
    # The rename has happened already; not every file system can sync a folder.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _unwritable(path: Path, error: OSError) -> InputOutputError:
    return InputOutputError(f"cannot write {path}: {error.strerror}")
