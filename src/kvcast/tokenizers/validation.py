"""Validates a tokenizer.json, and the normalisation rules in it, for the tokenizers library.

The library does not check its input: with an empty piece it never returns, with a huge id it lists
every unused id below, and rules that point outside abort the process.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST_TOKENS = 1 << 24
_LONGEST_PATTERN = 4096  # the longest of a published model has 400 characters
_MOST_PARTS = 256
_PARTS = ("normalizers", "pretokenizers", "processors", "decoders")
_STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def check_bounds(description: Mapping[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError for a file that could make the library hang."""
    model = description["model"]
    if model.get("type") == "Unigram":
        _check_pieces(model["vocab"])
    else:
        _check_ids(model["vocab"].values())
    _check_ids(token["id"] for token in description.get("added_tokens") or [])
    every = [step for name in _STEPS for step in steps(description.get(name))]
    if len(every) > _MOST_PARTS:
        raise ValueError(f"it has {len(every)} steps")
    for step in every:
        for text in _texts(step):
            if len(text) > _LONGEST_PATTERN:
                raise ValueError(f"its step {step.get('type')!r} has a text too long to be one")


def _check_pieces(pieces: Iterable[Any]) -> None:
    for piece, score in pieces:
        if not isinstance(piece, str) or not piece:
            raise ValueError("its vocabulary has a piece of no characters")
        if not math.isfinite(score):
            raise ValueError(f"the score of its piece {piece!r} is not a finite number")


def _check_ids(ids: Iterable[Any]) -> None:
    if any(type(i) is not int or not 0 <= i < _MOST_TOKENS for i in ids):
        raise ValueError(f"an id of its vocabulary is not a whole number below {_MOST_TOKENS}")


def steps(step: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield a step of a tokenizer.json, and the steps nested in sequences."""
    if step is None:
        return
    yield step
    for name in _PARTS:
        for part in step.get(name) or []:
            yield from steps(part)


def _texts(step: Mapping[str, Any]) -> Iterator[str]:
    pattern = step.get("pattern")
    values = (*pattern.values(),) if isinstance(pattern, Mapping) else ()
    for value in (*values, step.get("content"), step.get("prepend")):
        if isinstance(value, str):
            yield value


_LABEL = 0x8000_00FF  # the byte that leads to a unit, and a bit that is 0 for bytes
_BYTES = np.arange(1, 256, dtype=np.uint32)
_TOGETHER = 1 << 12  # nodes whose children are visited at once: 4 MB


def check_charsmap(content: bytes) -> None:
    """Raise ValueError if any text could lead outside the trie or the replacements."""
    size = int.from_bytes(content[:4], "little")
    if size == 0 or size % 4 or 4 + size > len(content):
        raise ValueError("its normalisation rules are damaged: the size of their trie is wrong")
    units = np.frombuffer(content, "<u4", count=size // 4, offset=4)
    replacements = np.frombuffer(content, np.uint8, offset=4 + size)
    try:
        content[4 + size :].decode()
    except UnicodeDecodeError:
        raise ValueError("its normalisation rules are damaged: not UTF-8") from None
    values = _values(units)
    inside = values < replacements.size
    # A replacement must not start inside a character.
    if not inside.all() or (replacements[values] & 0xC0 == 0x80).any():
        raise ValueError("its normalisation rules are damaged: a replacement is missing")


def _values(units: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the values of all keys, by walking through the trie many nodes at a time."""
    seen = np.zeros(units.size, dtype=np.bool_)
    values = []
    pending = [_offset(units[:1])]
    while pending:
        nodes = pending.pop()
        children = nodes[:, None] ^ _BYTES
        if int(children.max()) >= units.size:
            raise ValueError("its normalisation rules are damaged: their trie leads outside")
        reached = children[units[children] & _LABEL == _BYTES]
        after = reached ^ _offset(units[reached])
        if after.size and int(after.max()) >= units.size:
            raise ValueError("its normalisation rules are damaged: their trie leads outside")
        leaves = after[units[reached] >> 8 & 1 == 1]
        values.append(units[leaves] & 0x7FFF_FFFF)
        new = np.unique(after[~seen[after]])
        seen[new] = True
        pending += [new[i : i + _TOGETHER] for i in range(0, new.size, _TOGETHER)]
    return np.concatenate(values)


def _offset(units: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return (units >> np.uint32(10)) << ((units & np.uint32(1 << 9)) >> np.uint32(6))
