"""The packed block-diagonal mask of every call: queries of all rows over what each row holds.

Queries are the new tokens of all rows, one after the other. Keys are what each row's cache holds
when it is read, in the order in which it is read; slots that hold nothing are left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcast.inspect.schedule import Call, Schedule, label, row_name
from kvcast.spec.ring import EMPTY, keys_read, may_write_first, visible

SEEN, HIDDEN = "#", "."


@dataclass(frozen=True, kw_only=True)
class Mask:
    """One call's mask.

    Attributes:
        call: of which this is the mask.
        queries: row and position of each query.
        keys: row and position of each key.
        seen: [queries, keys].
        beside: rows that read their old contents beside the new positions; others read the cache
            alone, after it was written.

    """

    call: Call
    queries: tuple[tuple[int, int], ...]
    keys: tuple[tuple[int, int], ...]
    seen: NDArray[np.bool_]
    beside: tuple[int, ...]


def masks(schedule: Schedule) -> Iterator[Mask]:
    """Yield the mask of every chunk and step."""
    for call in schedule.calls():
        yield _mask(call, schedule)


def render(schedule: Schedule) -> str:
    """Return all masks as text."""
    parts = [
        f"{schedule.title()}\n"
        f"rows: queries; columns: keys in the order read; {SEEN} sees, {HIDDEN} does not, "
        "nothing: another row's\n"
    ]
    return "\n".join([*parts, *map(_render, masks(schedule))])


def heading(mask: Mask) -> str:
    """Say what a call is: `chunk 2: 2 + 0 + 1 tokens`."""
    counts = " + ".join(map(str, mask.call.counts))
    line = f"{mask.call.name}: {counts} token{'s' * (counts != '1')}"
    if mask.beside:
        line += f"; old ring beside the chunk: {', '.join(map(row_name, mask.beside))}"
    return line


def _mask(call: Call, schedule: Schedule) -> Mask:
    queries: list[tuple[int, int]] = []
    keys: list[tuple[int, int]] = []
    blocks = []
    beside = []
    for row, (length, new) in enumerate(zip(call.lengths, call.counts, strict=True)):
        if not new:
            continue
        sizes = (length, new, schedule.capacity, schedule.window)
        asking = np.arange(length, length + new)
        held = keys_read(*sizes)
        held = held[held != EMPTY]
        queries += [(row, position) for position in asking.tolist()]
        keys += [(row, position) for position in held.tolist()]
        blocks.append(visible(asking, held, schedule.window))
        if not may_write_first(*sizes):
            beside.append(row)
    return Mask(
        call=call,
        queries=tuple(queries),
        keys=tuple(keys),
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
    names = [label(*key) for key in mask.keys]
    widths = [len(name) for name in names]
    gutter = max(len(label(*query)) for query in mask.queries)
    lines = [heading(mask), _line("", gutter, names, widths)]
    for query, seen in zip(mask.queries, mask.seen, strict=True):
        cells = [
            " " if key[0] != query[0] else SEEN if sees else HIDDEN
            for key, sees in zip(mask.keys, seen, strict=True)
        ]
        lines.append(_line(label(*query), gutter, cells, widths))
    return "\n".join(lines) + "\n"


def _line(name: str, gutter: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    spaced = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return f"  {name.rjust(gutter)}  {' '.join(spaced)}".rstrip()
