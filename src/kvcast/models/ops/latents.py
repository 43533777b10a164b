"""Attention to latents (`LatentAttention`), and the choice of positions (`PositionSelection`).

Letters in shapes: as there, and t positions held.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvcast.models.ops.attention_math import blocks_of_rows, rotate, split_heads, visible
from kvcast.models.ops.experts import highest
from kvcast.spec.program import LatentAttention, PositionSelection


@torch.library.custom_op("kvcast::latent_attention", mutates_args=("cache",))
def latent_attention(
    query: Tensor,  # [r, s, h * (n + p)]
    latent: Tensor | None,  # [r, s, rank]; None: the cache has the new positions
    key: Tensor | None,  # [r, s, p]; None: likewise, or p is 0
    cache: Tensor,  # [r, 1, c, rank + p], written at the new positions
    lengths: Tensor,  # int32 [r]
    key_b: Tensor,  # [h, n, rank]
    absorb: Tensor,  # [h, rank, n]
    value_b: Tensor,  # [h, v, rank]
    scale: float,
    cosines: Tensor | None = None,  # [positions, p / 2]; None: no rotation
    sines: Tensor | None = None,
    selected: Tensor | None = None,  # [r, s, most], positions to read, -1 for none; None: all
) -> Tensor:  # [r, s, h * v]
    """Append latents to a cache and attend to all of it, in the cheaper of two equal ways.

    Absorbed, the query is taken to the latents; expanded, keys and values are made of them. Which
    one depends on sizes of the model and the number of new positions alone.
    """
    positions_rs = lengths[:, None].long() + torch.arange(query.shape[1], device=query.device)
    plain, rank = key_b.shape[1:]
    rotated = cache.shape[-1] - rank
    query, turned = (
        split_heads(query, plain + rotated).transpose(1, 2).split([plain, rotated], dim=-1)
    )
    if cosines is not None and sines is not None:
        cosines_rsp, sines_rsp = cosines[positions_rs], sines[positions_rs]
        turned = rotate(turned, cosines_rsp[:, None], sines_rsp[:, None])
        key = None if key is None else rotate(key, cosines_rsp, sines_rsp)
    if latent is not None:
        row_index = torch.arange(len(cache), device=cache.device)[:, None]
        line = latent if key is None else torch.cat([latent, key], dim=-1)
        cache[row_index, 0, positions_rs] = line
    held = int(positions_rs.max()) + 1
    mask = visible(positions_rs, torch.arange(held, device=query.device)[None], 0)
    if selected is not None:
        mask = mask & _marked(selected, held)[:, None]
    lines, latents = cache[:, :, :held], cache[:, :, :held, :rank]
    if is_expanded(query.shape[2], key_b.shape, value_b.shape):
        keys = latents @ key_b.transpose(1, 2)
        shared = lines[..., rank:].expand(-1, len(key_b), -1, -1)
        keys, values = torch.cat([keys, shared], dim=-1), latents @ value_b.transpose(1, 2)
        query = torch.cat([query, turned], dim=-1)
        mixed = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
    else:
        query = torch.cat([query @ absorb.transpose(1, 2), turned], dim=-1)
        mixed = scaled_dot_product_attention(
            query, lines, latents, attn_mask=mask, scale=scale, enable_gqa=True
        )
        mixed = mixed @ value_b.transpose(1, 2)
    return mixed.transpose(1, 2).flatten(2)


def _marked(selected: Tensor, held: int) -> Tensor:
    """Mask [r, s, held] of selected positions."""
    marks = torch.zeros((*selected.shape[:2], held + 1), dtype=torch.bool, device=selected.device)
    return marks.scatter_(-1, selected.where(selected >= 0, held), True)[..., :held]


@torch.library.custom_op("kvcast::select_positions", mutates_args=("cache",))
def select_positions(
    query: Tensor,  # [r, s, g * e]
    key: Tensor,  # [r, s, e]
    weights: Tensor,  # [r, s, g]
    cache: Tensor,  # [r, 1, c, e], written at the new positions
    lengths: Tensor,  # int32 [r]
    most: int,
    cosines: Tensor | None = None,  # [positions, rotated / 2]
    sines: Tensor | None = None,
) -> Tensor:  # int64 [r, s, most], -1 for none
    """Append keys to a cache and select the positions that score highest (`PositionSelection`)."""
    positions_rs = lengths[:, None].long() + torch.arange(query.shape[1], device=query.device)
    query = split_heads(query, key.shape[-1])
    if cosines is not None and sines is not None:
        angles = cosines[positions_rs], sines[positions_rs]
        query = _turned(query, *(part[:, :, None] for part in angles))
        key = _turned(key, *angles)
    row_index = torch.arange(len(cache), device=cache.device)[:, None]
    cache[row_index, 0, positions_rs] = key
    held = int(positions_rs.max()) + 1
    products = (query @ cache[:, :, :held].transpose(2, 3)).relu()
    scores_rst = (weights[:, :, None] @ products)[:, :, 0]
    mask = visible(positions_rs, torch.arange(held, device=query.device)[None], 0)[:, 0]
    scores_rst = scores_rst.masked_fill(~mask, -torch.inf)
    best = highest(scores_rst, most)
    best = best.where(mask.gather(-1, best), -1)
    return torch.nn.functional.pad(best, (0, most - best.shape[-1]), value=-1)


@latent_attention.register_fake
def _(query: Tensor, *others: Any, **_options: Any) -> Tensor:
    heads, values, _rank = others[6].shape
    return query.new_empty((*query.shape[:2], heads * values))


@select_positions.register_fake
def _(query: Tensor, *others: Any, **_options: Any) -> Tensor:
    return query.new_empty((*query.shape[:2], others[4]), dtype=torch.int64)


def _turned(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    rotated = 2 * cosines.shape[-1]
    turned = rotate(heads[..., :rotated], cosines, sines)
    return torch.cat([turned, heads[..., rotated:]], dim=-1)


def is_expanded(new: int, keys: tuple[int, ...], values: tuple[int, ...]) -> bool:
    """Return whether to expand latents costs fewer multiplications, for many earlier positions."""
    (_, plain, rank), each = keys, values[1]
    return new * (2 * rank - plain - each) > (plain + each) * rank


def packed_latent_attention(
    call: LatentAttention[Any], rows: list[int], counts: list[int]
) -> Tensor:  # [n, h * v]
    """`latent_attention` for some rows of a batch, each with its own number of new positions.

    `rows` are those of the cache that take part, and `counts` their new positions, which are all in
    one row of the call's arguments; lengths are of all rows of the cache.
    """
    blocks = [
        latent_attention(
            *call._replace(
                query=_of_rows(call.query, span, new),
                latent=_of_rows(call.latent, span, new),
                key=_of_rows(call.key, span, new),
                cache=call.cache[row_span],
                lengths=call.lengths[row_span],
                selected=_of_rows(call.selected, span, new),
            )
        ).flatten(0, 1)
        for row_span, span, new in blocks_of_rows(rows, counts)
    ]
    return torch.cat(blocks)


def packed_select_positions(
    call: PositionSelection[Any], rows: list[int], counts: list[int]
) -> Tensor:  # [n, most]
    """`select_positions`, likewise."""
    blocks = [
        select_positions(
            *call._replace(
                query=_of_rows(call.query, span, new),
                key=_of_rows(call.key, span, new),
                weights=_of_rows(call.weights, span, new),
                cache=call.cache[row_span],
                lengths=call.lengths[row_span],
            )
        ).flatten(0, 1)
        for row_span, span, new in blocks_of_rows(rows, counts)
    ]
    return torch.cat(blocks)


def _of_rows(packed: Tensor | None, span: slice, new: int) -> Tensor | None:
    return None if packed is None else packed[0, span].unflatten(0, (-1, new))
