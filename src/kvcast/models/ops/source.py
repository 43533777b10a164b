"""Attention of encoders of text whose layers have windows and rotation. Knows no model.

It is apart from `window_attention` (`kvcast.models.ops.sound`): that one costs as much as its
window, goes on from position to position of a stream, and gets queries and keys turned. This one is
of whole inputs, may see all, turns queries and keys as they are read, and has fewer heads of keys
and capped products.

Letters in shapes: b batch, t positions, h heads, d head_dim.
"""

import torch
from torch import Tensor

from kvcast.models.ops.attending import (
    attend,
    padding_mask,
    rotated,
    split_heads,
    within_windows,
)


def source_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    scale: float,
    lengths: Tensor,
    cosines: Tensor,
    sines: Tensor,
    *,
    window: int = 0,
    softcap: float = 0.0,
) -> Tensor:
    """Attend from every position to those around it, with rotary embeddings and no cache.

    Args:
        query: [b, t, heads * d].
        key: [b, t, kv_heads * d]; heads is a multiple of kv_heads.
        value: like `key`.
        heads: number of heads of queries.
        scale: factor on the products of queries and keys.
        lengths: int32 [b], 1 or more: how many of an input's t positions are valid. The results for
            the others are meaningless.
        cosines: [t or more, d / 2].
        sines: like `cosines`.
        window: how many positions one sees: itself, half of the others before it and half after it,
            where the odd one is; 0: all.
        softcap: c in c tanh(x / c), applied to the scaled products; 0: none.

    Returns:
        [b, t, heads * d].

    """
    head_dim, count = query.shape[-1] // heads, query.shape[1]
    query, key, value = (split_heads(x, head_dim).transpose(1, 2) for x in (query, key, value))
    angles = cosines[:count], sines[:count]
    query, key = rotated(query, *angles), rotated(key, *angles)
    mask = padding_mask(key, lengths)
    if window:
        positions_t = torch.arange(count, device=query.device)
        distance_tt = positions_t - positions_t[:, None]
        mask = within_windows(distance_tt, (window - 1) // 2, window // 2, lengths)
    mixed = attend(query, key, value, mask, scale, softcap)
    return mixed.transpose(1, 2).flatten(2)
