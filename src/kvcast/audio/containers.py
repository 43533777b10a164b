"""Damaged Matroska and WebM (RFC 9559), and the timestamps of frames in containers.

FFmpeg drops the rest of a cluster, seconds of audio, after one damaged block header: unreadable
bytes are replaced by void elements. Containers round times, clocks of recorders drift, and times
restart where recordings were joined.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from kvcast.audio.reader import FileSection

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
    """Return headers of void elements, by position, to be read instead of damaged elements."""
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
    """Return where the next element is: inside this one if it has children."""
    if element.name in {_SEGMENT, _CLUSTER} or element.end is None:
        return element.begin
    return element.end


def _next_good(data: bytes, start: int) -> int | None:
    """Return where a valid sequence of elements resumes, if it is near."""
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
    """Return a variable-length integer, -1 if there is none, and the position after it."""
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
    """Return the header of a void element of a size in bytes, 2 at least."""
    if length < 9:
        return bytes([_VOID, 0x80 | (length - 2)])
    return bytes([_VOID, 0x01]) + (length - 9).to_bytes(7, "big")


_HEADER = 0x1A45DFA3
_FIRST_BYTES = frozenset(
    (name >> 8 * (_width(name) - 1)) & 0xFF for name in {*_IN_CLUSTERS, *_IN_SEGMENT}
)


_GAP = 0.1
"""Seconds: clocks of recorders and of containers are less apart."""

_BACK = 1.0
"""Seconds: where times run back by more, they begin anew."""

_LONGEST_GAP = 3600.0
"""Seconds: where times run ahead by more, they begin anew."""

_EXACT = 0.004
"""Seconds: containers round times to milliseconds, or thirds of them."""

_FIRST_FRAMES = 10
"""The first ones of some codecs come late."""


class FrameClock:
    """Tracks the times of consecutive frames."""

    position: float
    """Seconds of audio and of gaps so far."""

    def __init__(self, origin: float | None, *, is_damaged: bool) -> None:
        """Begin.

        Args:
            origin: time at which the recording begins; by default its first frame's.
            is_damaged: frames are known to be missing, so small gaps count.

        """
        self.position = 0.0
        self._origin = origin
        self._is_damaged = is_damaged
        self._expected: float | None = None  # time of the next frame
        self._is_exact = True
        self._frames = 0

    @property
    def time(self) -> float:
        return (self._origin or 0.0) + self.position

    def doubt(self) -> None:
        """Treat times as inexact: they differ from the frames' real times."""
        self._is_exact = False

    def gap_before(self, time: float | None, lasts: float, following: float | None) -> float:
        """Return the seconds of missing audio before a frame, and advance past both.

        Args:
            time: of the frame, if it has one.
            lasts: its seconds.
            following: time of the next frame, if any.

        """
        gap = 0.0 if time is None else self._gap(time, lasts, following)
        self.position += gap + lasts
        return gap

    def _gap(self, time: float, lasts: float, following: float | None) -> float:
        if self._origin is None:
            self._origin = time
        gap = time - self.time
        is_far = gap >= _GAP or gap <= -_BACK
        if is_far and following is not None and abs(following - time) > abs(following - self.time):
            return 0.0  # the next frame continues, so this time is damaged
        jump = self._jump(time, lasts)
        if not -_BACK < gap <= _LONGEST_GAP:
            self._origin = time - self.position
            return 0.0
        return gap if gap >= _GAP else min(jump, max(gap, 0.0))

    def _jump(self, time: float, lasts: float) -> float:
        """Return by how many seconds a frame is surely late after the previous one.

        If all times were exact so far, these are whole frames; clocks are less exact.
        """
        expected, self._expected = self._expected, time + lasts
        if expected is None:
            return 0.0
        ahead = time - expected
        self._is_exact &= abs(ahead - max(round(ahead / lasts), 0) * lasts) < _EXACT
        self._frames += 1
        is_sure = self._is_exact and self._frames > _FIRST_FRAMES
        return ahead if (is_sure or self._is_damaged) and ahead > lasts / 2 else 0.0
