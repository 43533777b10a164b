"""Formats values with three digits and a decimal prefix, and cells as grids and tables."""

from collections.abc import Container, Iterator, Sequence

_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")


def with_prefix(value: float) -> str:
    """As in `26.8 P` for 2.68e16; a unit can follow directly."""
    for prefix in _PREFIXES[:-1]:
        if abs(value) < 999.5:
            return f"{_three(value)} {prefix}"
        value /= 1000
    return f"{_three(value)} {_PREFIXES[-1]}"


def size(count: float) -> str:
    return f"{with_prefix(count)}B"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    if seconds < 0.9995e-3:
        return f"{_three(seconds * 1e6)} µs"
    if seconds < 0.9995:
        return f"{_three(seconds * 1e3)} ms"
    if seconds < 600:
        return f"{_three(seconds)} s"
    return f"{seconds / 60:,.0f} min" if seconds < 36_000 else f"{seconds / 3600:,.0f} h"


def _three(value: float) -> str:
    """Three significant digits; integers below 1,000 exactly."""
    if value == round(value) and abs(value) < 1000:
        return f"{value:.0f}"
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f}"


def grid(
    rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[str]]
) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    gutter = max(map(len, rows))
    for name, line in zip(("", *rows), (columns, *cells), strict=True):
        spaced = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        yield f"  {name.rjust(gutter)}  {' '.join(spaced)}".rstrip()


def table(
    header: Sequence[str], lines: Sequence[Sequence[str]], right: Container[int]
) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    for line in (header, *lines):
        cells = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
