"""Draws what a model's programs read and write as one SVG image: a bar of bytes for each layer.

Knows traffic, but not where it comes from.
"""

from collections.abc import Iterator, Sequence
from html import escape

from kvcast.inspect.units import size
from kvcast.runtimes.traffic import LayerTraffic, ModelTraffic, ProgramTraffic

BAR = 560
"""The width of the largest layer's bar."""

_GUTTER, _LINE, _HEADING, _MARGIN = 150, 20, 44, 20
_WIDTH = _GUTTER + BAR + 130
# Okabe and Ito's palette, which colour-blind people can tell apart too.
_COLOURS = {
    "weights": "#0072b2",
    "cache read": "#e69f00",
    "cache written": "#009e73",
    "cache copied": "#d55e00",
}


def draw(title: str, model: ModelTraffic) -> str:
    """Return an SVG document: of each layer weights, then caches read, written and copied."""
    body, y = [*_legend(_MARGIN + 34)], _MARGIN + 60
    for program in model.programs:
        body += _program(program, y)
        y += _HEADING + _LINE * len(program.layers)
    name = escape(f"{title} on {model.runtime}: bytes that a call reads and writes")
    box = f'width="{_WIDTH}" height="{y}" viewBox="0 0 {_WIDTH} {y}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{name}">\n'
        f"<title>{name}</title>\n"
        "<style>text{font-family:sans-serif;font-size:12px;fill:#333}.h{font-weight:bold}</style>\n"
        f'<rect width="{_WIDTH}" height="{y}" fill="#ffffff"/>\n'
        f'<text class="h" x="{_MARGIN}" y="{_MARGIN + 8}">{name}</text>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def parts_of(layer: LayerTraffic) -> dict[str, int]:
    """Return the bytes of a layer's bar, by the names of the legend.

    A copy is read and written; what is left of both is the rest.
    """
    copied = sum(cache.copied for cache in layer.caches)
    return {
        "weights": layer.weights,
        "cache read": layer.read - copied,
        "cache written": layer.written - copied,
        "cache copied": 2 * copied,
    }


def _legend(y: int) -> Iterator[str]:
    for i, (name, colour) in enumerate(_COLOURS.items()):
        x = _MARGIN + 140 * i
        yield f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 17}" y="{y}">{name}</text>'


def _program(program: ProgramTraffic, y: int) -> Iterator[str]:
    most = max((sum(parts_of(layer).values()) for layer in program.layers), default=0)
    yield f'<text class="h" x="{_MARGIN}" y="{y + 16}">{escape(program.name)}</text>'
    for i, layer in enumerate(program.layers):
        yield from _bar(layer, y + 26 + i * _LINE, most)


def _bar(layer: LayerTraffic, y: int, most: int) -> Sequence[str]:
    parts, x = parts_of(layer), float(_GUTTER)
    drawn = [f'<text x="{_MARGIN}" y="{y + 12}">{escape(layer.name)}</text>']
    for name, count in parts.items():
        width = BAR * count / most if most else 0
        if count:
            drawn.append(
                f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_LINE - 4}" '
                f'fill="{_COLOURS[name]}"><title>{name}: {count} B</title></rect>'
            )
        x += width
    drawn.append(f'<text x="{x + 6:.2f}" y="{y + 12}">{size(sum(parts.values()))}</text>')
    return drawn
