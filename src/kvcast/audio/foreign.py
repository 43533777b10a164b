"""Detects formats besides raw PCM and WAV by a stream's first bytes: as samples they are noise.

Any bytes can be raw samples. So a format is only named for bytes that samples hardly ever begin
with: a frame of MPEG audio begins with few bits that are always the same, and counts if another one
like it follows where it ends. Decodes nothing.
"""

from collections.abc import Mapping
from typing import NamedTuple

from kvcast.audio.mpeg import mpeg_frame

_HEADER = 7
"""Bytes of the longest header of a frame."""

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
    (4, b"ftyp"): "MP4",
}
"""How formats begin, and at which byte."""


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


def may_need_more(data: bytes) -> bool:
    """Tell whether these bytes begin as a frame whose successor is still to come.

    It comes within 8 kB.
    """
    frame = _frame(data)
    return frame is not None and len(data) < frame.length + _HEADER


def _frame(data: bytes) -> _Frame | None:
    """Read the header of a frame; None if there is none."""
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
