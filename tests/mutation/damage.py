"""Damage: changes of bytes, and lies in JSON. Knows no format beyond that."""

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np

_EXTREMES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 255, 65_536, 10**6, 2**31 - 1, 2**32, 2**53, 2**63),
    *(0.5, -1.5, 1e-300, 1e300, float("inf"), float("nan")),
    *("", "x", "1", "../x", "/etc/passwd", "a" * 5000, "\n\x1b[31m\r", "\ud800", "ß", "\0"),
    *([], [1], ["x"], [[]], {}, {"x": 1}, [0] * 3),
)
_KINDS = ("flip", "overwrite", "number", "zero", "cut", "insert", "repeat")
_SHARES = (0.25, 0.25, 0.25, 0.08, 0.05, 0.06, 0.06)


def _of(random: np.random.Generator, choices: Sequence[Any]) -> Any:
    return choices[int(random.integers(len(choices)))]


def damaged_bytes(random: np.random.Generator, content: bytes) -> bytes:
    """Change some bytes, a number, a stretch or the length; headers more often than the rest."""
    changed = bytearray(content)
    for _ in range(int(random.integers(1, 4))):
        kind = random.choice(_KINDS, p=_SHARES)
        if kind == "flip" and not changed:
            continue
        start = max(_of(random, (len(changed), *(min(len(changed), n) for n in (4096, 256)))), 1)
        start = int(random.integers(start))
        # The end of a file is as good as a header: archives and flatbuffers have theirs there.
        if random.random() < 0.2:
            start = max(len(changed) - 1 - start, 0)
        match kind:
            case "flip":
                changed[start] ^= 1 << int(random.integers(8))
            case "overwrite":
                changed[start : start + 1] = random.bytes(1)
            case "number":
                size = int(random.choice((1, 2, 4, 8)))
                number = _of(random, _EXTREMES) % (1 << 8 * size)
                changed[start : start + size] = number.to_bytes(size, "little")
            case "zero":
                end = min(start + int(random.integers(1, 64)), len(changed))
                changed[start:end] = bytes(max(end - start, 0))
            case "cut":
                del changed[start:]
            case "insert":
                changed[start:start] = random.bytes(int(random.integers(1, 32)))
            case "repeat":
                changed[start:start] = changed[start : start + int(random.integers(1, 256))]
    return bytes(changed)


def lying_json(random: np.random.Generator, content: bytes) -> bytes:
    """Change one to three values of a document, or its bytes."""
    if random.random() < 0.1:
        return damaged_bytes(random, content)
    document = json.loads(content)
    for _ in range(int(random.integers(1, 4))):
        document = _lie(random, document)
    return json.dumps(document).encode()


def _lie(random: np.random.Generator, document: Any) -> Any:
    """Walk to a random place and change what is there; long lists are not where most lies are."""
    if not isinstance(document, dict | list) or not document or random.random() < 0.05:
        return _changed(random, document)
    keys = list(document) if isinstance(document, dict) else range(len(document))
    key = _of(random, keys)
    if isinstance(document[key], dict | list) and document[key] and random.random() < 0.9:
        document[key] = _lie(random, document[key])
        return document
    match _of(random, ("replace", "replace", "replace", "remove", "rename", "swap")):
        case "replace":
            document[key] = _changed(random, document[key])
        case "remove":
            del document[key]
        case "rename" if isinstance(document, dict):
            document[key + "x"] = document.pop(key)
        case "rename":
            document.insert(key, document[key])
        case "swap":
            other = _of(random, keys)
            document[key], document[other] = document[other], document[key]
    return document


def _changed(random: np.random.Generator, value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and random.random() < 0.5:
        factor = _of(random, (-1, 0.5, 2, 3, 10, 1000, 10**6))
        return int(value * factor) if isinstance(value, int) else value * factor
    if isinstance(value, str) and random.random() < 0.3:
        place = int(random.integers(len(value) + 1))
        return value[:place] + chr(int(random.integers(1, 0x3000))) + value[place:]
    return deepcopy(_of(random, _VALUES))
