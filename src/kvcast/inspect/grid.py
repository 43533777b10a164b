"""Formats cells as text: a grid with labelled rows and columns, or a table with a header."""

from collections.abc import Container, Iterator, Sequence


def grid(
    rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[str]]
) -> Iterator[str]:
    """Yield lines: column labels, then each row's label and cells, aligned right."""
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    gutter = max(map(len, rows))
    for name, line in zip(("", *rows), (columns, *cells), strict=True):
        spaced = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        yield f"  {name.rjust(gutter)}  {' '.join(spaced)}".rstrip()


def table(
    header: Sequence[str], lines: Sequence[Sequence[str]], right: Container[int]
) -> Iterator[str]:
    """Yield lines of aligned cells; `right` are the columns that are aligned right."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    for line in (header, *lines):
        cells = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
