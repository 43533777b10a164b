"""A schedule of calls, and a drawing of the cache after each.

Prompts are prefilled in chunks, then every row grows by a token per step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import UsageError
from kvcast.inspect.units import plural
from kvcast.spec.ring import EMPTY, Positions, chunk_counts, positions_held, visible

MOST_POSITIONS = 1000
"""Limit on the positions of all rows together; more cannot be drawn legibly."""


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """One call: `counts` new tokens for rows with `lengths` positions so far."""

    name: str
    lengths: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Prompts of `lengths` tokens in chunks of `chunk`, then `new` steps of a token per row.

    Queries see `window` positions, including their own; None: all. The cache has `capacity` slots
    per row: at least the window or the longest sequence, whichever is less.
    """

    lengths: tuple[int, ...]
    window: int | None
    chunk: int
    new: int
    capacity: int

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        window: int | None,
        chunk: int,
        new: int,
        capacity: int | None = None,
    ) -> "Schedule":
        """Check the sizes; `capacity` None: the fewest slots possible."""
        if not lengths or min(lengths) < 1:
            raise UsageError("lengths must give each of one or more prompts 1 token or more")
        for name, value, least in (("window", window, 1), ("chunk", chunk, 1), ("new", new, 0)):
            if value is not None and value < least:
                raise UsageError(f"{name} must be {least} or more, not {value}")
        total = sum(lengths) + new * len(lengths)
        if total > MOST_POSITIONS:
            raise UsageError(
                f"{total:,} positions are too many to draw (at most {MOST_POSITIONS:,}): give "
                "fewer or shorter prompts, or fewer new tokens"
            )
        longest = max(lengths) + new
        needed = min(window or longest, longest)
        if capacity is not None and not needed <= capacity <= MOST_POSITIONS:
            raise UsageError(
                f"capacity must be from {needed} to {MOST_POSITIONS:,} here, not {capacity}"
            )
        return cls(
            lengths=tuple(lengths),
            window=window,
            chunk=chunk,
            new=new,
            capacity=capacity or needed,
        )

    def calls(self) -> Iterator[ModelCall]:
        held = (0,) * len(self.lengths)
        for name, counts in self._named_counts():
            yield ModelCall(name=name, lengths=held, counts=counts)
            held = tuple(length + new for length, new in zip(held, counts, strict=True))

    def _named_counts(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for i, counts in enumerate(chunk_counts(self.lengths, self.chunk), 1):
            yield f"chunk {i}", counts
        for i in range(1, self.new + 1):
            yield f"step {i}", (1,) * len(self.lengths)

    def title(self) -> str:
        prompts = f"prompt{'s' * (len(self.lengths) > 1)} of {_join(self.lengths)}"
        sees = f"a window of {self.window}" if self.window else "no window"
        return (
            f"{prompts} in chunks of {self.chunk}, then {plural(self.new, 'step')}; "
            f"{sees}, {plural(self.capacity, 'slot')} a row"
        )

    def sees(self, queries: Positions, keys: Positions) -> NDArray[np.bool_]:
        return visible(queries, keys, self.window)

    def label(self, row: int, position: int) -> str:
        return label(row, position)


def row_name(row: int) -> str:
    name = ""
    row += 1
    while row:
        row, letter = divmod(row - 1, len(ascii_lowercase))
        name = ascii_lowercase[letter] + name
    return name


def label(row: int, position: int) -> str:
    """As in `a3`, position 3 of the first row."""
    return f"{row_name(row)}{position}"


def _join(counts: Sequence[int]) -> str:
    """As in `4, 1 and 3 tokens`."""
    *others, last = map(str, counts)
    if others:
        return f"{', '.join(others)} and {last} tokens"
    return plural(counts[0], "token")


Texts = Sequence[Sequence[str]]
"""For each row, words that label its positions; there may be fewer words than positions."""


def render(schedule: Schedule, texts: Texts = ()) -> str:
    if texts:
        check_texts(schedule, texts)
    rows = len(schedule.lengths)
    gutter = max(len(call.name) for call in schedule.calls())
    lines = [("", "", tuple(f"slot {slot}" for slot in range(schedule.capacity)))]
    for call in schedule.calls():
        for row in range(rows):
            name = call.name if row == 0 else ""
            lines.append((name, row_name(row), tuple(cells(schedule, call, row, texts))))
    widths = [max(len(line[2][slot]) for line in lines) for slot in range(schedule.capacity)]
    table = [_line(line, gutter, len(row_name(rows - 1)), widths) for line in lines]
    # A blank line separates calls.
    body = (("" if line[0] else None, text) for line, text in zip(lines, table, strict=True))
    spaced = [part for pair in body for part in pair if part is not None]
    return "\n".join([schedule.title(), "* written by this call, . holds nothing", "", *spaced, ""])


def check_texts(schedule: Schedule, texts: Texts) -> None:
    """Raise UsageError unless there is a text for each row, as long as its prompt or longer."""
    if len(texts) != len(schedule.lengths):
        rows = plural(len(schedule.lengths), "row")
        raise UsageError(f"{plural(len(texts), 'text')} for {rows}: give one for each")
    for row, (words, length) in enumerate(zip(texts, schedule.lengths, strict=True)):
        if not length <= len(words) <= length + schedule.new:
            raise UsageError(
                f"the text of row {row_name(row)} has {plural(len(words), 'word')}: its prompt has "
                f"{plural(length, 'token')}, and {schedule.new} come after it"
            )


def cells(schedule: Schedule, call: ModelCall, row: int, texts: Texts) -> Iterator[str]:
    """Yield the label of each slot of a row after a call."""
    before = call.lengths[row]
    for position in positions_held(before + call.counts[row], schedule.capacity).tolist():
        if position == EMPTY:
            yield "."
        else:
            yield token_label(row, position, texts) + "*" * (position >= before)


def token_label(row: int, position: int, texts: Texts) -> str:
    if not texts:
        return label(row, position)
    words = texts[row]
    return f"{position}:{words[position] if position < len(words) else label(row, position)}"


def _line(
    line: tuple[str, str, tuple[str, ...]], gutter: int, letters: int, widths: Sequence[int]
) -> str:
    name, row, cells = line
    spaced = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return f"{name.ljust(gutter)}  {row.ljust(letters)}  {spaced}".rstrip()
