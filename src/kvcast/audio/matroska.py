"""Damage in Matroska and WebM (RFC 9559): what cannot be read becomes void.

FFmpeg gives up the rest of a cluster, which has seconds of sound, where one block's header is
damaged. Decodes nothing.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from kvcast.audio.section import FileSection

_MAGIC = b"\x1a\x45\xdf\xa3"
_LARGEST = 1 << 25
"""Bytes of files that are looked through; films are larger, and have many clusters."""

_SEGMENT, _CLUSTER, _VOID = 0x18538067, 0x1F43B675, 0xEC
_SIMPLE_BLOCK, _BLOCK_GROUP = 0xA3, 0xA0
_IN_CLUSTERS = frozenset({_SIMPLE_BLOCK, _BLOCK_GROUP, _VOID, 0xE7, 0xA7, 0xAB, 0xBF})
_IN_SEGMENT = frozenset(
    {_CLUSTER, _VOID, 0xBF}
    | {0x114D9B74, 0x1549A966, 0x1654AE6B, 0x1C53BB6B, 0x1254C367, 0x1941A469, 0x1043A770}
)
_NEAR = 1 << 16
"""Bytes of damage that are looked through."""

_MOST_VOIDS = 100

_FOLLOWERS = 3
"""So many elements do not follow one another by chance."""


class _Element(NamedTuple):
    """An element's name, where its content begins, and where it ends, if that is known."""

    name: int
    begin: int
    end: int | None


def void_patches(file: FileSection) -> Mapping[int, bytes]:
    """Return headers of void elements, by position, to be read instead of what is damaged."""
    if file.size > _LARGEST or file.at(0, 4) != _MAGIC:
        return {}
    data = file.at(0, file.size)
    return dict(islice(_voids(data), _MOST_VOIDS))


def _voids(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        element = _element(data, at)
        if element is None:
            following = _next_good(data, at + 2)
            if following is None:
                return
            yield at, _void(following - at)
            at = following
        else:
            at = _after(element)


def _after(element: _Element) -> int:
    """Return where the next element is: inside of those that have others."""
    if element.name in {_SEGMENT, _CLUSTER} or element.end is None:
        return element.begin
    return element.end


def _next_good(data: bytes, start: int) -> int | None:
    """Return where elements follow one another again, if it is near."""
    for at in range(start, min(start + _NEAR, len(data))):
        if data[at] in _FIRST_BYTES and _is_good(data, at):
            return at
    return None


def _is_good(data: bytes, at: int) -> bool:
    for _ in range(_FOLLOWERS):
        element = _element(data, at)
        if element is None:
            return False
        at = _after(element)
        if at == len(data):
            return True
    return True


def _element(data: bytes, at: int) -> _Element | None:
    """Return the element at a position; None if there is none that belongs there."""
    name, begin = _number(data, at, marked=True)
    size, begin = _number(data, begin, marked=False)
    unknown = size == (1 << 7 * (begin - at - _width(name))) - 1
    known = name in _IN_CLUSTERS or name in _IN_SEGMENT or name in {_SEGMENT, _HEADER}
    if not known or size < 0 or (name == _SIMPLE_BLOCK and size < 4):
        return None
    if unknown:
        return _Element(name, begin, None) if name in {_SEGMENT, _CLUSTER} else None
    end = begin + size
    if end > len(data) and name not in {_SEGMENT, _CLUSTER}:
        return None
    return _Element(name, begin, end)


def _number(data: bytes, at: int, *, marked: bool) -> tuple[int, int]:
    """Return a number of variable length, -1 if there is none, and the position behind it."""
    if at >= len(data) or data[at] == 0:
        return -1, at + 1
    length = 9 - data[at].bit_length()
    raw = int.from_bytes(data[at : at + length], "big")
    if at + length > len(data):
        return -1, at + 1
    return raw if marked else raw ^ (1 << 7 * length), at + length


def _width(name: int) -> int:
    return max(1, (name.bit_length() + 7) // 8)


def _void(length: int) -> bytes:
    """Return the header of a void element of so many bytes, 2 at least."""
    if length < 9:
        return bytes([_VOID, 0x80 | (length - 2)])
    return bytes([_VOID, 0x01]) + (length - 9).to_bytes(7, "big")


_HEADER = 0x1A45DFA3
_FIRST_BYTES = frozenset(
    (name >> 8 * (_width(name) - 1)) & 0xFF for name in {*_IN_CLUSTERS, *_IN_SEGMENT}
)
