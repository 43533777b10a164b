"""Shows the content of every slot after every chunk and step.

A slot shows the token at its position: `a3` is position 3 of the first row, `3:fox` the word given
for it. `*` marks the call's own writes, `.` an empty slot. Knows no model and no masks.
"""

from collections.abc import Iterator, Sequence

from kvcast.errors import UsageError
from kvcast.inspect.schedule import ModelCall, Schedule, label, row_name
from kvcast.inspect.units import plural
from kvcast.spec.ring import EMPTY, positions_held

Texts = Sequence[Sequence[str]]
"""For each row, words that label its positions; there may be fewer words than positions."""


def render(schedule: Schedule, texts: Texts = ()) -> str:
    """Return the contents of all slots as text; raises UsageError for texts that do not fit."""
    if texts:
        check(schedule, texts)
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


def check(schedule: Schedule, texts: Texts) -> None:
    """Raise UsageError unless there is a text for each row, of its prompt or more."""
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
    """Yield what each slot of a row shows after a call."""
    before = call.lengths[row]
    for position in positions_held(before + call.counts[row], schedule.capacity).tolist():
        if position == EMPTY:
            yield "."
        else:
            yield token(row, position, texts) + "*" * (position >= before)


def token(row: int, position: int, texts: Texts) -> str:
    """Return what a slot shows of a position."""
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
