"""The attention operators that every model is built from.

`self_attention` writes new keys and values into a cache and attends to it. `packed_self_attention`
does so for rows with different numbers of new tokens. `cross_attention` reads a complete cache, and
`encoder_attention` has none. They are custom operators so that each is one node in an exported
program, which a lowering replaces with its runtime's own operators
(`kvcast.runtimes.lowering.torch_export`). The kernels here are the eager ones.

The cache write is a declared mutation. An operator may not return its input, returning a new cache
would copy all of it at every step (1 GB for a 7B model), and with a separate `index_put_` a
lowering would have to find pairs of nodes that belong together. A declared mutation is one node as
long as nothing functionalises the graph, so a lowering replaces nodes before that happens.

A position's slot is the position modulo the capacity (`kvcast.spec.ring` works an example). A
linear cache never reaches its capacity; a ring's capacity is its window or more. The lengths alone
determine what a slot holds, so masks need nothing else.

Letters in shapes: r rows, b batch (rows is a multiple of it), s new positions, n new positions of
all rows, c capacity, t source positions, h heads, d head_dim.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvcast.models.ops.attention_math import (
    attend,
    blocks_of_rows,
    held_positions,
    padding_mask,
    rotate,
    split_heads,
    visible,
)


@torch.library.custom_op("kvcast::self_attention", mutates_args=("key_cache", "value_cache"))
def self_attention(
    query: Tensor,  # [r, s, heads * d]
    key: Tensor,  # [r, s, kv_heads * d]; heads is a multiple of kv_heads
    value: Tensor,  # like `key`
    # [r, kv_heads, c, d], written at the slots of positions lengths .. lengths + s - 1 of each row.
    # Keys are stored after rotation
    key_cache: Tensor,
    value_cache: Tensor,  # like `key_cache`
    lengths: Tensor,  # int32 [r], positions in each row's cache before this call
    scale: float,  # factor on the products of queries and keys
    window: int = 0,  # the query's position included; 0: all, with c >= the longest row
    softcap: float = 0.0,  # c in c tanh(x / c), applied to the scaled products; 0: none
    cosines: Tensor | None = None,  # [positions, d / 2], for rotary embeddings; None: no rotation
    sines: Tensor | None = None,  # like `cosines`
    bias: Tensor | None = None,  # [r or 1, heads or 1, s, c], added to products; linear caches only
    # whether a position sees only positions up to itself. If not, it sees all of its row, including
    # this call's positions
    causal: bool = True,
    sinks: Tensor | None = None,  # [heads], a logit in each head's softmax without a value
    # [b, kv_heads, t, d], keys of encoded inputs, which all queries see in one softmax with the
    # cache. Row i reads input i // (r // b)
    cross_key: Tensor | None = None,
    cross_value: Tensor | None = None,  # like `cross_key`
    cross_lengths: Tensor | None = None,  # int32 [b], valid positions of each; None: all
) -> Tensor:  # [r, s, heads * d]
    """Append `key` and `value` to a cache and attend to all of it."""
    beside = None
    if cross_key is not None and cross_value is not None:
        beside = cross_key, cross_value, padding_mask(cross_key, cross_lengths)
    head_dim = key_cache.shape[-1]
    query, key, value = (split_heads(x, head_dim).transpose(1, 2) for x in (query, key, value))
    positions_rs = lengths[:, None].long() + torch.arange(query.shape[2], device=query.device)
    if cosines is not None and sines is not None:
        angles = cosines[positions_rs][:, None], sines[positions_rs][:, None]
        query, key = rotate(query, *angles), rotate(key, *angles)
    capacity, new = key_cache.shape[2], query.shape[2]
    if capacity >= window + new - 1 or int(positions_rs.max()) < capacity:
        # No new position evicts one that a query sees, so reading the cache is enough.
        _write(key_cache, value_cache, key, value, positions_rs)
        last_r = positions_rs[:, -1]
        # Slots past the longest row are not valid. Skipping them makes a step's cost depend on the
        # length so far and not on the capacity.
        held = min(int(last_r.max()) + 1, capacity)
        keys, values = key_cache[:, :, :held], value_cache[:, :, :held]
        positions_rc = held_positions(last_r, capacity, held)
        seen_from_rs = positions_rs if causal else last_r[:, None].expand_as(positions_rs)
        mask = visible(seen_from_rs, positions_rc, window)
        if bias is not None:
            mask = torch.where(mask, bias[..., :held], -torch.inf)
        mixed = attend(query, keys, values, mask, scale, softcap, sinks, beside)
    else:
        # Attend to the old ring and the new positions side by side, then store the latest ones.
        keys, values = torch.cat([key_cache, key], dim=2), torch.cat([value_cache, value], dim=2)
        old_rc = held_positions(positions_rs[:, 0] - 1, capacity, capacity)
        positions_rc = torch.cat([old_rc, positions_rs], dim=1)
        mask = visible(positions_rs, positions_rc, window)
        mixed = attend(query, keys, values, mask, scale, softcap, sinks, beside)
        kept = slice(-capacity, None)
        _write(key_cache, value_cache, key[:, :, kept], value[:, :, kept], positions_rs[:, kept])
    return mixed.transpose(1, 2).flatten(2)


@torch.library.custom_op("kvcast::packed_self_attention", mutates_args=("key_cache", "value_cache"))
def packed_self_attention(
    query: Tensor,  # [n, heads * d]
    key: Tensor,  # [n, kv_heads * d]
    value: Tensor,  # like `key`
    key_cache: Tensor,  # [r, kv_heads, c, d]
    value_cache: Tensor,  # like `key_cache`
    rows: list[int],  # the rows of the caches that take part, each once
    counts: list[int],  # number of new positions of each; they sum to n
    lengths: Tensor,  # int32 [r], for all rows of the caches
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    cosines: Tensor | None = None,
    sines: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:  # [n, heads * d]
    """`self_attention` for some rows of a batch, each with its own number of new positions.

    The new positions of all rows are concatenated. The mask over them is block-diagonal, so each
    block is computed separately and nothing outside the blocks is touched.
    """
    mixed = torch.empty_like(query)
    for row_span, span, new in blocks_of_rows(rows, counts):
        block = self_attention(
            *(x[span].unflatten(0, (-1, new)) for x in (query, key, value)),
            key_cache[row_span],
            value_cache[row_span],
            lengths[row_span],
            scale,
            window,
            softcap,
            cosines,
            sines,
            sinks=sinks,
        )
        mixed[span] = block.flatten(0, 1)
    return mixed


def _write(
    key_cache: Tensor, value_cache: Tensor, key: Tensor, value: Tensor, positions_rs: Tensor
) -> None:
    slots_rs = positions_rs % key_cache.shape[2]
    row_index = torch.arange(len(slots_rs), device=slots_rs.device)[:, None]
    key_cache[row_index, :, slots_rs] = key.transpose(1, 2)
    value_cache[row_index, :, slots_rs] = value.transpose(1, 2)


@torch.library.custom_op("kvcast::shared_attention", mutates_args=())
def shared_attention(
    query: Tensor,  # [r, a, heads * d], of some of the new positions
    key_cache: Tensor,  # [r, kv_heads, c, d], position p in slot p
    value_cache: Tensor,  # like `key_cache`
    lengths: Tensor,  # int32 [r], positions in each row's cache before this call
    offsets: Tensor,  # int64 [a], the new positions that queries are of
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    cosines: Tensor | None = None,
    sines: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:  # [r, a, heads * d]
    """Attend to a cache that holds this call's new positions already."""
    query = split_heads(query, key_cache.shape[-1]).transpose(1, 2)
    positions_ra = lengths[:, None].long() + offsets
    if cosines is not None and sines is not None:
        query = rotate(query, cosines[positions_ra][:, None], sines[positions_ra][:, None])
    held = min(int(positions_ra.max()) + 1, key_cache.shape[2])
    keys, values = key_cache[:, :, :held], value_cache[:, :, :held]
    mask = visible(positions_ra, torch.arange(held, device=query.device)[None], window)
    return attend(query, keys, values, mask, scale, softcap, sinks).transpose(1, 2).flatten(2)


@torch.library.custom_op("kvcast::cross_attention", mutates_args=())
def cross_attention(
    query: Tensor,  # [r, s, h * d], row i reading input i // (r // b)
    key: Tensor,  # [b, kv_heads, t, d]; h is a multiple of kv_heads
    value: Tensor,  # like `key`
    scale: float,  # factor on the products of queries and keys
    lengths: Tensor | None = None,  # int32 [b], valid positions of each input; None: all
    bias: Tensor | None = None,  # [r, h, s, t], added to the scaled products
    softcap: float = 0.0,  # c in c tanh(x / c), applied to the scaled products; 0: none
) -> Tensor:  # [r, s, h * d]
    """Attend to complete keys and values without a mask.

    Several rows may read one input. Without a causal mask the order of queries does not matter, so
    an input's rows fold into its query axis and keys are never repeated.
    """
    batch, _, _, head_dim = key.shape
    heads = query.shape[-1] // head_dim
    folded_bqhd = split_heads(query, head_dim).reshape(batch, -1, heads, head_dim)
    mask = padding_mask(key, lengths)
    if bias is not None:
        folded_bhqt = bias.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)
        mask = folded_bhqt if mask is None else torch.where(mask, folded_bhqt, -torch.inf)
    folded_bhqd = folded_bqhd.transpose(1, 2)
    mixed = attend(folded_bhqd, key, value, mask, scale, softcap)
    return mixed.transpose(1, 2).reshape(query.shape)


@torch.library.custom_op("kvcast::encoder_attention", mutates_args=())
def encoder_attention(
    query: Tensor,  # [b, t, heads * d]
    key: Tensor,  # like `query`
    value: Tensor,  # like `query`
    heads: int,  # number of heads
    scale: float,  # factor on the products of queries and keys
    lengths: Tensor | None = None,  # int32 [b], valid positions, 1 or more; others are garbage
    bias: Tensor | None = None,  # [b or 1, heads, t, t], added to the scaled products
    cosines: Tensor | None = None,  # [t or more, d / 2], for rotary embeddings; None: no rotation
    sines: Tensor | None = None,  # like `cosines`
) -> Tensor:  # [b, t, heads * d]
    """Attend from every position to all positions, without a cache."""
    query, key, value = (
        split_heads(flat, flat.shape[-1] // heads).transpose(1, 2) for flat in (query, key, value)
    )
    if cosines is not None and sines is not None:
        angles = cosines[: query.shape[2]], sines[: query.shape[2]]
        query, key = rotate(query, *angles), rotate(key, *angles)
    mask = padding_mask(key, lengths)
    if bias is not None:
        mask = bias if mask is None else torch.where(mask, bias, -torch.inf)
    mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return mixed.transpose(1, 2).flatten(2)


def _like_query(query: Tensor, *_arguments: Any, **_options: Any) -> Tensor:
    """Return an empty result shaped like the query: the fake kernel for tracing."""
    return torch.empty_like(query)


for _operator in (
    self_attention,
    packed_self_attention,
    shared_attention,
    cross_attention,
    encoder_attention,
):
    _operator.register_fake(_like_query)
