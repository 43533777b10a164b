"""The packed block-diagonal mask of every call: queries of all rows over what each row holds.

Queries are the new tokens of all rows, one after the other. Keys are what each row's cache holds
when it is read, in the order in which it is read; slots that hold nothing are left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvcast.inspect.grid import grid
from kvcast.inspect.schedule import Call, row_name
from kvcast.spec.ring import EMPTY, Positions, keys_read, may_write_first

SEEN, HIDDEN = "#", "."


class Drawn(Protocol):
    """What has masks: calls of a model over a cache, and who sees whom."""

    @property
    def capacity(self) -> int:
        """Slots of each row."""

    @property
    def window(self) -> int | None:
        """How many positions a query sees at most."""

    def calls(self) -> Iterator[Call]:
        """Yield the calls in their order."""

    def title(self) -> str:
        """Say in a line what is drawn."""

    def sees(self, queries: Positions, keys: Positions) -> NDArray[np.bool_]:
        """Tell which keys [k] each query [q] of a row sees, by position; returns [q, k]."""

    def label(self, row: int, position: int) -> str:
        """Name a position."""


@dataclass(frozen=True, kw_only=True)
class Mask:
    """One call's mask.

    Attributes:
        call: of which this is the mask.
        queries: row and position of each query.
        keys: row and position of each key.
        query_labels: what names each query.
        key_labels: what names each key.
        seen: [queries, keys].
        beside: rows that read their old contents beside the new positions; others read the cache
            alone, after it was written.

    """

    call: Call
    queries: tuple[tuple[int, int], ...]
    keys: tuple[tuple[int, int], ...]
    query_labels: tuple[str, ...]
    key_labels: tuple[str, ...]
    seen: NDArray[np.bool_]
    beside: tuple[int, ...]


def masks(drawn: Drawn) -> Iterator[Mask]:
    """Yield the mask of every call."""
    for call in drawn.calls():
        yield _mask(call, drawn)


def render(drawn: Drawn) -> str:
    """Return all masks as text."""
    every = list(masks(drawn))
    signs = f"{SEEN} sees, {HIDDEN} does not"
    if any(len(mask.call.counts) > 1 for mask in every):
        signs += ", nothing: another row's"
    legend = f"rows: queries; columns: keys in the order read; {signs}"
    return "\n".join([f"{drawn.title()}\n{legend}\n", *map(_render, every)])


def heading(mask: Mask) -> str:
    """Say what a call is: `chunk 2: 2 + 0 + 1 tokens`."""
    counts = " + ".join(map(str, mask.call.counts))
    line = f"{mask.call.name}: {counts} token{'s' * (counts != '1')}"
    if mask.beside:
        line += f"; old ring beside the chunk: {', '.join(map(row_name, mask.beside))}"
    return line


def _mask(call: Call, drawn: Drawn) -> Mask:
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
