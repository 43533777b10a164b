"""Formats a grid of cells with labelled rows and columns as text."""

from collections.abc import Iterator, Sequence


def grid(
    rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[str]]
) -> Iterator[str]:
    """Yield lines: column labels, then each row's label and cells, aligned right."""
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    gutter = max(map(len, rows))
    for name, line in zip(("", *rows), (columns, *cells), strict=True):
        spaced = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        yield f"  {name.rjust(gutter)}  {' '.join(spaced)}".rstrip()
