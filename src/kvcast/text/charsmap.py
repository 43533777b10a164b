"""Whether SentencePiece's compiled normalisation rules, also in tokenizer.json, are sound.

The tokenizers library follows them without looking and aborts where they lead outside. Their form
is that of sentencepiece's builder.cc: a double-array trie (darts-clone) whose values are places in
a text of replacements, each ended by a zero byte. Knows no tokenizer.
"""

import numpy as np
from numpy.typing import NDArray

_LABEL = 0x8000_00FF  # the byte that leads to a unit, and a bit that no byte has
_BYTES = np.arange(1, 256, dtype=np.uint32)
_TOGETHER = 1 << 12  # nodes whose children are looked at at once: 4 MB


def check_charsmap(content: bytes) -> None:
    """Raise ValueError if some text could lead outside the trie or the replacements."""
    size = int.from_bytes(content[:4], "little")
    if size == 0 or size % 4 or 4 + size > len(content):
        raise ValueError("its normalisation rules are damaged: their trie has no room")
    units = np.frombuffer(content, "<u4", count=size // 4, offset=4)
    replacements = np.frombuffer(content, np.uint8, offset=4 + size)
    try:
        content[4 + size :].decode()
    except UnicodeDecodeError:
        raise ValueError("its normalisation rules are damaged: not UTF-8") from None
    values = _values(units)
    inside = values < replacements.size
    # A replacement must not begin within a character.
    if not inside.all() or (replacements[values] & 0xC0 == 0x80).any():
        raise ValueError("its normalisation rules are damaged: a replacement is not there")


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
    """Return how far away the children of units are."""
    return (units >> np.uint32(10)) << ((units & np.uint32(1 << 9)) >> np.uint32(6))
