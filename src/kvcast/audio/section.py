"""A part of a file, as a file object, in which bytes can be replaced.

Knows no format.
"""

import io
from collections.abc import Mapping
from typing import BinaryIO


class FileSection:
    """Bytes `start` to `stop` of a seekable file.

    It has no name, so that readers go by the content and never by an extension.
    """

    size: int

    def __init__(
        self,
        file: "BinaryIO | FileSection",
        start: int = 0,
        stop: int | None = None,
        *,
        patches: Mapping[int, bytes] | None = None,
    ) -> None:
        """Prepare.

        Args:
            file: stays open; its own position does not matter.
            start: the first byte.
            stop: the one after the last; by default the end of the file.
            patches: bytes that are read instead of those at a position of the section.

        """
        self._file = file
        self._start = start
        self.size = (file.seek(0, io.SEEK_END) if stop is None else stop) - start
        self._patches = dict(patches or {})
        self._position = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move, and return the position; it is 0 at least."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def read(self, count: int) -> bytes:
        """Return the next bytes; none at the end, and where the file cannot be read."""
        count = min(count, self.size - self._position)
        if count <= 0:
            return b""
        try:
            self._file.seek(self._start + self._position)
            data = self._file.read(count)
            while 0 < len(data) < count and (more := self._file.read(count - len(data))):
                data += more  # some files give less than they are asked for
        except OSError:  # libraries in C cannot pass on exceptions; the missing length will show it
            return b""
        for at, patch in self._patches.items():
            data = _patched(data, at - self._position, patch)
        self._position += len(data)
        return data

    def at(self, position: int, count: int) -> bytes:
        """Return bytes at a position."""
        self.seek(position)
        return self.read(count)


def _patched(data: bytes, at: int, patch: bytes) -> bytes:
    """Return data with `patch` at an index, as far as it overlaps."""
    first, last = max(at, 0), min(at + len(patch), len(data))
    return data if first >= last else data[:first] + patch[first - at : last - at] + data[last:]
