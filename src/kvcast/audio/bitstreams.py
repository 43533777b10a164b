"""Frames of MPEG audio (mp3) and pages of Ogg (RFC 3533), without decoding them."""

import struct
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from kvcast.audio.reader import FileSection

_BITRATES: Mapping[tuple[bool, int], tuple[int, ...]] = {
    (True, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}  # in kbit/s from index 1 on, by whether it is MPEG-1 and by layer (ISO 11172-3 and 13818-3)

_RATES = (44_100, 48_000, 32_000)  # of MPEG-1, in hertz; half in MPEG-2, and a quarter in MPEG-2.5
_MONO = 3
_ID3V1_BYTES = 128
_HEADER = 4
_AT_ONCE = 1 << 20
_COUNT_WITHIN = 60  # bytes of the first frame that hold the count of frames
_MOST_TRIES = 1_000_000  # places without a frame; more were made to take time
_FOLLOWERS = 3  # so many frames of a kind do not follow one another by chance
_NEAR = 8192  # bytes of tags, or of a broken frame, behind the end that a header states


class Frame(NamedTuple):
    """A frame's layer, its bytes, and the part that the next one repeats."""

    layer: int
    length: int
    kind: tuple[int, ...]


class FrameCount(NamedTuple):
    """The number of frames that the first frame states."""

    begin: int
    is_cut: bool
    goes_on: bool


@lru_cache(1024)
def mpeg_frame(header: bytes) -> Frame | None:
    """Read the four bytes of a header of layer I, II or III; None if there is none."""
    if len(header) < _HEADER or header[0] != 0xFF or header[1] < 0xE0 or not header[1] & 0b110:
        return None
    version, layer = header[1] >> 3 & 3, 4 - (header[1] >> 1 & 3)
    bitrate, rate, padding = header[2] >> 4, header[2] >> 2 & 3, header[2] >> 1 & 1
    if version == 1 or bitrate in {0, 15} or rate == 3:
        return None
    is_first = version == 3
    bits = 1000 * _BITRATES[is_first, layer][bitrate - 1]
    hertz = _RATES[rate] // {3: 1, 2: 2, 0: 4}[version]
    if layer == 1:
        length = 4 * (12 * bits // hertz + padding)
    else:
        length = (72 if layer == 3 and not is_first else 144) * bits // hertz + padding
    return Frame(layer, length, (version, layer, rate, header[3] >> 6 == _MONO))


def after_id3(file: FileSection, at: int = 0) -> int:
    """Return where an ID3v2 tag at this position ends; the position, if there is none."""
    head = file.at(at, 10)
    if len(head) < 10 or head[:3] != b"ID3":
        return at
    # ID3v2.4 section 3.1: seven bits per byte, not counting the ten bytes of the header.
    size = 0
    for byte in head[6:]:
        size = size << 7 | byte & 0x7F
    return at + 10 + size


def further_recordings(file: FileSection) -> Iterator[int]:
    """Yield where recordings after the first begin: at a frame count, or where frames change kind.

    A decoder that began with one kind of frames, or with a count, drops the rest.
    """
    end, before = 0, None
    for at, frame, head in _frames(file, after_id3(file)):
        if before is not None and (frame.kind != before or _counts(head)):
            # With the tags before it, except the tag at the end of the previous recording.
            yield end + (_ID3V1_BYTES if file.at(end, 3) == b"TAG" else 0)
        end, before = at + frame.length, frame.kind


def frame_count(file: FileSection) -> FrameCount | None:
    """Return the number of frames that the first frame states; None if it states none."""
    begin = after_id3(file)
    head = file.at(begin, 256)
    at = max(head.find(b"Xing"), head.find(b"Info"))
    frame = mpeg_frame(head[:_HEADER])
    if at < 0 or frame is None or len(head) < at + 16 or not head[at + 7] & 1:
        return None
    first = begin + frame.length
    if head[at + 7] & 2:
        end = begin + int.from_bytes(head[at + 12 : at + 16], "big")
    else:
        end = _end_of(file, first, int.from_bytes(head[at + 8 : at + 12], "big"))
    return FrameCount(
        begin=first,
        is_cut=file.size < end - frame.length,
        goes_on=file.size > end + _NEAR and next(_frames(file, end), None) is not None,
    )


def _counts(head: bytes) -> bool:
    return b"Xing" in head or b"Info" in head


def _end_of(file: FileSection, begin: int, count: int) -> int:
    end = begin
    for number, (at, frame, _) in enumerate(_frames(file, begin)):
        if number == count:
            break
        end = at + frame.length
    return end


def _frames(file: FileSection, start: int) -> Iterator[tuple[int, Frame, bytes]]:
    """Yield each frame's position, the frame, and its first bytes; others are passed over.

    A frame counts if it is of the previous frame's kind and begins where that ends, or if others of
    its kind follow: pictures in tags, and damage, have such bytes by chance.
    """
    data, first = b"", start  # data begins at byte `first`
    expected, at = -1, start
    kind: tuple[int, ...] | None = None
    tried = 0
    while True:
        if at + _NEAR > first + len(data):
            data, first = file.at(at, _AT_ONCE), at
        index = at - first
        frame = mpeg_frame(data[index : index + _HEADER])
        is_next = frame is not None and at == expected and frame.kind == kind
        if frame is not None and (is_next or _is_followed(data, index, frame)):
            yield at, frame, data[index : index + min(frame.length, _COUNT_WITHIN)]
            expected = at = at + frame.length
            kind = frame.kind
            continue
        index = data.find(b"\xff", index + 1)
        tried += 1
        if tried > _MOST_TRIES or (index < 0 and first + len(data) >= file.size):
            return
        at = first + (index if index >= 0 else len(data))


def _is_followed(data: bytes, index: int, frame: Frame) -> bool:
    for _ in range(_FOLLOWERS):
        index += frame.length
        follower = mpeg_frame(data[index : index + _HEADER])
        if follower is None or follower.kind != frame.kind:
            return False
        frame = follower
    return True


_PAGES_AT_ONCE = 1 << 20
_LONGEST_PAGE = 65_307
_PAGE_HEADER = 27
_MOST_DAMAGED = 1000  # no more places are looked at: each may take as long as a whole page
_ENDS = 0x04
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


class OggPages(NamedTuple):
    """Pages of a file: how many streams they carry, and whether some are missing or damaged."""

    streams: int
    has_gaps: bool
    is_ended: bool


def read_pages(file: FileSection) -> OggPages:
    expected: dict[int, int] = {}
    has_gaps = is_ended = False
    data, first, at = b"", 0, 0
    damaged = 0
    while True:
        if at + _LONGEST_PAGE > first + len(data) and first + len(data) < file.size:
            data, first = file.at(at, _PAGES_AT_ONCE), at
        page = _page(data, at - first)
        if page is None:
            following = data.find(b"OggS", at - first + 1)
            if following < 0 and first + len(data) >= file.size:
                # The rest is a page that was cut off, or nothing.
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
    header = data[at : at + _PAGE_HEADER]
    if len(header) < _PAGE_HEADER or header[:4] != b"OggS":
        return None
    lengths = data[at + _PAGE_HEADER : at + _PAGE_HEADER + header[26]]
    size = _PAGE_HEADER + header[26] + sum(lengths)
    page = data[at : at + size]
    (stated,) = struct.unpack_from("<I", header, 22)
    return page if len(page) == size and _checksum(page) == stated else None


def _checksum(page: bytes) -> int:
    plain = page[:22] + bytes(4) + page[26:]
    crc = zlib.crc32(plain.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{crc:032b}"[::-1], 2)
