"""The gated delta rule: a matrix of each head, which every position rewrites.

The matrix decays, and is then corrected so that it gives the position's value for its key. Knows no
model.

Letters in shapes: r rows, s new positions, n new positions of all rows, h heads of values, g heads
of keys (h is a multiple of it), k and v sizes of a head.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from kvcast.models.ops.attention import blocks_of_rows

_EPSILON = 1e-6  # of the lengths of queries and keys


def delta_rule(
    x: Tensor,
    share: Tensor,
    step: Tensor,
    decay: Tensor,
    bias: Tensor,
    state: Tensor,
    lengths: Tensor,
    key_heads: int,
) -> Tensor:
    """Rewrite matrices by new positions, one after the other, and read them at each.

    Args:
        x: [r, s, 2 * g * k + h * v], queries, keys and values.
        share: [r, s, h], of what the matrix lacks; before the sigmoid.
        step: [r, s, h], how much the matrix decays; before the softplus.
        decay: [h], logarithms of factors on steps.
        bias: [h], added to steps.
        state: [r, h, k, v], rewritten. Without earlier positions it counts as zeros.
        lengths: int32 [r], positions in each row before this call.
        key_heads: g.

    Returns:
        [r, s, h * v].

    """
    _, heads, key_dim, value_dim = state.shape
    keys = key_heads * key_dim
    query, key, value = x.split([keys, keys, heads * value_dim], dim=-1)
    query, key = (
        _unit(part.unflatten(-1, (key_heads, key_dim))).repeat_interleave(heads // key_heads, dim=2)
        for part in (query, key)
    )
    query, value = query * key_dim**-0.5, value.unflatten(-1, (heads, value_dim))
    kept = torch.exp(-torch.exp(decay) * softplus(step + bias))
    matrix = torch.where((lengths > 0)[:, None, None, None], state, 0.0)
    mixed = torch.empty_like(value)
    for s in range(x.shape[1]):
        matrix = matrix * kept[:, s, :, None, None]
        lacking = value[:, s] - torch.einsum("rhk,rhkv->rhv", key[:, s], matrix)
        added = lacking * torch.sigmoid(share[:, s])[..., None]
        matrix = matrix + key[:, s, :, :, None] * added[:, :, None]
        mixed[:, s] = torch.einsum("rhk,rhkv->rhv", query[:, s], matrix)
    state[...] = matrix
    return mixed.flatten(2)


def packed_delta_rule(
    x: Tensor,
    share: Tensor,
    step: Tensor,
    decay: Tensor,
    bias: Tensor,
    state: Tensor,
    rows: list[int],
    counts: list[int],
    lengths: Tensor,
    key_heads: int,
) -> Tensor:
    """`delta_rule` for some rows of a batch, each with its own number of new positions.

    Args:
        x: [n, 2 * g * k + h * v], of the new positions of all rows, concatenated.
        share: [n, h].
        step: [n, h].
        decay: as in `delta_rule`.
        bias: as in `delta_rule`.
        state: [r, h, k, v].
        rows: the rows of the state that take part, each once.
        counts: number of new positions of each; they sum to n.
        lengths: int32 [r], for all rows of the state.
        key_heads: as in `delta_rule`.

    Returns:
        [n, h * v].

    """
    mixed = x.new_empty(len(x), state.shape[1] * state.shape[3])
    for row_span, span, new in blocks_of_rows(rows, counts):
        own_x, own_share, own_step = (
            part[span].unflatten(0, (-1, new)) for part in (x, share, step)
        )
        own = state[row_span], lengths[row_span]
        block = delta_rule(own_x, own_share, own_step, decay, bias, *own, key_heads)
        mixed[span] = block.flatten(0, 1)
    return mixed


def _unit(heads: Tensor) -> Tensor:
    return heads * torch.rsqrt((heads * heads).sum(-1, keepdim=True) + _EPSILON)
