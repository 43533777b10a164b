"""Matrices of heads, which every position rewrites: the gated delta rule and the selective scan.

A matrix decays, and a position's value is added to it for its key: of the delta rule so much of it
as the matrix lacks to give that value for that key. Knows no model.

Letters in shapes: r rows, s new positions, n new positions of all rows, h heads of values, g heads
of keys (h is a multiple of it), k and v sizes of a head.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from kvcast.models.ops.attending import blocks_of_rows

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
    query, key, value = _split(x, state, key_heads)
    query, key = _unit(query) * query.shape[-1] ** -0.5, _unit(key)
    kept = torch.exp(-torch.exp(decay) * softplus(step + bias))
    given = kept, torch.sigmoid(share), state, lengths
    return _rewritten(query, key, value, *given, corrects=True).flatten(2)


def selective_scan(
    x: Tensor,
    step: Tensor,
    decay: Tensor,
    bias: Tensor,
    skip: Tensor,
    state: Tensor,
    lengths: Tensor,
    key_heads: int,
) -> Tensor:
    """Do so without a correction (Mamba-2): steps are also the shares of values that are added.

    Args:
        x: as in `delta_rule`, and likewise the others. Mamba-2 names queries C and keys B.
        step: [r, s, h].
        decay: [h].
        bias: [h].
        skip: [h], shares of values that are added to results.
        state: [r, h, k, v].
        lengths: int32 [r].
        key_heads: g.

    Returns:
        [r, s, h * v].

    """
    query, key, value = _split(x, state, key_heads)
    share = softplus(step + bias)
    kept = torch.exp(-torch.exp(decay) * share)
    mixed = _rewritten(query, key, value, kept, share, state, lengths, corrects=False)
    return (mixed + skip[:, None] * value).flatten(2)


def _split(x: Tensor, state: Tensor, key_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys [r, s, h, k], and values [r, s, h, v]."""
    _, heads, key_dim, value_dim = state.shape
    keys = key_heads * key_dim
    query, key, value = x.split([keys, keys, heads * value_dim], dim=-1)
    query, key = (
        part.unflatten(-1, (key_heads, key_dim)).repeat_interleave(heads // key_heads, dim=2)
        for part in (query, key)
    )
    return query, key, value.unflatten(-1, (heads, value_dim))


def _unit(heads: Tensor) -> Tensor:
    return heads * torch.rsqrt((heads * heads).sum(-1, keepdim=True) + _EPSILON)


def _rewritten(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kept: Tensor,
    share: Tensor,
    state: Tensor,
    lengths: Tensor,
    *,
    corrects: bool,
) -> Tensor:
    """Rewrite matrices, with shares [r, s, h] of what is kept and added; returns [r, s, h, v]."""
    matrix = torch.where((lengths > 0)[:, None, None, None], state, 0.0)
    mixed = torch.empty_like(value)
    for s in range(value.shape[1]):
        matrix = matrix * kept[:, s, :, None, None]
        added = value[:, s]
        if corrects:
            added = added - torch.einsum("rhk,rhkv->rhv", key[:, s], matrix)
        added = added * share[:, s, :, None]
        matrix = matrix + key[:, s, :, :, None] * added[:, :, None]
        mixed[:, s] = torch.einsum("rhk,rhkv->rhv", query[:, s], matrix)
    state[...] = matrix
    return mixed


def packed_states(
    operation: Callable[..., Tensor],
    parts: Sequence[Tensor],
    constants: Sequence[Tensor],
    state: Tensor,
    rows: list[int],
    counts: list[int],
    lengths: Tensor,
    key_heads: int,
) -> Tensor:
    """Do an operation for some rows of a batch, each with its own number of new positions.

    Args:
        operation: `delta_rule` or `selective_scan`.
        parts: its arguments of positions, [n, ...] for all rows, concatenated.
        constants: its other arguments before the state.
        state: [r, h, k, v].
        rows: the rows of the state that take part, each once.
        counts: number of new positions of each; they sum to n.
        lengths: int32 [r], for all rows of the state.
        key_heads: g.

    Returns:
        [n, h * v].

    """
    mixed = parts[0].new_empty(len(parts[0]), state.shape[1] * state.shape[3])
    for row_span, span, new in blocks_of_rows(rows, counts):
        own = [part[span].unflatten(0, (-1, new)) for part in parts]
        block = operation(*own, *constants, state[row_span], lengths[row_span], key_heads)
        mixed[span] = block.flatten(0, 1)
    return mixed
