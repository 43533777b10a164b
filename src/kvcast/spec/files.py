"""SHA-256 of files, and the cache folder.

Digests of files of 1 MB or more are cached in a note with the file's size, times and inode, valid
while these are unchanged. A file changed within the last two seconds gets none, since another write
could have the same times.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

_WORTH_A_NOTE = 1 << 20
_SETTLED_NS = 2_000_000_000


def sha256_of(path: Path) -> str:
    status = path.stat()
    if status.st_size < _WORTH_A_NOTE:
        return file_sha256(path)
    note, identity = _note_path(path), _identity(status)
    known = _read_note(note, identity)
    if known:
        return known
    digest = file_sha256(path)
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    if time.time_ns() - changed > _SETTLED_NS and _identity(path.stat()) == identity:
        _write_note(note, f"{identity} {digest}")
    return digest


def combined_sha256(label: str, files: Iterable[Path]) -> str:
    """SHA-256 over `label` and each file's name and digest, in the order given."""
    lines = [label, *(f"{sha256_of(path)} {path.name}" for path in files)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Read anew, without the cached digest."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _identity(status: os.stat_result) -> str:
    return (
        f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} "
        f"{status.st_dev} {status.st_ino}"
    )


def _note_path(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    return cache_dir() / "digests" / name


def _read_note(note: Path, identity: str) -> str | None:
    try:
        written, _, digest = note.read_text("ascii").rpartition(" ")
    except (OSError, ValueError):
        return None
    return digest if written == identity and len(digest) == 64 else None


def _write_note(note: Path, text: str) -> None:
    """Errors are ignored: an unwritable cache only costs time."""
    beside = note.with_name(f"{note.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, "ascii")
        beside.replace(note)


def cache_dir() -> Path:
    """Return `$KVCAST_CACHE`, or `~/.cache/kvcast`; not created here, and always safe to delete."""
    chosen = os.environ.get("KVCAST_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "kvcast"


def exports_dir() -> Path:
    """Return the folder of bundles that opening a model exports."""
    return cache_dir() / "bundles"
