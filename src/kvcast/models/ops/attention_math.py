"""Shared by the attention kernels: heads, rotation, masks and products.

Letters in shapes: see `kvcast.models.ops.attention`.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def split_heads(flat_rsx: Tensor, head_dim: int) -> Tensor:
    return flat_rsx.unflatten(-1, (-1, head_dim))


def rotate(heads_rhsd: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = heads_rhsd.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)


def blocks_of_rows(rows: list[int], counts: list[int]) -> list[tuple[slice, slice, int]]:
    """Return one block of adjacent, equally long rows, or a block of each row."""
    first, count = rows[0], counts[0]
    if rows == list(range(first, first + len(rows))) and counts == [count] * len(rows):
        return [(slice(first, first + len(rows)), slice(None), count)]
    ends = torch.tensor(counts).cumsum(0).tolist()
    return [
        (slice(row, row + 1), slice(end - new, end), new)
        for row, end, new in zip(rows, ends, counts, strict=True)
    ]


def held_positions(last_r: Tensor, capacity: int, held: int) -> Tensor:
    """Positions in the first `held` slots [r, held] after `last` was written; negative: empty."""
    slots_c = torch.arange(held, device=last_r.device)
    last_r1 = last_r[:, None]
    newest_r1 = last_r1 % capacity
    # One division per row: compiled, a division per slot would cost more than all of attention.
    lap_rc = torch.where(slots_c > newest_r1, capacity, 0)
    return last_r1 - newest_r1 + slots_c - lap_rc


def visible(query_rs: Tensor, key_rc: Tensor, window: int) -> Tensor:
    """Mask [r, 1, s, c] by position; a negative position is an empty slot."""
    distance = query_rs[:, :, None] - key_rc[:, None]
    visible_rsc = (distance >= 0) & (key_rc >= 0)[:, None]
    if window:
        visible_rsc &= distance < window
    return visible_rsc[:, None]


def padding_mask(key_bhtd: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Mask [b, 1, 1, t] of valid positions; None if all are valid."""
    if lengths is None:
        return None
    positions_t = torch.arange(key_bhtd.shape[2], device=key_bhtd.device)
    return (positions_t < lengths[:, None])[:, None, None]


def within_windows(
    distance_mt: Tensor, before: int, after: int, lengths: Tensor | None = None
) -> Tensor:
    """Mask [m, t], or [b, 1, m, t] with lengths, of `before` positions, the query's, and `after`.

    `distance_mt`: key position minus query position. `lengths`: int32 [b], valid positions of each
    input; None: all. A query always sees its own position, so that no softmax is empty.
    """
    near_mt = (distance_mt >= -before) & (distance_mt <= after)
    if lengths is None:
        return near_mt
    valid_bt = torch.arange(distance_mt.shape[1], device=lengths.device) < lengths[:, None]
    return (near_mt & (valid_bt[:, None] | (distance_mt == 0)))[:, None]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float,
    sinks: Tensor | None = None,
    beside: tuple[Tensor, Tensor, Tensor | None] | None = None,
) -> Tensor:
    """[r, h, s, d] over [r, kv_heads, c, d], with a boolean or additive mask; None: all are seen.

    `beside`: more keys and values [b, kv_heads, t, d] in the same softmax, with a boolean mask.
    """
    if not softcap and sinks is None and beside is None:
        shares_keys = query.shape[1] > key.shape[1]
        return scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale, enable_gqa=shares_keys
        )
    logits = _logits(query, key, mask, scale, softcap)
    if beside is None:
        return _mix(softmax_beside(logits, sinks), value)
    cross_key, cross_value, cross_mask = beside
    rows, batch = len(query), len(cross_key)
    # An input's rows are further queries of it: to repeat keys would copy the cache.
    folded = query.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)
    others = _logits(folded, cross_key, cross_mask, scale, softcap)
    others = others.unflatten(2, (rows // batch, -1)).transpose(1, 2).flatten(0, 1)
    weights = softmax_beside(torch.cat([logits, others], -1), sinks)
    own, others = weights.split([logits.shape[-1], others.shape[-1]], -1)
    others = others.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)
    mixed = _mix(others, cross_value).unflatten(2, (rows // batch, -1))
    return _mix(own, value) + mixed.transpose(1, 2).flatten(0, 1)


def _logits(
    query: Tensor, key: Tensor, mask: Tensor | None, scale: float, softcap: float
) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    # A key head's query heads are further queries of it: to repeat keys would copy the cache.
    folded = query.unflatten(1, (-1, groups)).flatten(2, 3)
    logits = (folded @ key.transpose(-1, -2) * scale).unflatten(2, (groups, -1)).flatten(1, 2)
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    if mask is None:
        return logits
    if mask.dtype == torch.bool:
        mask = torch.zeros((), device=mask.device).masked_fill(~mask, -torch.inf)
    return logits + mask


def _mix(weights: Tensor, value: Tensor) -> Tensor:
    groups = weights.shape[1] // value.shape[1]
    folded = weights.unflatten(1, (-1, groups)).flatten(2, 3)
    return (folded @ value).unflatten(2, (groups, -1)).flatten(1, 2)


def softmax_beside(logits_rhsc: Tensor, sinks: Tensor | None) -> Tensor:
    if sinks is None:
        return logits_rhsc.softmax(-1)
    beside = sinks[:, None, None].expand(*logits_rhsc.shape[:-1], 1)
    return torch.cat([logits_rhsc, beside], -1).softmax(-1)[..., :-1]
