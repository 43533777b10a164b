"""Attention and norms of encoders whose inputs differ in length.

Letters in shapes: b batch, m queries, t positions, w channels, h heads, d head_dim.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvcast.models.ops.attention_math import (
    attend,
    padding_mask,
    rotate,
    split_heads,
    within_windows,
)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, lengths: Tensor) -> Tensor:
    """Norm the valid positions of an input [b, t, w] together, all channels as one group.

    `lengths`: int32 [b], 1 or more. Results for positions beyond them are meaningless.
    """
    valid_bt1 = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
    count_b11 = (lengths * x.shape[2])[:, None, None]
    mean_b11 = (x * valid_bt1).sum((1, 2), keepdim=True) / count_b11
    centred = x - mean_b11
    variance_b11 = (centred.square() * valid_bt1).sum((1, 2), keepdim=True) / count_b11
    return centred * torch.rsqrt(variance_b11 + epsilon) * weight + bias


def window_attention(
    query: Tensor,  # [b, m, heads * d], of m positions in order
    key: Tensor,  # [b, t, heads * d]
    value: Tensor,  # like `key`
    heads: int,  # number of heads
    scale: float,  # factor on the products of queries and keys
    before: int,  # positions that a query sees before its own
    after: int,  # how many after it
    lengths: Tensor | None = None,  # int32 [b], valid positions, 1 or more; others are garbage
    following: int = 0,  # how many positions follow the last query
) -> Tensor:  # [b, m, heads * d]
    """Attend within a window around each position, at the cost of the window.

    Queries may be the latest of a stream, whose earlier keys are cached. `source_attention`
    (`kvcast.models.ops.encoders`) takes whole inputs, and some of its layers see all positions.
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


def relative_scores(query: Tensor, key: Tensor, heads: int, scale: float) -> Tensor:
    """Scores [b, h, t, t] of queries [b, t, h * d] by keys of distances (Transformer-XL).

    `key` [2, t, h * d]: distances 0 .. t - 1 behind a query, then ahead of it (0 is not read).
    """
    positions = query.shape[1]
    query, key = (split_heads(flat, flat.shape[-1] // heads) for flat in (query, key))
    products_bhtn = query.transpose(1, 2) @ key.flatten(0, 1).permute(1, 2, 0)
    at = torch.arange(positions, device=query.device)
    behind_tt = at[:, None] - at
    distances_tt = torch.where(behind_tt >= 0, behind_tt, positions - behind_tt)
    return products_bhtn.gather(-1, distances_tt.expand(*products_bhtn.shape[:2], -1, -1)) * scale


def source_attention(
    query: Tensor,  # [b, t, heads * d]
    key: Tensor,  # [b, t, kv_heads * d]; heads is a multiple of kv_heads
    value: Tensor,  # like `key`
    heads: int,  # number of heads of queries
    scale: float,  # factor on the products of queries and keys
    lengths: Tensor,  # int32 [b], valid positions, 1 or more; others are garbage
    cosines: Tensor,  # [t or more, d / 2]
    sines: Tensor,  # like `cosines`
    *,
    window: int = 0,  # half of the other positions before, half, rounded up, after; 0: all
    softcap: float = 0.0,  # c in c tanh(x / c), applied to the scaled products; 0: none
) -> Tensor:  # [b, t, heads * d]
    """Attend from every position within a window, with rotary embeddings and no cache."""
    head_dim, count = query.shape[-1] // heads, query.shape[1]
    query, key, value = (split_heads(x, head_dim).transpose(1, 2) for x in (query, key, value))
    angles = cosines[:count], sines[:count]
    query, key = rotate(query, *angles), rotate(key, *angles)
    mask = padding_mask(key, lengths)
    if window:
        positions_t = torch.arange(count, device=query.device)
        distance_tt = positions_t - positions_t[:, None]
        mask = within_windows(distance_tt, (window - 1) // 2, window // 2, lengths)
    mixed = attend(query, key, value, mask, scale, softcap)
    return mixed.transpose(1, 2).flatten(2)
