"""Plans of the calls that align tokens and speech, for all models.

`src/instructions.def` describes the instructions. Knows no cache and no runtime.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.native.building import Builder, Matrix, Plan
from kvcast.runtimes.native.instructions import Operation
from kvcast.runtimes.native.operands import flat
from kvcast.runtimes.native.products import factors
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
    addresses = np.array([lines.ctypes.data for lines in keys], np.int64)
    builder.kept += keys
    builder.emit(
        Operation.ALIGNMENT_SCORES,
        heads=heads,
        tokens=tokens,
        positions=positions,
        head_dim=head_dim,
        query=flat(builder.lines(builder.outer(queries_sx))),
        scale=head_dim**-0.5,
        number=int(number),
        keys=builder.outer(addresses).address,
        out=builder.outer(scores_hst).address,
    )
    return builder.plan()


def attention_by_token_plan(scores_hst: Float32, attention_st: Float32) -> Plan:
    """Return the call that fills `attention_st` [s, frames] from scores [heads, s, t]."""
    builder = Builder()
    heads, tokens, positions = scores_hst.shape
    builder.emit(
        Operation.ATTENTION_BY_TOKEN,
        heads=heads,
        tokens=tokens,
        positions=positions,
        frames=attention_st.shape[1],
        scores=builder.outer(scores_hst).address,
        out=builder.outer(attention_st).address,
    )
    return builder.plan()


def dtw_plan(weights_nt: Float32, begins_n: Int64) -> Plan:
    """Return the call that fills `begins_n` with the first frames of rows of `weights_nt`."""
    builder = Builder()
    rows, frames = weights_nt.shape
    weights, out = builder.outer(weights_nt).address, builder.outer(begins_n).address
    builder.emit(Operation.DTW, rows=rows, frames=frames, weights=weights, out=out)
    return builder.plan()


def probabilities_plan(
    hidden_pd: Float32,
    matrix: Matrix,
    tokens_p: Int64,
    among_v: Float32,
    probabilities_p: Float32,
) -> Plan:
    """Return the call that fills `probabilities_p` with the probabilities of tokens among some.

    Args:
        hidden_pd: [p, d], the input of the product with the vocabulary's matrix; contiguous.
        matrix: [vocab, d].
        tokens_p: [p], each with a 0 in `among_v`.
        among_v: [vocab], 0 for tokens that count and -inf for all other tokens.
        probabilities_p: [p].

    """
    builder = Builder()
    builder.emit(
        Operation.TOKEN_PROBABILITIES,
        matrix=matrix.words,
        rows=len(tokens_p),
        **factors(builder, builder.lines(builder.outer(hidden_pd)), matrix),
        tokens=builder.outer(tokens_p).address,
        among=builder.outer(among_v).address,
        out=builder.outer(probabilities_p).address,
    )
    return builder.plan()
