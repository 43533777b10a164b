"""Draws the packed, block-diagonal mask of every call, with the queries and keys of all rows.

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
    """Calls with masks: calls of a model over a cache, and which queries see which keys."""

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
    """One call's mask.

    Attributes:
        seen: [queries, keys].
        beside: rows that read the old ring and the new positions side by side; others read only the
            cache, after writing it.

    """

    call: ModelCall
    queries: tuple[tuple[int, int], ...]
    keys: tuple[tuple[int, int], ...]
    query_labels: tuple[str, ...]
    key_labels: tuple[str, ...]
    seen: NDArray[np.bool_]
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
    """Describe a call: `chunk 2: 2 + 0 + 1 tokens`."""
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
    """A source of `source` tokens and a target of `target` tokens."""

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
        """Yield one call with all positions, as without a cache; then the calls with one."""
        yield ModelCall(name="without a cache", lengths=(0,), counts=(self.capacity,))
        yield ModelCall(name="source", lengths=(0,), counts=(self.source,))
        for i in range(self.target):
            yield ModelCall(name=f"step {i + 1}", lengths=(self.source + i,), counts=(1,))

    def sees(self, queries: Positions, keys: Positions) -> NDArray[np.bool_]:
        """Return which keys [k] each query [q] sees, by position, as [q, k]."""
        return visible(queries, keys, None) | (keys < self.source)

    def label(self, row: int, position: int) -> str:  # noqa: ARG002 - there is one row
        """Return `s4` for position 4 if it is in the source, `t4` if it is in the target."""
        return f"{'s' if position < self.source else 't'}{position}"
