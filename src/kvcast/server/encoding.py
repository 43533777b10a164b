"""JSON of answers, encoded in pieces: no single call holds the interpreter's lock for long.

Knows no endpoint.
"""

import json
from collections.abc import Iterator
from typing import Any

_AT_ONCE = 500
"""About how many values are encoded in one call."""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encoded(document: Any) -> str:
    """Return a document as JSON; raises ValueError for a number that is not finite."""
    return "".join(pieces(document))


def pieces(document: Any) -> Iterator[str]:
    """Yield the parts of a document's JSON."""
    if count_of(document) <= _AT_ONCE:
        yield _encode(document)
    elif isinstance(document, dict):
        for place, (name, value) in enumerate(document.items()):
            yield f"{',' if place else '{'}{_encode(name)}:"
            yield from pieces(value)
        yield "}"
    else:
        yield "["
        for place, some in enumerate(_together(document)):
            if place:
                yield ","
            if len(some) == 1:
                yield from pieces(some[0])
            else:
                yield _encode(some)[1:-1]
        yield "]"


def _together(values: list[Any]) -> Iterator[list[Any]]:
    """Yield neighbours of a list that are encoded in one call."""
    some: list[Any] = []
    taken = 0
    for value in values:
        count = count_of(value)
        if some and taken + count > _AT_ONCE:
            yield some
            some, taken = [], 0
        some.append(value)
        taken += count
    yield some


def count_of(document: Any, most: int = _AT_ONCE) -> int:
    """Return how many values a document has, or more than `most` once that is certain."""
    if not isinstance(document, (dict, list)):  # a tuple is short
        return 1
    count = 1
    for value in document.values() if isinstance(document, dict) else document:
        count += count_of(value, most - count)
        if count > most:
            break
    return count
