"""The journal of a folder run: synced after every recording.

A folder `.kvcast` in the output folder holds three things:

lock            held while a run writes there
    journal.jsonl   a line of JSON per recording, appended and synced once its transcripts are saved
    *.part          transcripts that are not complete yet; renamed to their place, or left by a kill

The first line names the folder of the recordings. Every line ends with the SHA-256 of the rest of
it. A line that is cut short or damaged counts as never written: its recording is done again. Of
several lines about a recording the last one counts. A line is data from a file that another program
may have written, so its paths are checked to stay inside.
"""

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

from filelock import FileLock, Timeout

from kvcast.errors import InputMissingError, InputOutputError, UsageError
from kvcast.saving import PART, save, unwritable
from kvcast.transcripts.folders.recordings import may_be_named

JOURNAL_FORMAT = "kvcast.journal"
JOURNAL_VERSION = 1

_STATE, _JOURNAL, _LOCK = ".kvcast", "journal.jsonl", "lock"
_LONGEST_LINE = 1 << 17  # bytes; a path of 4,096 bytes, escaped, occurs up to ten times in a line
_MOST_BYTES = 1 << 30
_SEAL = re.compile(rb',"check":"([0-9a-f]{64})"\}\Z')


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A recording's outcome.

    `sha256`: of the recording; empty for one that failed, as `reason` is for others. `options`:
    digest of all options that decide a transcript's content. `name`: of its transcripts, without
    extensions. `outputs`: SHA-256 of every transcript by its path in the output folder. `duration`
    (in seconds), `language` (its code): null if it failed.
    """

    path: str
    size: int
    mtime_ns: int
    sha256: str
    options: str
    status: Literal["done", "failed"]
    reason: str
    name: str
    outputs: Mapping[str, str]
    duration: float | None
    language: str | None

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self | None:
        """Return the entry of a line, or None unless its paths are inside the folders."""
        if set(record) != {field.name for field in fields(cls)}:
            return None
        texts = (record[name] for name in ("path", "sha256", "options", "status", "reason", "name"))
        numbers = (record["size"], record["mtime_ns"])
        outputs = record["outputs"]
        well = (
            all(isinstance(text, str) for text in texts)
            and all(type(number) is int for number in numbers)
            and isinstance(outputs, dict)
            and all(isinstance(digest, str) for digest in outputs.values())
            and isinstance(record["duration"], float | int | None)
            and isinstance(record["language"], str | None)
            and record["status"] in ("done", "failed")
            and all(map(is_inside, (record["path"], record["name"], *outputs)))
            and may_be_named(record["path"], record["name"])
            and all(output.startswith(record["name"] + ".") for output in outputs)
        )
        return cls(**record) if well else None


def is_inside(path: str) -> bool:
    """Return whether a relative path, its parts separated by "/", stays in its folder."""
    marks = "\0\\:" if os.name == "nt" else "\0"
    return not any(mark in path for mark in marks) and not any(
        part in ("", ".", "..") for part in path.split("/")
    )


@contextmanager
def opened_journal(output: Path, recordings: Path) -> Iterator["Journal"]:
    """Lock and open the journal of an existing output folder.

    Leftovers of a killed run are removed, and a damaged journal is written anew. Raises UsageError
    for a folder of other recordings or another version, and InputOutputError if it is held by
    another run or cannot be read or written; then it leaves no new journal.
    """
    state = output / _STATE
    is_new = not state.exists()
    try:
        if state.is_symlink():
            raise InputOutputError(f"{state} is a link: remove it, or choose another --output-dir")
        state.mkdir(exist_ok=True)
        lock = FileLock(state / _LOCK)
        lock.acquire(blocking=False)
    except Timeout:
        raise InputOutputError(
            f"another kvcast is writing to {output}: wait for its end, or choose another "
            "--output-dir"
        ) from None
    except (OSError, NotImplementedError) as error:
        raise InputOutputError(f"cannot write {state}: {error}") from None
    try:
        for part in state.glob(f"*{PART}"):
            with contextlib.suppress(OSError):
                part.unlink()
        journal = Journal(state, os.path.realpath(recordings))
        try:
            yield journal
        except (UsageError, InputMissingError):
            if is_new and not journal.entries:
                _remove(state)
            raise
    finally:
        lock.release()


def _remove(state: Path) -> None:
    with contextlib.suppress(OSError):
        for name in (_JOURNAL, _LOCK):
            (state / name).unlink()
        state.rmdir()


class Journal:
    def __init__(self, state: Path, recordings: str) -> None:
        self.staging = state  # where transcripts grow until they are renamed
        self.entries: dict[str, Entry] = {}  # the last entry of each recording, by its path
        self.damaged = 0  # lines that could not be read
        self._path = state / _JOURNAL
        lines, header = 0, None
        for line in read_lines(self._path):
            lines += 1
            record = unsealed(line)
            if record is not None and header is None and record.get("format") == JOURNAL_FORMAT:
                header = record
                self._check_header(record, recordings)
            elif record is not None and (entry := Entry.read(record)) is not None:
                self.entries[entry.path] = entry
            else:
                self.damaged += 1
        current = header is not None and header["folder"] == recordings
        if not current or self.damaged or lines != len(self.entries) + 1:
            self._write_anew(recordings)

    def append(self, entry: Entry) -> None:
        """Add an entry; it is on disk when this returns. Raises InputOutputError."""
        try:
            with self._path.open("ab") as stream:
                stream.write(sealed(asdict(entry)))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise unwritable(self._path, error) from None
        self.entries[entry.path] = entry

    def _write_anew(self, recordings: str) -> None:
        header = {"format": JOURNAL_FORMAT, "version": JOURNAL_VERSION, "folder": recordings}
        lines = [header, *map(asdict, self.entries.values())]
        save(self._path, b"".join(map(sealed, lines)).decode())

    def _check_header(self, header: Mapping[str, Any], recordings: str) -> None:
        if header.get("version") != JOURNAL_VERSION:
            raise UsageError(
                f"{self._path} is another kvcast's, of format {header.get('version')}: "
                "choose another --output-dir"
            )
        owner = header.get("folder")
        moved = not isinstance(owner, str) or not Path(owner).is_dir()
        if owner != recordings and not moved:
            raise UsageError(
                f"{self.staging.parent} holds the transcripts of {owner}: give {recordings} "
                "another --output-dir"
            )


def sealed(record: Mapping[str, Any]) -> bytes:
    """Return a line of ASCII JSON that ends with the SHA-256 of the rest of it."""
    # Names that are not valid UTF-8 come and go as the escapes of their surrogates.
    text = json.dumps(record, separators=(",", ":"), allow_nan=False).encode("ascii")
    return text[:-1] + b',"check":"%s"}\n' % hashlib.sha256(text).hexdigest().encode("ascii")


def unsealed(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line made by `sealed`; None for any other line."""
    body, newline = line[:-1], line[-1:]
    seal = _SEAL.search(body)
    if newline != b"\n" or seal is None:
        return None
    text = body[: seal.start()] + b"}"
    if hashlib.sha256(text).hexdigest().encode("ascii") != seal[1]:
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a journal, an overlong one as one that cannot be read."""
    try:
        # Whatever is there instead of a file must not be waited for, and a link leads elsewhere.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as stream:
            seen = os.fstat(stream.fileno())
            if not stat.S_ISREG(seen.st_mode):
                raise InputOutputError(f"{path} is no file: remove it")
            if seen.st_size > _MOST_BYTES:
                raise InputOutputError(f"{path} is too large, {seen.st_size} bytes: remove it")
            yield from _bounded_lines(stream)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputOutputError(f"{path} cannot be read: {error.strerror}") from None


def _bounded_lines(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(_LONGEST_LINE):
        yield line if line.endswith(b"\n") else b""
        while not line.endswith(b"\n") and (line := stream.readline(_LONGEST_LINE)):
            pass
