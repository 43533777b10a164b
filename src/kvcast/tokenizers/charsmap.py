"""Validates SentencePiece's compiled normalisation rules, which tokenizer.json may contain as well.

The tokenizers library does not check them and aborts the process if they point outside. Their
format is SentencePiece's (builder.cc): a double-array trie (darts-clone) whose values are
offsets into a text of replacements, each terminated by a zero byte.
"""

import numpy as np
from numpy.typing import NDArray

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
