"""Damage: changes of bytes, and lies in JSON. Knows no format beyond that."""

import json
from collections.abc import Callable
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


def damaged_bytes(random: np.random.Generator, content: bytes) -> bytes:
    """Change some bytes, a number, a stretch or the length; headers more often than the rest."""
    changed = bytearray(content)
    for _ in range(int(random.integers(1, 4))):
        kinds = (_flip, _overwrite, _number, _zero, _cut, _insert, _repeat)
        kinds[int(random.choice(len(kinds), p=(0.25, 0.25, 0.25, 0.08, 0.05, 0.06, 0.06)))](
            random, changed
        )
    return bytes(changed)


def _place(random: np.random.Generator, changed: bytearray) -> int:
    ends = (len(changed), min(len(changed), 4096), min(len(changed), 256))
    size = ends[int(random.integers(3))]
    place = int(random.integers(max(size, 1)))
    # The end of a file is as good as a header: archives and flatbuffers have theirs there.
    return max(len(changed) - 1 - place, 0) if random.random() < 0.2 else place


def _flip(random: np.random.Generator, changed: bytearray) -> None:
    if changed:
        changed[_place(random, changed)] ^= 1 << int(random.integers(8))


def _overwrite(random: np.random.Generator, changed: bytearray) -> None:
    place = _place(random, changed)
    changed[place : place + 1] = random.bytes(1)


def _number(random: np.random.Generator, changed: bytearray) -> None:
    place, size = _place(random, changed), int(random.choice((1, 2, 4, 8)))
    value = _EXTREMES[int(random.integers(len(_EXTREMES)))] % (1 << 8 * size)
    changed[place : place + size] = value.to_bytes(size, "little")


def _zero(random: np.random.Generator, changed: bytearray) -> None:
    place, size = _place(random, changed), int(random.integers(1, 64))
    changed[place : place + size] = bytes(len(changed[place : place + size]))


def _cut(random: np.random.Generator, changed: bytearray) -> None:
    del changed[_place(random, changed) :]


def _insert(random: np.random.Generator, changed: bytearray) -> None:
    place = _place(random, changed)
    changed[place:place] = random.bytes(int(random.integers(1, 32)))


def _repeat(random: np.random.Generator, changed: bytearray) -> None:
    place, size = _place(random, changed), int(random.integers(1, 256))
    changed[place:place] = changed[place : place + size]


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
    keys = list(document) if isinstance(document, dict) else list(range(len(document)))
    key = keys[int(random.integers(len(keys)))]
    if isinstance(document[key], dict | list) and document[key] and random.random() < 0.9:
        document[key] = _lie(random, document[key])
        return document
    change: Callable[..., None] = (_replace, _replace, _replace, _remove, _rename, _swap)[
        int(random.integers(6))
    ]
    change(random, document, key, keys)
    return document


def _changed(random: np.random.Generator, value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and random.random() < 0.5:
        factor = (-1, 0.5, 2, 3, 10, 1000, 10**6)[int(random.integers(7))]
        return int(value * factor) if isinstance(value, int) else value * factor
    if isinstance(value, str) and random.random() < 0.3:
        place = int(random.integers(len(value) + 1))
        return value[:place] + chr(int(random.integers(1, 0x3000))) + value[place:]
    return deepcopy(_VALUES[int(random.integers(len(_VALUES)))])


def _replace(random: np.random.Generator, document: Any, key: Any, _: list[Any]) -> None:
    document[key] = _changed(random, document[key])


def _remove(random: np.random.Generator, document: Any, key: Any, _: list[Any]) -> None:
    del document[key]


def _rename(random: np.random.Generator, document: Any, key: Any, _: list[Any]) -> None:
    if isinstance(document, dict):
        document[key + "x"] = document.pop(key)
    else:
        document.insert(key, document[key])


def _swap(random: np.random.Generator, document: Any, key: Any, keys: list[Any]) -> None:
    other = keys[int(random.integers(len(keys)))]
    document[key], document[other] = document[other], document[key]
