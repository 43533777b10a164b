"""Draws a frontier, flips against bytes, as an SVG image, and tells it as a table.

Knows not how points were found.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape

from kvcast.inspect.grid import grid
from kvcast.quantizing.finding import CHOSEN, Found, Measured

_WIDTH, _HEIGHT = 760, 460
_LEFT, _TOP, _RIGHT, _BOTTOM = 70, 60, 40, 60
_TICKS = 5
# Okabe and Ito's palette, as in kvcast.inspect.svg.
_TRIED, _CHOSEN, _PLAIN, _BUDGET = "#0072b2", "#d55e00", "#009e73", "#999999"
_STYLE = (
    "text{font-family:sans-serif;font-size:11px;fill:#333}.h{font-size:12px;font-weight:bold}"
    ".x{text-anchor:middle}.y{text-anchor:end}"
)


def table(found: Found) -> Iterator[str]:
    """Yield lines: flips, megabytes and milliseconds of each point, the largest first."""
    cells = [
        [
            f"{point.flips:.2%}",
            f"{point.size / 1e6:,.1f}",
            f"{1e3 * point.token.median:.2f}",
            f"({1e3 * point.token.least:.2f} to {1e3 * point.token.most:.2f})",
        ]
        for point in found.points
    ]
    columns = ["flips", "MB", "ms a token", "(least to most)"]
    yield from grid([point.name for point in found.points], columns, cells)


def draw(title: str, found: Found, budget: float) -> str:
    """Return an SVG document: each point's megabytes to the right, its flips in percent upwards."""
    width = _tick(max(point.size for point in found.points) / 1e6) * _TICKS
    height = _tick(100 * max(budget, *(point.flips for point in found.points))) * _TICKS

    def x(point: Measured) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * point.size / 1e6 / width

    def y(percent: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * percent / height

    frontier = [point for point in found.points if point.recipe is not None]
    line = " ".join(f"{x(point):.1f},{y(100 * point.flips):.1f}" for point in frontier)
    level = y(100 * budget)
    body = [
        f'<text class="h" x="{_LEFT}" y="24">{escape(title)}</text>',
        *_axes(width, height),
        f'<line x1="{_LEFT}" y1="{level:.1f}" x2="{_WIDTH - _RIGHT}" y2="{level:.1f}" '
        f'stroke="{_BUDGET}" stroke-dasharray="5 4"/>',
        f'<text class="y" x="{_WIDTH - _RIGHT}" y="{level - 4:.1f}">budget {budget:.2%}</text>',
        f'<polyline points="{line}" fill="none" stroke="{_TRIED}"/>',
        *(_mark(point, x(point), y(100 * point.flips)) for point in found.points),
    ]
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
        f'aria-label="{escape(title)}">\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _tick(most: float) -> float:
    """Return a round distance of ticks, a few of which reach a number."""
    least = max(most, 1e-3) / _TICKS
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= least * 0.999999)


def _axes(width: float, height: float) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for i in range(_TICKS + 1):
        x = _LEFT + (right - _LEFT) * i / _TICKS
        y = bottom - (bottom - _TOP) * i / _TICKS
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#eceff1"/>'
        yield f'<text class="y" x="{_LEFT - 6}" y="{y + 4:.1f}">{height * i / _TICKS:g}</text>'
        yield f'<text class="x" x="{x:.1f}" y="{bottom + 16}">{width * i / _TICKS:g}</text>'
    middle = (_LEFT + right) // 2
    yield f'<text class="x" x="{middle}" y="{bottom + 38}">MB, weights and caches</text>'
    yield f'<text x="{_LEFT - 40}" y="{_TOP - 12}">% of tokens that differ from fp32</text>'


def _mark(point: Measured, x: float, y: float) -> str:
    colour = _PLAIN if point.recipe is None else _CHOSEN if point.name == CHOSEN else _TRIED
    about = f"{point.name}: {point.size / 1e6:,.1f} MB, {point.flips:.2%}"
    named = point.recipe is None or point.name in ("fp32", CHOSEN)
    label = f'<text x="{x + 7:.1f}" y="{y - 6:.1f}">{escape(point.name)}</text>' if named else ""
    radius = 4 if named else 3
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}">'
        f"<title>{escape(about)}</title></circle>{label}"
    )


def summary(found: Found) -> Sequence[str]:
    """Return lines on the recipe: how many matrices have which precision, and the caches."""
    recipe = found.recipe
    counts = {
        precision: sum(1 for each in recipe.matrices.values() if each == precision)
        for precision in ("fp32", "int8", "int4")
    }
    told = ", ".join(f"{count} {precision}" for precision, count in counts.items() if count)
    return (
        f"matrices: {told}; self caches {recipe.self_cache}, cross caches {recipe.cross_cache}",
        f"{found.positions} tokens compared",
    )
