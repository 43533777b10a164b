"""Normalisation rules that point outside, or whose check could need too much memory."""

import tracemalloc

import numpy as np
import pytest

from kvcast.tokenizers.validation import check_charsmap


def _wide() -> bytes:
    """A trie of 256 KB in which every two bytes lead somewhere, and no replacement."""
    place = np.arange(1 << 16, dtype=np.uint32)
    label = place & 0xFF
    # The first byte's units lie in block 0; each leads to the block of its own number.
    offset = np.where(place < 256, place ^ place << 8, 0)
    units = (offset << np.uint32(10) | label).astype("<u4")
    return units.nbytes.to_bytes(4, "little") + units.tobytes()


def test_memory_stays_within_a_few_times_the_rules():
    rules = _wide()
    tracemalloc.start()
    check_charsmap(rules)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 25


def test_what_the_last_of_many_nodes_leads_to_is_checked():
    rules = bytearray(_wide())
    # The unit of the bytes 255, 255 is the last: it leads out of the trie.
    rules[-4:] = (1 << 16 << 10 | 0xFF).to_bytes(4, "little")
    with pytest.raises(ValueError, match="their trie leads outside"):
        check_charsmap(bytes(rules))
