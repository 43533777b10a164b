"""Operations of encoders of sound, whose inputs differ in length. Knows no model.

Letters in shapes: b batch, m queries, t positions, w channels, h heads, d head_dim.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvcast.models.ops.attending import split_heads, within_windows


def group_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, lengths: Tensor) -> Tensor:
    """Norm the valid positions of an input together, all channels as one group.

    Args:
        x: [b, t, w].
        weight: [w].
        bias: [w].
        epsilon: added to the variance.
        lengths: int32 [b], 1 or more: how many of an input's t positions are valid. The results for
            the others are meaningless.

    Returns:
        [b, t, w].

    """
    valid_bt1 = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
    count_b11 = (lengths * x.shape[2])[:, None, None]
    mean_b11 = (x * valid_bt1).sum((1, 2), keepdim=True) / count_b11
    centred = x - mean_b11
    variance_b11 = (centred.square() * valid_bt1).sum((1, 2), keepdim=True) / count_b11
    return centred * torch.rsqrt(variance_b11 + epsilon) * weight + bias


def window_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    scale: float,
    before: int,
    after: int,
    lengths: Tensor | None = None,
    following: int = 0,
) -> Tensor:
    """Attend from positions to those in a window around each, at the cost of the window.

    Queries may be the latest of a stream, whose keys of before are kept. `source_attention`
    (`kvcast.models.ops.source`) is of whole inputs, some of whose layers see all.

    Args:
        query: [b, m, heads * d], of m positions in order.
        key: [b, t, heads * d].
        value: like `key`.
        heads: number of heads.
        scale: factor on the products of queries and keys.
        before: how many positions before its own a query sees.
        after: how many after it.
        lengths: int32 [b], 1 or more: how many of an input's t positions are valid; None: all. The
            results for the others are meaningless.
        following: how many positions follow that of the last query.

    Returns:
        [b, m, heads * d].

    """
    query, key, value = (
        split_heads(flat, flat.shape[-1] // heads).transpose(1, 2) for flat in (query, key, value)
    )
    keys = torch.arange(key.shape[2], device=query.device)
    end = len(keys) - following
    queries = keys[end - query.shape[2] : end]
    mask = within_windows(keys - queries[:, None], before, after, lengths)
    mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return mixed.transpose(1, 2).flatten(2)
