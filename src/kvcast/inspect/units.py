"""Formats numbers for people, with three digits and a decimal prefix.

Knows nothing of the counted things.
"""

_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")


def prefixed(value: float) -> str:
    """Return `26.8 P` for 2.68e16; a unit can follow directly."""
    for prefix in _PREFIXES[:-1]:
        if abs(value) < 999.5:
            return f"{_three(value)} {prefix}"
        value /= 1000
    return f"{_three(value)} {_PREFIXES[-1]}"


def size(count: float) -> str:
    """Return bytes, in decimal units."""
    return f"{prefixed(count)}B"


def plural(count: int, noun: str) -> str:
    """Return `1 token`, `1,000 tokens`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    """Return a time from microseconds to hours."""
    if seconds < 0.9995e-3:
        return f"{_three(seconds * 1e6)} µs"
    if seconds < 0.9995:
        return f"{_three(seconds * 1e3)} ms"
    if seconds < 600:
        return f"{_three(seconds)} s"
    return f"{seconds / 60:,.0f} min" if seconds < 36_000 else f"{seconds / 3600:,.0f} h"


def _three(value: float) -> str:
    """Return three digits; whole numbers below a thousand as they are."""
    if value == round(value) and abs(value) < 1000:
        return f"{value:.0f}"
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f}"
