"""Draws masks as one SVG image, with a panel for each call and a colour for each row.

Knows masks, but not where they come from.
"""

from collections.abc import Iterator, Sequence

from kvcast.inspect.masks import Mask, heading
from kvcast.inspect.schedule import row_name

_CELL = 22
_GUTTER = 34
_HEADING = 42
_GAP = 30
_WIDTH = 1000
_LETTER = 0.62
"""Width of a character relative to its size, generously."""

# Okabe and Ito's palette, which colour-blind people can tell apart too.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_HIDDEN = "#eceff1"


def draw(title: str, masks: Sequence[Mask]) -> str:
    """Return an SVG document: coloured cells are seen, grey ones not, blank ones of other rows."""
    panels, width, height = _placed(masks)
    used = sorted({row for mask in masks for row, _ in mask.queries})
    body = [
        f'<text class="h" x="{_GAP}" y="24">{title}</text>',
        *_legend(used, 44),
        *(_panel(mask, x, y + 60) for mask, x, y in panels),
    ]
    size = f'width="{width}" height="{height + 60}" viewBox="0 0 {width} {height + 60}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">\n'
        f"<title>{title}</title>\n<style>{_style(masks)}</style>\n"
        f'<rect width="{width}" height="{height + 60}" fill="#ffffff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _style(masks: Sequence[Mask]) -> str:
    """Return the style sheet: a label above a column is no wider than its cells."""
    longest = max(len(name) for mask in masks for name in mask.key_labels)
    column = min(11.0, _CELL / (_LETTER * longest))
    return (
        "text{font-family:sans-serif;font-size:11px;fill:#333}.h{font-size:12px;font-weight:bold}"
        f".k{{font-size:{column:.1f}px;text-anchor:middle}}.q{{text-anchor:end}}"
    )


def _placed(masks: Sequence[Mask]) -> tuple[list[tuple[Mask, int, int]], int, int]:
    """Lay out panels in lines; return them with their corners, and the total size."""
    panels = []
    x, y, line, widest = _GAP, 0, 0, _WIDTH
    for mask in masks:
        width, height = _size(mask)
        if x > _GAP and x + width > _WIDTH:
            x, y, line = _GAP, y + line + _GAP, 0
        panels.append((mask, x, y))
        x, line = x + width + _GAP, max(line, height)
        widest = max(widest, x)
    return panels, widest, y + line + _GAP


def _size(mask: Mask) -> tuple[int, int]:
    cells = _GUTTER + _CELL * len(mask.keys)
    words = round(12 * _LETTER * len(heading(mask)))
    return max(cells, words), _HEADING + _CELL * len(mask.queries)


def _legend(rows: Sequence[int], y: int) -> Iterator[str]:
    """Yield a legend with a row per colour; labels in the panels name all rows."""
    x = _GAP
    for row in rows[: len(_COLOURS)]:
        name = f"row {row_name(row)}" if len(rows) > 1 else "seen"
        yield _cell(x, y - 10, _colour(row), 12)
        yield f'<text x="{x + 17}" y="{y}">{name}</text>'
        x += 70
    yield _cell(x, y - 10, _HIDDEN, 12)
    yield f'<text x="{x + 17}" y="{y}">held, not seen</text>'


def _panel(mask: Mask, x: int, y: int) -> str:
    left, top = x + _GUTTER, y + _HEADING
    parts = [f'<text class="h" x="{x}" y="{y + 14}">{heading(mask)}</text>']
    for column, name in enumerate(mask.key_labels):
        middle = left + column * _CELL + _CELL // 2
        parts.append(f'<text class="k" x="{middle}" y="{top - 6}">{name}</text>')
    for line, query in enumerate(mask.queries):
        base, name = top + line * _CELL, mask.query_labels[line]
        parts.append(f'<text class="q" x="{left - 6}" y="{base + 15}">{name}</text>')
        parts += [
            _cell(left + column * _CELL, base, _colour(query[0]) if sees else _HIDDEN, _CELL - 2)
            for column, (key, sees) in enumerate(zip(mask.keys, mask.seen[line], strict=True))
            if key[0] == query[0]
        ]
    return "\n".join(parts)


def _cell(x: int, y: int, colour: str, side: int) -> str:
    return f'<rect x="{x}" y="{y}" width="{side}" height="{side}" rx="3" fill="{colour}"/>'


def _colour(row: int) -> str:
    return _COLOURS[row % len(_COLOURS)]
