"""Reads pictures back: PNG files with a palette, also inside an SVG."""

import struct
import zlib
from base64 import b64decode
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

SVG = "{http://www.w3.org/2000/svg}"


def indexes(file: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the indexes [height, width] and the palette [colours, 3] of a PNG file."""
    assert file[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(file):
        (size,) = struct.unpack_from(">I", file, place)
        kind, content = file[place + 4 : place + 8], file[place + 8 : place + 8 + size]
        assert struct.unpack_from(">I", file, place + 8 + size)[0] == zlib.crc32(kind + content)
        chunks[kind] = content
        place += 12 + size
    width, height, *how = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert how == [8, 3, 0, 0, 0]
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not lines[:, 0].any()
    return lines[:, 1:], np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)


def image(svg: str, name: str) -> NDArray[np.uint8]:
    """Return the indexes of an image within an SVG document."""
    [found] = [e for e in ElementTree.fromstring(svg).iter(f"{SVG}image") if e.get("id") == name]
    return indexes(b64decode(found.attrib["href"].removeprefix("data:image/png;base64,")))[0]


def texts(svg: str, place: str | None = None) -> list[str]:
    """Return the texts of an SVG document, of one class or of all."""
    found = ElementTree.fromstring(svg).iter(f"{SVG}text")
    return [each.text or "" for each in found if place in (None, each.get("class"))]
