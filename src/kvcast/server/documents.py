"""JSON that clients send, read within bounds and strictly.

Reading holds the interpreter's lock, so documents that would take long are refused unread, and long
ones are read in parts.
Knows no endpoint.
"""

import json
import json.decoder
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

MOST_VALUES = 1 << 20
"""Commas of a document, at most: about the values in it."""

MOST_NESTED = 1 << 18
"""Lists and objects of a document, at most, as their brackets are counted."""

MOST_NAMES = 1 << 17
"""Names in its objects, at most, as colons are counted."""

DEEPEST = 200
"""Maximum nesting of lists and objects: answers repeat parts of requests, which must be
serialisable."""

_MOST = {"values": MOST_VALUES, "lists and objects": MOST_NESTED, "names": MOST_NAMES}

_LONG = 1 << 19
_LEVELS = 2
"""Characters of a document that is not read in one call, and how many of its levels are apart."""

_Scan: TypeAlias = Callable[[str, int], Any]

_in_python: Any = json.decoder

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parsed(content: bytes | str) -> Any:
    """Return a document; raises ValueError with the reason.

    Lone surrogates and numbers that are not finite are no JSON, and no answer could repeat them.
    """
    text = _decoded(content) if isinstance(content, bytes) else content
    opened = text.count("[") + text.count("{")
    counts = {"values": text.count(","), "lists and objects": opened, "names": text.count(":")}
    for label, most in _MOST.items():
        if counts[label] > most:
            raise ValueError(f"has more than {most:,} {label}")
    try:
        document = _decoder(len(text) > _LONG).decode(text)
    except _NumberError:
        raise ValueError("has a number that is not finite") from None
    except RecursionError:
        raise ValueError(f"is nested deeper than {DEEPEST} levels") from None
    except ValueError:
        raise ValueError("is not JSON") from None
    if opened > DEEPEST and _is_deep(document):
        raise ValueError(f"is nested deeper than {DEEPEST} levels")
    if _SURROGATE.search(text) and not _is_text(document):
        raise ValueError("has half of a surrogate pair, which is no character")
    return document


def _decoder(outer_levels_apart: bool) -> json.JSONDecoder:
    """Return a decoder; one call reads either the whole document or a part of a part of it."""
    decoder: Any = json.JSONDecoder(parse_constant=_refuse_number, parse_float=_finite)
    if outer_levels_apart:
        for _ in range(_LEVELS):
            decoder.scan_once = _apart(decoder.scan_once)
    made: json.JSONDecoder = decoder
    return made


def _apart(scan_parts: _Scan) -> _Scan:
    """Return a function that reads a value's parts one by one, as the library does in Python."""

    def scan(text: str, at: int) -> Any:
        match text[at : at + 1]:
            case "{":
                return _in_python.JSONObject((text, at + 1), True, scan_parts, None, None, {})
            case "[":
                return _in_python.JSONArray((text, at + 1), scan_parts)
        return scan_parts(text, at)

    return scan


class _NumberError(Exception):
    """A number that is not finite."""


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is not JSON in UTF-8") from None


def _refuse_number(_: str) -> NoReturn:
    raise _NumberError


def _finite(spelled: str) -> float:
    number = float(spelled)
    return number if math.isfinite(number) else _refuse_number(spelled)


def _is_deep(document: Any) -> bool:
    """Tell whether lists and objects lie deeper within one another than they may."""
    level = [document]
    for _ in range(DEEPEST + 1):
        inner = (
            container.values() if isinstance(container, dict) else container for container in level
        )
        level = [
            child for container in inner for child in container if isinstance(child, (list, dict))
        ]
        if not level:
            return False
    return True


def _is_text(document: Any) -> bool:
    """Tell whether every text consists of whole characters."""
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
