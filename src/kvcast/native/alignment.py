"""Plans that find how tokens attend to speech: those of all models, and no bundle's programs.

`src/alignment.hpp` says what the instructions compute. Knows no cache and no runtime.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.native.building import Builder, Plan
from kvcast.native.instructions import Operation, Word
from kvcast.native.values import Value

Float32 = NDArray[np.float32]


def scores_plan(queries_sx: Float32, keys: Sequence[NDArray[Any]], scores_hst: Float32) -> Plan:
    """Return the call that fills `scores_hst` with scaled products of queries and keys.

    Args:
        queries_sx: [s, heads * d], contiguous.
        keys: of each head the lines [t, d] of its cache, contiguous; codes are followed by their
            scale's bytes.
        scores_hst: [heads, s, t], contiguous.

    """
    heads, tokens, positions = scores_hst.shape
    head_dim = queries_sx.shape[1] // heads
    number = Value.of(keys[0]).dtype
    builder = Builder()
    addresses = np.array([one.ctypes.data for one in keys], np.int64)
    words: list[Word] = [heads, tokens, positions, head_dim]
    words += [builder.outer(queries_sx).address, queries_sx.shape[1], head_dim**-0.5, int(number)]
    words += [builder.outer(addresses).address, builder.outer(scores_hst).address]
    builder.kept += keys
    builder.emit(Operation.ALIGNMENT_SCORES, *words)
    return builder.plan()


def standing_out_plan(scores_hst: Float32, attention_st: Float32) -> Plan:
    """Return the call that fills `attention_st` [s, frames] from scores [heads, s, t]."""
    builder = Builder()
    frames = attention_st.shape[1]
    given, found = (builder.outer(one).address for one in (scores_hst, attention_st))
    builder.emit(Operation.STAND_OUT, *scores_hst.shape, frames, given, found)
    return builder.plan()
