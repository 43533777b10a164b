"""Damaged files: headers with a length that is too small, Matroska (RFC 9559), gaps between frames.

FFmpeg drops the rest of a cluster, seconds of audio, after one damaged block header: unreadable
bytes are replaced by void elements. Containers round times, recorders' clocks drift, and times
restart where recordings were joined.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from kvcast.audio.reader import FileSection

STREAMED_SIZE = 0x7FFF0000  # or more: an unknown size, stated by programs that write to a pipe
_TAGS = (b"TAG", b"APETAGEX", b"ID3", b"LYRICSBEGIN")  # tags that programs put behind everything
_LEAST_BYTES = 1_000  # fewer mean nothing, unless the header says that there is nothing at all

_AT_ONCE = 1 << 20


class Understated(NamedTuple):
    """A header that states `stated` bytes of audio where `held` follow; patches repair it."""

    stated: int
    held: int
    patches: Mapping[int, bytes]


class _Chunk(NamedTuple):
    name: bytes
    size_at: int
    begin: int
    size: int


def find_understated_length(file: FileSection) -> Understated | None:
    """Return by how much a header's length is too small; None if it is right or there is none."""
    head = file.at(0, 40)
    for magic, read in _READERS.items():
        if head.startswith(magic):
            return read(file)
    return None


def _iff(file: FileSection, order: str, name: bytes) -> Understated | None:
    """Read a file of chunks, whose sizes have 32 bits; see "EA IFF 85" and RIFF."""
    walked = list(_chunks(file, 12, order))
    audio = next((chunk for chunk in walked if chunk.name == name), None)
    if audio is None or audio.size >= STREAMED_SIZE or not _goes_on(file, audio, order):
        return None
    held = file.size - audio.begin
    patches = {
        4: struct.pack(order + "I", min(file.size - 8, 0xFFFFFFFF)),
        audio.size_at: struct.pack(order + "I", min(held, 0xFFFFFFFF)),
    }
    if name == b"SSND":
        patches |= _aiff_frames(file, walked, held)
    return Understated(audio.size, held, patches)


def _aiff_frames(file: FileSection, walked: list[_Chunk], held: int) -> dict[int, bytes]:
    """Return the patch of the number of frames in AIFF's common chunk."""
    for chunk in walked:
        if chunk.name == b"COMM" and chunk.size >= 18:
            channels, _, bits = struct.unpack(">hIh", file.at(chunk.begin, 8))
            width = max(1, channels * (bits + 7) // 8)
            return {chunk.begin + 2: struct.pack(">I", (held - 8) // width)}
    return {}


def _rf64(file: FileSection) -> Understated | None:
    """Read a RIFF file with 64-bit sizes in a separate chunk (EBU Tech 3306)."""
    walked = list(_chunks(file, 12, "<"))
    sizes = next((chunk for chunk in walked if chunk.name == b"ds64"), None)
    audio = next((chunk for chunk in walked if chunk.name == b"data"), None)
    if sizes is None or audio is None or sizes.size < 24:
        return None
    _, stated = struct.unpack("<QQ", file.at(sizes.begin, 16))
    chunk = audio._replace(size=stated)
    if not _goes_on(file, chunk, "<"):
        return None
    held = file.size - audio.begin
    patches = {sizes.begin: struct.pack("<QQ", file.size - 8, held)}
    return Understated(stated, held, patches | {audio.size_at: b"\xff" * 4})


def _w64(file: FileSection) -> Understated | None:
    """Read Sony's Wave64: chunks named by 16 bytes, with sizes of 64 bits that count the header."""
    at = 40
    while len(head := file.at(at, 24)) == 24:
        (size,) = struct.unpack_from("<Q", head, 16)
        if head.startswith(b"data\xf3\xac\xd3\x11"):
            chunk = _Chunk(b"data", at + 16, at + 24, max(size, 24) - 24)
            rest = file.at((chunk.begin + chunk.size + 7) // 8 * 8, 24)
            is_chunk = rest[4:8] in {b"\xf3\xac\xd3\x11", b"\x12\xcd\x11\xa5"}
            if is_chunk or not _is_audio(file, chunk):
                return None
            held = file.size - chunk.begin
            patches = {
                16: struct.pack("<Q", file.size),
                chunk.size_at: struct.pack("<Q", held + 24),
            }
            return Understated(chunk.size, held, patches)
        at += max((size + 7) // 8 * 8, 24)
    return None


def _au(file: FileSection) -> Understated | None:
    begin, size = struct.unpack(">II", file.at(4, 8))
    chunk = _Chunk(b"", 8, begin, size)
    if not _is_audio(file, chunk):
        return None
    return Understated(size, file.size - begin, {8: struct.pack(">I", 0xFFFFFFFF)})


def _caf(file: FileSection) -> Understated | None:
    """Read Apple's Core Audio Format, where -1 is an unknown size of its last chunk."""
    at = 8
    while len(head := file.at(at, 12)) == 12:
        name, size = struct.unpack(">4sq", head)
        chunk = _Chunk(name, at + 4, at + 12, size)
        if name == b"data":
            follows = file.at(chunk.begin + chunk.size, 12) if size >= 0 else b""
            if size < 0 or _is_name(follows[:4]) or not _is_audio(file, chunk):
                return None
            held = file.size - chunk.begin
            return Understated(max(size - 4, 0), held - 4, {at + 4: struct.pack(">q", held)})
        if size < 0:
            return None
        at += 12 + size
    return None


_READERS: Mapping[bytes, Callable[[FileSection], Understated | None]] = {
    b"RIFF": lambda file: _iff(file, "<", b"data"),
    b"RIFX": lambda file: _iff(file, ">", b"data"),
    b"RF64": _rf64,
    b"BW64": _rf64,
    b"FORM": lambda file: _iff(file, ">", b"SSND"),
    b"riff\x2e\x91\xcf\x11": _w64,
    b".snd": _au,
    b"caff": _caf,
}


def _chunks(file: FileSection, at: int, order: str) -> Iterator[_Chunk]:
    """Yield chunks up to the end, or to bytes that are none."""
    while len(head := file.at(at, 8)) == 8 and _is_name(head[:4]):
        (size,) = struct.unpack(order + "I", head[4:])
        yield _Chunk(head[:4], at + 4, at + 8, size)
        at += 8 + size + size % 2


def _goes_on(file: FileSection, audio: _Chunk, order: str) -> bool:
    """Return whether audio follows where an audio chunk should end, instead of another chunk."""
    end = audio.begin + audio.size
    for at in {end, end + end % 2}:
        after = next(_chunks(file, at, order), None)
        if after is not None and after.begin + after.size <= file.size:
            return False
    return _is_audio(file, audio)


def _is_audio(file: FileSection, audio: _Chunk) -> bool:
    """Return whether the bytes after an audio chunk may be audio: neither tags nor padding."""
    at = audio.begin + audio.size
    left = file.size - at
    if left <= (_LEAST_BYTES if audio.size else 0) or file.at(at, 12).startswith(_TAGS):
        return False
    if not audio.size:
        return True
    file.seek(at)
    while data := file.read(_AT_ONCE):
        if data.strip(b"\x00"):
            return True
    return False


def _is_name(name: bytes) -> bool:
    return len(name) == 4 and all(32 <= byte < 127 for byte in name)


_MAGIC = b"\x1a\x45\xdf\xa3"
_LARGEST = 1 << 25  # bytes of files that are looked through; films have many clusters

_SEGMENT, _CLUSTER, _VOID = 0x18538067, 0x1F43B675, 0xEC
_SIMPLE_BLOCK, _BLOCK_GROUP = 0xA3, 0xA0
_IN_CLUSTERS = frozenset({_SIMPLE_BLOCK, _BLOCK_GROUP, _VOID, 0xE7, 0xA7, 0xAB, 0xBF})
_IN_SEGMENT = frozenset(
    {_CLUSTER, _VOID, 0xBF}
    | {0x114D9B74, 0x1549A966, 0x1654AE6B, 0x1C53BB6B, 0x1254C367, 0x1941A469, 0x1043A770}
)
_NEAR = 1 << 16  # bytes of damage that are looked through
_MOST_VOIDS = 100

_FOLLOWERS = 3  # so many elements do not follow one another by chance


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
            yield at, _void_header(following - at)
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


def _void_header(length: int) -> bytes:
    """Return the header of a void element of a size in bytes, 2 at least."""
    if length < 9:
        return bytes([_VOID, 0x80 | (length - 2)])
    return bytes([_VOID, 0x01]) + (length - 9).to_bytes(7, "big")


_HEADER = 0x1A45DFA3
_FIRST_BYTES = frozenset(
    (name >> 8 * (_width(name) - 1)) & 0xFF for name in {*_IN_CLUSTERS, *_IN_SEGMENT}
)


_GAP = 0.1  # seconds: clocks of recorders and of containers are less apart
_BACK = 1.0  # seconds: where times run back by more, they begin anew
_LONGEST_GAP = 3600.0  # seconds: where times run ahead by more, they begin anew
_EXACT = 0.004  # seconds: containers round times to milliseconds, or thirds of them
_FIRST_FRAMES = 10  # the first ones of some codecs come late


class FrameClock:
    position: float  # seconds of audio and of gaps so far

    def __init__(self, origin: float | None, *, is_damaged: bool) -> None:
        """Begin at time `origin`, by default the first frame's; `is_damaged`: small gaps count."""
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
        """Return the seconds of missing audio before a frame at `time`, and advance past both."""
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
