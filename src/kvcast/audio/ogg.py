"""Pages of Ogg (RFC 3533): whether a stream is whole.

Decodes nothing.
"""

import struct
import zlib
from typing import NamedTuple

from kvcast.audio.section import FileSection

_AT_ONCE = 1 << 20
_LONGEST_PAGE = 65_307
_HEADER = 27
_MOST_DAMAGED = 1000
"""No more places are looked at: each may take as long as a whole page."""

_ENDS = 0x04
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


class OggPages(NamedTuple):
    """Pages of a file: how many streams they carry, and whether some are missing or damaged."""

    streams: int
    has_gaps: bool
    is_ended: bool


def read_pages(file: FileSection) -> OggPages:
    """Look at all pages of a file."""
    expected: dict[int, int] = {}
    has_gaps = is_ended = False
    data, first, at = b"", 0, 0
    damaged = 0
    while True:
        if at + _LONGEST_PAGE > first + len(data) and first + len(data) < file.size:
            data, first = file.at(at, _AT_ONCE), at
        page = _page(data, at - first)
        if page is None:
            following = data.find(b"OggS", at - first + 1)
            if following < 0 and first + len(data) >= file.size:
                # What remains is a page that was cut off, or nothing.
                return OggPages(len(expected), has_gaps, is_ended and at == file.size)
            has_gaps |= following >= 0
            damaged += 1
            if damaged > _MOST_DAMAGED:
                return OggPages(len(expected), True, False)
            at = first + following if following >= 0 else first + len(data) - 3
            continue
        flags, serial, sequence = struct.unpack_from("<xxxxxB8xII", page)
        has_gaps |= expected.get(serial, sequence) != sequence
        expected[serial] = sequence + 1
        is_ended = bool(flags & _ENDS)
        at += len(page)


def _page(data: bytes, at: int) -> bytes | None:
    """Return the page at an index; None if there is none, or it is damaged."""
    header = data[at : at + _HEADER]
    if len(header) < _HEADER or header[:4] != b"OggS":
        return None
    lengths = data[at + _HEADER : at + _HEADER + header[26]]
    size = _HEADER + header[26] + sum(lengths)
    page = data[at : at + size]
    (stated,) = struct.unpack_from("<I", header, 22)
    return page if len(page) == size and _checksum(page) == stated else None


def _checksum(page: bytes) -> int:
    """Return the page's CRC-32: that of zlib with all bits reversed, from 0 on and not inverted."""
    plain = page[:22] + bytes(4) + page[26:]
    crc = zlib.crc32(plain.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{crc:032b}"[::-1], 2)
