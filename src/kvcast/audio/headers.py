"""Repairs headers whose length field is too small (the recorder was killed)."""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from kvcast.audio.reader import FileSection

STREAMED_SIZE = 0x7FFF0000
"""Programs that write to a pipe put a size of about this, or all ones, for an unknown size."""

_NEVER_SOUND = (b"TAG", b"APETAGEX", b"ID3", b"LYRICSBEGIN")
"""Tags that programs put behind everything."""

_LEAST_BYTES = 1_000
"""So few are a rest that means nothing, unless the header says that there is nothing at all."""

_AT_ONCE = 1 << 20


class Understated(NamedTuple):
    """A header that states `stated` bytes of audio where `held` follow; patches repair it."""

    stated: int
    held: int
    patches: Mapping[int, bytes]


class _Chunk(NamedTuple):
    """A chunk's name, the positions of its size field and its content, and its size."""

    name: bytes
    size_at: int
    begin: int
    size: int


def understated(file: FileSection) -> Understated | None:
    """Return by how much a header's length is too small; None if it is right or there is none."""
    head = file.at(0, 40)
    for magic, read in _READERS.items():
        if head.startswith(magic):
            return read(file)
    return None


def _iff(file: FileSection, order: str, name: bytes) -> Understated | None:
    """Read a file of chunks, whose sizes have 32 bits; see "EA IFF 85" and RIFF."""
    walked = list(_chunks(file, 12, order))
    sound = next((chunk for chunk in walked if chunk.name == name), None)
    if sound is None or sound.size >= STREAMED_SIZE or not _goes_on(file, sound, order):
        return None
    held = file.size - sound.begin
    patches = {
        4: struct.pack(order + "I", min(file.size - 8, 0xFFFFFFFF)),
        sound.size_at: struct.pack(order + "I", min(held, 0xFFFFFFFF)),
    }
    if name == b"SSND":
        patches |= _aiff_frames(file, walked, held)
    return Understated(sound.size, held, patches)


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
    sound = next((chunk for chunk in walked if chunk.name == b"data"), None)
    if sizes is None or sound is None or sizes.size < 24:
        return None
    _, stated = struct.unpack("<QQ", file.at(sizes.begin, 16))
    chunk = sound._replace(size=stated)
    if not _goes_on(file, chunk, "<"):
        return None
    held = file.size - sound.begin
    patches = {sizes.begin: struct.pack("<QQ", file.size - 8, held)}
    return Understated(stated, held, patches | {sound.size_at: b"\xff" * 4})


def _w64(file: FileSection) -> Understated | None:
    """Read Sony's Wave64: chunks named by 16 bytes, with sizes of 64 bits that count the header."""
    at = 40
    while len(head := file.at(at, 24)) == 24:
        (size,) = struct.unpack_from("<Q", head, 16)
        if head.startswith(b"data\xf3\xac\xd3\x11"):
            chunk = _Chunk(b"data", at + 16, at + 24, max(size, 24) - 24)
            rest = file.at((chunk.begin + chunk.size + 7) // 8 * 8, 24)
            is_chunk = rest[4:8] in {b"\xf3\xac\xd3\x11", b"\x12\xcd\x11\xa5"}
            if is_chunk or not _is_sound(file, chunk):
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
    if not _is_sound(file, chunk):
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
            if size < 0 or _is_name(follows[:4]) or not _is_sound(file, chunk):
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


def _goes_on(file: FileSection, sound: _Chunk, order: str) -> bool:
    """Return whether audio follows where an audio chunk should end, instead of another chunk."""
    end = sound.begin + sound.size
    for at in {end, end + end % 2}:
        after = next(_chunks(file, at, order), None)
        if after is not None and after.begin + after.size <= file.size:
            return False
    return _is_sound(file, sound)


def _is_sound(file: FileSection, sound: _Chunk) -> bool:
    """Return whether the bytes after an audio chunk may be audio: neither tags nor padding."""
    at = sound.begin + sound.size
    left = file.size - at
    if left <= (_LEAST_BYTES if sound.size else 0) or file.at(at, 12).startswith(_NEVER_SOUND):
        return False
    if not sound.size:
        return True
    file.seek(at)
    while data := file.read(_AT_ONCE):
        if data.strip(b"\x00"):
            return True
    return False


def _is_name(name: bytes) -> bool:
    return len(name) == 4 and all(32 <= byte < 127 for byte in name)
