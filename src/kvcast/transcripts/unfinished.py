"""Results of a recording whose transcription may be interrupted, beside its transcripts.

A file `.kvcast-NAME.part` has a line of JSON for each, with a checksum as in the journal of
folders. It exists only until the transcripts are saved.
"""

import contextlib
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from kvcast.errors import KvcastError
from kvcast.saving import PART
from kvcast.transcripts.folders.journal import read_lines, sealed, unsealed

UNFINISHED_FORMAT = "kvcast.unfinished"
UNFINISHED_VERSION = 1


class UnfinishedWork:
    """Results by their keys, those of an interrupted run with the same inputs included.

    A file that cannot be read or written is done without: it only saves time.
    """

    def __init__(self, folder: Path, name: str, inputs: Callable[[], str]) -> None:
        """Read the file, if there is one; `inputs` digests all that decides the results."""
        self._path = folder / f".kvcast-{name}{PART}"
        self._inputs = inputs
        self._results: dict[str, Mapping[str, Any]] = {}
        self._file: BinaryIO | None = None
        self._is_kept = True
        with contextlib.suppress(KvcastError):
            self._read()

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: str) -> Mapping[str, Any] | None:
        return self._results.get(key)

    def put(self, key: str, result: Mapping[str, Any]) -> None:
        """Add a result: a process that is killed after this call does not lose it."""
        try:
            line = sealed({"key": key, "result": result})
        except ValueError:  # a number that is not finite; it is computed again
            return
        self._results[key] = result
        if not self._is_kept:
            return
        try:
            file = self._file or self._begun()
            file.write(line)
            file.flush()
        except OSError:
            self.remove()

    def close(self) -> None:
        """Leave the file to the next run."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None

    def remove(self) -> None:
        self._is_kept = False
        self.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    @cached_property
    def _header(self) -> Mapping[str, Any]:
        return {
            "format": UNFINISHED_FORMAT,
            "version": UNFINISHED_VERSION,
            "inputs": self._inputs(),
        }

    def _read(self) -> None:
        lines = map(unsealed, read_lines(self._path))
        if (first := next(lines, None)) is None or first != self._header:
            return
        for record in lines:
            if record is not None and set(record) == {"key", "result"}:
                self._results[record["key"]] = record["result"]

    def _begun(self) -> BinaryIO:
        """Write the file anew, as a killed run may have cut its last line short."""
        self._file = self._path.open("wb")
        self._file.write(sealed(self._header))
        *earlier, _ = self._results.items()
        for key, result in earlier:
            self._file.write(sealed({"key": key, "result": result}))
        return self._file
