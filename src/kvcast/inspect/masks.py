"""Draws the packed, block-diagonal mask of every call, as text and SVG, for all rows.

Queries are the new tokens of all rows, concatenated. Keys are the contents of each row's cache when
it is read, in the order of reading, without empty slots.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import UsageError
from kvcast.inspect.schedule import MOST_POSITIONS, ModelCall, row_name
from kvcast.inspect.units import grid, plural
from kvcast.spec.ring import EMPTY, Positions, keys_read, may_write_first, visible

SEEN, HIDDEN = "#", "."


class MaskedCalls(Protocol):
    @property
    def capacity(self) -> int:
        """Number of slots of each row."""

    @property
    def window(self) -> int | None:
        """Limit on the positions that a query sees; None: no limit."""

    def calls(self) -> Iterator[ModelCall]:
        """Yield the calls in order."""

    def title(self) -> str:
        """Return a one-line title."""

    def sees(self, queries: Positions, keys: Positions) -> NDArray[np.bool_]:
        """Return which keys [k] each query [q] of a row sees, by position, as [q, k]."""

    def label(self, row: int, position: int) -> str:
        """Name a position."""


@dataclass(frozen=True, kw_only=True)
class Mask:
    call: ModelCall
    queries: tuple[tuple[int, int], ...]
    keys: tuple[tuple[int, int], ...]
    query_labels: tuple[str, ...]
    key_labels: tuple[str, ...]
    seen: NDArray[np.bool_]  # [queries, keys]
    # rows that read the old ring and the new positions side by side; others read only the cache,
    # after writing it
    beside: tuple[int, ...]


def masks(drawn: MaskedCalls) -> Iterator[Mask]:
    for call in drawn.calls():
        yield _mask(call, drawn)


def render(drawn: MaskedCalls) -> str:
    every = list(masks(drawn))
    signs = f"{SEEN} sees, {HIDDEN} does not"
    if any(len(mask.call.counts) > 1 for mask in every):
        signs += ", nothing: another row's"
    legend = f"rows: queries; columns: keys in the order read; {signs}"
    return "\n".join([f"{drawn.title()}\n{legend}\n", *map(_render, every)])


def heading(mask: Mask) -> str:
    """As in `chunk 2: 2 + 0 + 1 tokens`."""
    counts = " + ".join(map(str, mask.call.counts))
    line = f"{mask.call.name}: {counts} token{'s' * (counts != '1')}"
    if mask.beside:
        line += f"; old ring beside the chunk: {', '.join(map(row_name, mask.beside))}"
    return line


def _mask(call: ModelCall, drawn: MaskedCalls) -> Mask:
    queries: list[tuple[int, int]] = []
    keys: list[tuple[int, int]] = []
    blocks = []
    beside = []
    for row, (length, new) in enumerate(zip(call.lengths, call.counts, strict=True)):
        if not new:
            continue
        sizes = (length, new, drawn.capacity, drawn.window)
        asking = np.arange(length, length + new)
        held = keys_read(*sizes)
        held = held[held != EMPTY]
        queries += [(row, position) for position in asking.tolist()]
        keys += [(row, position) for position in held.tolist()]
        blocks.append(drawn.sees(asking, held))
        if not may_write_first(*sizes):
            beside.append(row)
    return Mask(
        call=call,
        queries=tuple(queries),
        keys=tuple(keys),
        query_labels=tuple(drawn.label(*query) for query in queries),
        key_labels=tuple(drawn.label(*key) for key in keys),
        seen=_block_diagonal(blocks),
        beside=tuple(beside),
    )


def _block_diagonal(blocks: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    height, width = (sum(block.shape[axis] for block in blocks) for axis in (0, 1))
    whole = np.zeros((height, width), np.bool_)
    top = left = 0
    for block in blocks:
        bottom, right = top + block.shape[0], left + block.shape[1]
        whole[top:bottom, left:right] = block
        top, left = bottom, right
    return whole


def _render(mask: Mask) -> str:
    cells = [
        [
            " " if key[0] != query[0] else SEEN if sees else HIDDEN
            for key, sees in zip(mask.keys, seen, strict=True)
        ]
        for query, seen in zip(mask.queries, mask.seen, strict=True)
    ]
    return "\n".join([heading(mask), *grid(mask.query_labels, mask.key_labels, cells), ""])


@dataclass(frozen=True, kw_only=True)
class SourceAndTarget:
    window: ClassVar[None] = None

    source: int
    target: int

    def __post_init__(self) -> None:
        if min(self.source, self.target) < 1:
            raise UsageError("a source and a target must have 1 token or more each")
        if self.capacity > MOST_POSITIONS:
            raise UsageError(
                f"{self.capacity:,} positions are too many to draw (at most {MOST_POSITIONS:,}): "
                "give a shorter source or target"
            )

    @property
    def capacity(self) -> int:
        return self.source + self.target

    def title(self) -> str:
        return (
            f"a source of {plural(self.source, 'token')} (s), then a target of {self.target:,} "
            f"(t); one cache of {plural(self.capacity, 'slot')}"
        )

    def calls(self) -> Iterator[ModelCall]:
        """All positions in one call, as without a cache; then the calls with one."""
        yield ModelCall(name="without a cache", lengths=(0,), counts=(self.capacity,))
        yield ModelCall(name="source", lengths=(0,), counts=(self.source,))
        for i in range(self.target):
            yield ModelCall(name=f"step {i + 1}", lengths=(self.source + i,), counts=(1,))

    def sees(self, queries: Positions, keys: Positions) -> NDArray[np.bool_]:
        return visible(queries, keys, None) | (keys < self.source)

    def label(self, row: int, position: int) -> str:  # noqa: ARG002 - there is one row
        return f"{'s' if position < self.source else 't'}{position}"


_CELL = 22
_GUTTER = 34
_HEADING = 42
_GAP = 30
_WIDTH = 1000
_LETTER = 0.62
"""Width of a character relative to its size, generously."""

# Okabe and Ito's palette, which colour-blind people can distinguish.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_HIDDEN = "#eceff1"


def draw(title: str, masks: Sequence[Mask]) -> str:
    """SVG: coloured cells are seen, grey ones not, blank ones of other rows."""
    panels, width, height = _lay_out(masks)
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
    longest = max(len(name) for mask in masks for name in mask.key_labels)
    column = min(11.0, _CELL / (_LETTER * longest))
    return (
        "text{font-family:sans-serif;font-size:11px;fill:#333}.h{font-size:12px;font-weight:bold}"
        f".k{{font-size:{column:.1f}px;text-anchor:middle}}.q{{text-anchor:end}}"
    )


def _lay_out(masks: Sequence[Mask]) -> tuple[list[tuple[Mask, int, int]], int, int]:
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
