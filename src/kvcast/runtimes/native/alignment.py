"""Plans that find how tokens attend to speech, and how likely they are, for all models.

`src/alignment.hpp` says what the instructions compute. Knows no cache and no runtime.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.native.building import Builder, Matrix, Plan
from kvcast.runtimes.native.instructions import Operation, Word
from kvcast.runtimes.native.operations import factors
from kvcast.runtimes.native.values import Value

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]


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


def first_frames_plan(weights_nt: Float32, begins_n: Int64) -> Plan:
    """Return the call that fills `begins_n` with where rows of `weights_nt`, contiguous, begin."""
    builder = Builder()
    given, found = (builder.outer(one).address for one in (weights_nt, begins_n))
    builder.emit(Operation.FIRST_FRAMES, *weights_nt.shape, given, found)
    return builder.plan()


def probabilities_plan(
    hidden_pd: Float32,
    matrix: Matrix,
    tokens_p: Int64,
    among_v: Float32,
    probabilities_p: Float32,
) -> Plan:
    """Return the call that fills `probabilities_p` with those of tokens among some.

    Args:
        hidden_pd: [p, d], what the vocabulary's matrix is multiplied with; contiguous.
        matrix: [vocab, d].
        tokens_p: [p], each one of those that count.
        among_v: [vocab], 0 for tokens that count and -inf for the others.
        probabilities_p: [p].

    """
    builder = Builder()
    words: list[Word] = [*matrix.words, len(tokens_p)]
    words += factors(builder, builder.lines(builder.outer(hidden_pd)), matrix)
    words += [builder.outer(one).address for one in (tokens_p, among_v, probabilities_p)]
    builder.emit(Operation.TOKEN_PROBABILITIES, *words)
    return builder.plan()
