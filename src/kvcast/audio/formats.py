"""Recognizes audio formats by extension and first bytes, and finds the parts of a joined file.

Any bytes can be raw samples, so a format is only named for bytes that samples hardly ever begin
with. A reader would stop where a first part ends, or decode the next header as audio.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import PurePath
from typing import BinaryIO, Literal, NamedTuple

from kvcast.audio.bitstreams import after_id3, further_recordings, mpeg_frame
from kvcast.audio.reader import FileSection

LIBSNDFILE = (
    *("aif", "aifc", "aiff", "au", "avr", "caf", "flac", "htk", "iff", "mp2", "mp3", "mpa", "mpga"),
    *("nist", "oga", "ogg", "opus", "paf", "pvf", "rf64", "sds", "sf", "snd", "sph", "svx", "voc"),
    *("w64", "wav", "wave", "wve", "xi"),
)

PYAV = (
    *("3g2", "3ga", "3gp", "3gpp", "aa3", "aac", "ac3", "adts", "adx", "aea", "amr", "ape", "asf"),
    *("avi", "awb", "bonk", "c2", "dav", "dif", "divx", "dsf", "dss", "dts", "dtshd", "dv", "eac3"),
    *("ec3", "f4a", "f4b", "f4v", "flv", "g722", "gsm", "gxf", "ircam", "isma", "ismv", "ivr"),
    *("kux", "latm", "lc3", "loas", "m2a", "m2t", "m2ts", "m4a", "m4b", "m4r", "m4v", "mk3d"),
    *("mka", "mkv", "mlp", "mmf", "mov", "mp4", "mpc", "mpeg", "mpg", "mts", "mxf", "nsv", "nut"),
    *("ogv", "ogx", "oma", "omg", "osq", "psp", "qcp", "qt", "ra", "rka", "rm", "rmvb", "rso"),
    *("sbc", "shn", "sln", "sox", "spx", "tak", "thd", "trp", "ts", "tta", "ty", "vob", "vqf"),
    *("wa", "weba", "webm", "wma", "wmv", "wsd", "wtv", "wv", "xwma"),
)  # also without PyAV: the reader's message then names the extra to install

EXTENSIONS = frozenset((*LIBSNDFILE, *PYAV))  # in lower case, without the dot
HEADERLESS = {"g722": "g722", "gsm": "gsm", "rso": "rso", "sbc": "sbc", "sln": "sln"}
"""Formats recognized only by a file's name; FFmpeg's name by extension."""


_HEADER = 7  # bytes of the longest header of a frame

_BEGINNINGS: Mapping[tuple[int, bytes], str] = {
    (0, b"fLaC"): "FLAC",
    (0, b"OggS"): "Ogg",
    (0, b"ID3"): "MP3",
    (0, b"\x1aE\xdf\xa3"): "WebM or Matroska",
    (0, b"FORM"): "AIFF",
    (0, b"RF64"): "RF64",
    (0, b"RIFX"): "big-endian WAV",
    (0, b"riff\x2e\x91\xcf\x11"): "Sony Wave64",
    (0, b"caff"): "CAF",
    (0, b"wvpk"): "WavPack",
    (0, b"#!AMR"): "AMR",
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11"): "WMA",
    (4, b"ftypM4"): "MPEG-4 audio",
    (4, b"ftypqt"): "QuickTime",
    (4, b"ftyp3g"): "3GP",
    (4, b"ftyp"): "MP4",
    (4, b"moov"): "QuickTime",
    (4, b"wide"): "QuickTime",
}  # how formats begin, and at which byte
_OF_PYAV = frozenset(
    ("3GP", "AAC", "AMR", "MP4", "MPEG-4 audio", "QuickTime", "WMA", "WavPack", "WebM or Matroska")
)  # of the formats above; libsndfile reads the others


class _Frame(NamedTuple):
    """A frame's name, its bytes, and the part that the next one repeats."""

    format: str
    length: int
    kind: tuple[int, ...]


def foreign(data: bytes) -> str | None:
    """Name the format in which these first bytes are; None if they may be samples."""
    for (at, magic), format_ in _BEGINNINGS.items():
        if data.startswith(magic, at):
            return format_
    frame = _frame(data)
    if frame is None:
        return None
    after = _frame(data[frame.length : frame.length + _HEADER])
    return frame.format if after is not None and after.kind == frame.kind else None


def needs_pyav(data: bytes, name: str) -> str | None:
    """Return `is FORMAT` for a file that libsndfile does not read, by its beginning or its name.

    None for any other file, damaged or not.
    """
    format_ = foreign(data)
    if format_ is not None:
        return f"is {format_}" if format_ in _OF_PYAV else None
    extension = PurePath(name).suffix.lower().removeprefix(".")
    is_of_pyav = extension in PYAV and extension not in LIBSNDFILE
    return f"is named .{extension}, a format" if is_of_pyav else None


def may_need_more(data: bytes) -> bool:
    """Return whether these bytes begin as a frame whose successor is still to come, within 8 kB."""
    frame = _frame(data)
    return frame is not None and len(data) < frame.length + _HEADER


def _frame(data: bytes) -> _Frame | None:
    if len(data) < _HEADER or data[0] != 0xFF or data[1] < 0xE0:
        return None
    return _mpeg(data) if data[1] & 0b110 else _adts(data)


def _mpeg(data: bytes) -> _Frame | None:
    frame = mpeg_frame(data[:4])
    if frame is None:
        return None
    return _Frame("MP3" if frame.layer == 3 else "MPEG audio", frame.length, frame.kind)


def _adts(data: bytes) -> _Frame | None:
    """Read the header of a frame of AAC (ISO 14496-3, Annex 1.A)."""
    length = (data[3] & 3) << 11 | data[4] << 3 | data[5] >> 5
    if data[1] < 0xF0 or data[2] >> 2 & 15 > 12 or length < _HEADER:
        return None
    return _Frame("AAC", length, (data[1], data[2], data[3] & 0xF0))


MOST_PARTS = 1000  # a file of more parts is not read to its end
_MOST_MARKS = 100_000  # a file with more of them was made to take time
_AT_ONCE = 1 << 20
_LONGEST = 300  # no beginning has more bytes
_OGG, _WAV = "Ogg", "WAV"


class _Kind(NamedTuple):
    """How files of a kind begin, and rare bytes in each of these beginnings."""

    beginning: re.Pattern[bytes]
    marks: tuple[bytes, ...]


def _kind(beginning: bytes, *marks: bytes) -> _Kind:
    return _Kind(re.compile(beginning, re.DOTALL), marks)


def _any_with(bit: int) -> bytes:
    return b"[" + b"".join(b"\\x%02x" % byte for byte in range(256) if byte & bit) + b"]"


_PLAIN = {
    _WAV: _kind(rb"(?:RIFF|RIFX|RF64|BW64).{4}WAVE[ -~]{4}", b"WAVE"),
    "AIFF": _kind(rb"FORM.{4}AIF[FC][ -~]{4}", b"AIFF", b"AIFC"),
    "W64": _kind(rb"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00", b"riff\x2e\x91"),
    "AU": _kind(
        rb"\.snd\x00\x00.{6}\x00{3}[\x01-\x1b]\x00[\x00-\x0b].{2}\x00{3}[\x01-\x20]", b".snd\0\0"
    ),
    "CAF": _kind(rb"caff\x00\x01\x00\x00desc", b"caff\0\1"),
    # A stream of FLAC in Ogg has this as well.
    "FLAC": _kind(rb"(?<!\x7fFLAC.{4})fLaC[\x00\x80]\x00\x00\x22", b"fLaC"),
    "AMR": _kind(rb"#!AMR(?:-WB)?\n", b"#!AMR"),
    "TTA": _kind(rb"TTA1[\x01\x02]\x00[\x01-\x08]\x00[\x08\x10\x18\x20]\x00", b"TTA1"),
    "VOC": _kind(rb"Creative Voice File\x1a\x1a\x00", b"Creative Voice"),
    "NIST": _kind(rb"NIST_1A\n   1024\n", b"NIST_1A\n"),
    # The first block has index 0, and is marked as the first of its channels.
    "WavPack": _kind(rb"wvpk.{4}[\x02-\x10]\x04\x00.{5}\x00{4}.{5}" + _any_with(0x08), b"wvpk"),
}  # audio-only formats with a distinctive beginning

_COUNTED_MP3 = _kind(
    rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb].{2}(?:\x00{9}|\x00{17}|\x00{32})(?:Xing|Info)",
    b"Xing",
    b"Info",
)  # MP3 behind another kind: its first frame counts the others. WAV may have one inside.

_KINDS = {
    **_PLAIN,
    _OGG: _kind(rb"OggS\x00\x02\x00{8}.{4}\x00{4}", b"OggS\0\2"),
    "MP4": _kind(rb"\x00{3}[\x08-\xff]ftyp[ -~]{4}\x00", b"ftyp"),
    "Matroska": _kind(
        rb"\x1a\x45\xdf\xa3.{1,64}?\x42\x82.{1,8}?(?:webm|matroska)", b"\x1a\x45\xdf\xa3"
    ),
    "ASF": _kind(rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c", b"0&\xb2u"),
    "AVI": _kind(rb"RIFF.{4}AVI LIST", b"AVI LIST"),
    "FLV": _kind(rb"FLV\x01[\x01\x04\x05]\x00{3}\x09\x00{4}", b"FLV\1"),
}


_DECLARED = frozenset({_WAV, "AIFF"})  # their first bytes have the size of the whole


def parts(file: BinaryIO) -> list[FileSection]:
    """Return the parts of a concatenated file, in order; the one after MOST_PARTS is the rest."""
    whole = FileSection(file)
    further = islice(_further_starts(whole), MOST_PARTS)
    starts = [0, *sorted(set(further)), whole.size]
    return [
        FileSection(file, start, stop)
        for start, stop in pairwise(starts)
        if start < stop or not start
    ]


def _further_starts(file: FileSection) -> Iterator[int]:
    first = after_id3(file)
    head = file.at(first, _LONGEST)
    name = next((name for name, kind in _KINDS.items() if kind.beginning.match(head)), None)
    if name is None:
        if mpeg_frame(head[:4]) is None:
            return
        yield from further_recordings(file)
    kinds = [*_KINDS.values()]
    if name is not None and name != _WAV:
        kinds.append(_COUNTED_MP3)
    if name is not None and name != _OGG and name not in _PLAIN:  # a container
        kinds = [_KINDS[name]]
    at = _after_beginning(file, first)
    if name in _DECLARED:
        end = _declared_end(head)
        if end in {file.size - 1, file.size, file.size + 1}:
            return  # there is nothing behind it
        if end < file.size and foreign(file.at(end, _AT_ONCE)) is not None:
            yield end
            yield from (end + start for start in _further_starts(FileSection(file, end)))
            return
    for start in _beginnings(file, at, kinds):
        if start >= at:
            yield start
            at = _after_beginning(file, start)


def _declared_end(head: bytes) -> int:
    order: Literal["little", "big"] = "little" if head.startswith(b"RIFF") else "big"
    return 8 + int.from_bytes(head[4:8], order)


def _after_beginning(file: FileSection, start: int) -> int:
    page = file.at(start, _LONGEST)
    if not _KINDS[_OGG].beginning.match(page):
        return start + 1
    while _KINDS[_OGG].beginning.match(page):  # each of several streams begins with such a page
        start += 27 + page[26] + sum(page[27 : 27 + page[26]])
        page = file.at(start, _LONGEST)
    return start


def _beginnings(file: FileSection, at: int, kinds: Sequence[_Kind]) -> Iterator[int]:
    """Yield where one of these kinds begins, from a position on; some places more than once."""
    by_mark = {mark: kind.beginning for kind in kinds for mark in kind.marks}
    marks = re.compile(b"|".join(map(re.escape, by_mark)))  # ten times as fast as the beginnings
    seen = 0
    while at < file.size:
        data = file.at(at, _AT_ONCE + _LONGEST)
        for mark in marks.finditer(data):
            seen += 1
            if seen > _MOST_MARKS:
                return
            near = max(mark.start() - 64, 0), mark.start() + 128
            for begin in by_mark[mark[0]].finditer(data, *near):
                if begin.start() <= mark.start() < begin.end() and begin.start() < _AT_ONCE:
                    yield at + begin.start()
        at += _AT_ONCE
