"""Pictures of numbers as PNG files: a palette and an index for each pixel.

Knows no meaning of the numbers.
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.base import Float32

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PALETTED = 3


def palette(*colours: str) -> NDArray[np.uint8]:
    """Return 256 colours [256, 3] between colours as in `#0072b2`, evenly spaced."""
    corners_c3 = np.array([list(bytes.fromhex(colour.removeprefix("#"))) for colour in colours])
    places = np.linspace(0, len(colours) - 1, 256)
    parts = [np.interp(places, range(len(colours)), corners_c3[:, part]) for part in range(3)]
    return np.stack(parts, axis=1).round().astype(np.uint8)


def png(shares_hw: Float32, colours: NDArray[np.uint8]) -> bytes:
    """Return a PNG file (ISO/IEC 15948) of numbers from 0 to 1, each a pixel.

    Args:
        shares_hw: from the top left.
        colours: [256, 3], of 0 to 1.

    """
    height, width = shares_hw.shape
    indexes_hw = np.rint(np.clip(shares_hw, 0, 1) * 255).astype(np.uint8)
    # Each line begins with its filter: 0 for none.
    lines = np.pad(indexes_hw, ((0, 0), (1, 0))).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, _PALETTED, 0, 0, 0)
    return b"".join(
        [
            _SIGNATURE,
            _chunk(b"IHDR", header),
            _chunk(b"PLTE", colours.tobytes()),
            _chunk(b"IDAT", zlib.compress(lines, 9)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
