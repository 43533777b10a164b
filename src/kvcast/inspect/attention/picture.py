"""Draws a view of attention as SVG: weights as a picture, with the names of rows and columns.

Above a view over audio is its spectrogram, on the same time scale.
"""

import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator
from html import escape

import numpy as np
from numpy.typing import NDArray

from kvcast.inspect.attention.view import AttentionView
from kvcast.runtimes.base import Float32

_LINE = 16
_CELL = 18
_SOUND_WIDTH = 900
_SOUND_HEIGHT = 80
_GAP = 12
_TITLE = 30
_LETTER = 6.6
"""Width of a letter at most, in pixels."""
_LONGEST = 24
"""Letters of a token that are shown."""
_TICKS = 15


def palette(*colours: str) -> NDArray[np.uint8]:
    """[256, 3] between colours as in `#0072b2`, evenly spaced."""
    corners_c3 = np.array([list(bytes.fromhex(colour.removeprefix("#"))) for colour in colours])
    places = np.linspace(0, len(colours) - 1, 256)
    parts = [np.interp(places, range(len(colours)), corners_c3[:, part]) for part in range(3)]
    return np.stack(parts, axis=1).round().astype(np.uint8)


_WEIGHTS = palette("#ffffff", "#56b4e9", "#0072b2", "#00243d")
_SOUND = palette("#ffffff", "#9a9a9a", "#1c1c1c")


def shares(weights_st: Float32) -> Float32:
    """Colour values, 0 to 1: the root of weights' share of the largest."""
    shares_st: Float32 = np.sqrt(weights_st / max(float(weights_st.max()), 1e-30))
    return shares_st


def draw(view: AttentionView, spectrogram_mf: Float32 | None = None) -> str:
    """SVG, for audio with its spectrogram [bands, frames] from 0 to 1."""
    names = [_visible(token.text) for token in view.rows]
    left = _GAP + round(_LETTER * max(map(len, names))) + 6
    width = _CELL * view.weights_st.shape[1] if spectrogram_mf is None else _SOUND_WIDTH
    columns = [_visible(token.text) for token in view.columns]
    above = (
        round(_LETTER * max(map(len, columns))) + 8
        if spectrogram_mf is None
        else _SOUND_HEIGHT + _GAP
    )
    top = _TITLE + above
    height = _LINE * len(names)
    body = [f'<text class="h" x="{_GAP}" y="20">{_text(view.title)}</text>']
    if spectrogram_mf is None:
        body += _names_above(columns, left, top)
    else:
        box = (left, _TITLE, width, _SOUND_HEIGHT)
        body.append(_image("sound", png(spectrogram_mf[::-1], _SOUND), box))
        body += _ticks(view, left, width, top + height)
    box = (left, top, width, height)
    body.append(_image("weights", png(shares(view.weights_st), _WEIGHTS), box))
    body += [
        f'<text class="q" x="{left - 6}" y="{top + _LINE * line + 12}">{_text(name)}</text>'
        for line, name in enumerate(names)
    ]
    whole = max(left + width + _GAP, round(_LETTER * len(view.title)) + 2 * _GAP)
    return _document(view.title, body, whole, top + height + 2 * _GAP + 6)


def _document(title: str, body: list[str], width: int, height: int) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
            f'aria-label="{_text(title)}">',
            f"<title>{_text(title)}</title>",
            "<style>text{font:11px sans-serif;fill:#333;white-space:pre}.h{font-weight:bold}"
            ".q{text-anchor:end}.t{text-anchor:middle}image{image-rendering:pixelated}</style>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *body,
            "</svg>\n",
        ]
    )


def _image(name: str, content: bytes, box: tuple[int, int, int, int]) -> str:
    x, y, width, height = box
    place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
    data = b64encode(content).decode()
    return (
        f'<image id="{name}" {place} preserveAspectRatio="none" '
        f'href="data:image/png;base64,{data}"/>'
    )


def _names_above(names: list[str], left: int, top: int) -> Iterator[str]:
    for column, name in enumerate(names):
        x, y = left + _CELL * column + 12, top - 5
        yield f'<text x="{x}" y="{y}" transform="rotate(-90 {x} {y})">{_text(name)}</text>'


def _ticks(view: AttentionView, left: int, width: int, bottom: int) -> Iterator[str]:
    seconds = view.weights_st.shape[1] * view.seconds
    each = next((step for step in (0.1, 0.5, 1, 2) if seconds / step <= _TICKS), 5)
    for tick in range(int(seconds / each) + 1):
        x = left + tick * each / seconds * width
        yield f'<path d="M{x:.1f} {bottom}v4" stroke="#333"/>'
        yield f'<text class="t" x="{x:.1f}" y="{bottom + 16}">{tick * each:g} s</text>'


def _visible(text: str) -> str:
    """One line, with visible spaces and line ends."""
    visible = "".join(
        "·" if letter == " " else "↵" if letter == "\n" else letter if letter.isprintable() else "�"
        for letter in text
    )
    return visible if len(visible) <= _LONGEST else f"{visible[: _LONGEST - 1]}…"


def _text(text: str) -> str:
    return escape("".join(letter if letter.isprintable() else "�" for letter in text))


_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PALETTED = 3


def png(shares_hw: Float32, colours: NDArray[np.uint8]) -> bytes:
    """Return a PNG (ISO/IEC 15948) of values from 0 to 1, one per pixel; `colours` is [256, 3]."""
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
