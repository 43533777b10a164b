"""The attention operators that every model is built from.

`self_attention` writes new keys and values into a cache and attends to it, `cross_attention` reads
a cache that is complete, `encoder_attention` has no cache at all. They are custom operators
so that an exported program holds one node for each, which a lowering then replaces by what its
runtime has (see `kvcast.lowering.replace`); the kernels here are the eager ones.

The cache write is a declared mutation. An operator may not return its input, and returning a
fresh cache would copy all of it at every step; see ARCHITECTURE.md for what was tried.

Letters in shapes: r rows, b batch (rows is a multiple of it), s new positions, c capacity,
t source positions, h heads, d head_dim.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def _split_heads(flat_rsx: Tensor, head_dim: int) -> Tensor:
    return flat_rsx.unflatten(-1, (-1, head_dim))


@torch.library.custom_op("kvcast::self_attention", mutates_args=("key_cache", "value_cache"))
def self_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    lengths: Tensor,
    scale: float,
) -> Tensor:
    """Append `key` and `value` to a linear cache and attend causally to all that it then holds.

    Args:
        query: [r, s, heads * d].
        key: [r, s, kv_heads * d]; heads is a multiple of kv_heads.
        value: like `key`.
        key_cache: [r, kv_heads, c, d], written at slots lengths .. lengths + s - 1 of each row.
        value_cache: like `key_cache`.
        lengths: int32 [r], positions that each row held before this call.
        scale: factor on the products of queries and keys.

    Returns:
        [r, s, heads * d].

    """
    rows, new = query.shape[:2]
    head_dim = key_cache.shape[-1]
    slots_rs = lengths[:, None] + torch.arange(new, device=query.device)
    row_index = torch.arange(rows, device=query.device)[:, None]
    key_cache[row_index, :, slots_rs] = _split_heads(key, head_dim)
    value_cache[row_index, :, slots_rs] = _split_heads(value, head_dim)
    # Slots past the longest row hold nothing valid: not reading them keeps a step's cost at
    # what has been seen and not at the capacity.
    held = int(lengths.max()) + new
    visible_rsc = torch.arange(held, device=query.device) <= slots_rs[..., None]
    mixed = scaled_dot_product_attention(
        _split_heads(query, head_dim).transpose(1, 2),
        key_cache[:, :, :held],
        value_cache[:, :, :held],
        attn_mask=visible_rsc[:, None],
        scale=scale,
        enable_gqa=query.shape[-1] != key.shape[-1],
    )
    return mixed.transpose(1, 2).flatten(2)


@self_attention.register_fake
def _(
    query: Tensor,
    key: Tensor,  # noqa: ARG001
    value: Tensor,  # noqa: ARG001
    key_cache: Tensor,  # noqa: ARG001
    value_cache: Tensor,  # noqa: ARG001
    lengths: Tensor,  # noqa: ARG001
    scale: float,  # noqa: ARG001
) -> Tensor:
    return torch.empty_like(query)


@torch.library.custom_op("kvcast::cross_attention", mutates_args=())
def cross_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attend to complete keys and values, all of them visible to every query.

    Several rows may read one input: without a causal mask the order of queries is free, so the
    rows of an input fold into its query axis and the keys are never repeated.

    Args:
        query: [r, s, h * d], row i reading input i // (r // b).
        key: [b, h, t, d].
        value: [b, h, t, d].
        scale: factor on the products of queries and keys.

    Returns:
        [r, s, h * d].

    """
    batch, _, _, head_dim = key.shape
    folded_bqhd = _split_heads(query, head_dim).reshape(batch, -1, key.shape[1], head_dim)
    mixed = scaled_dot_product_attention(folded_bqhd.transpose(1, 2), key, value, scale=scale)
    return mixed.transpose(1, 2).reshape(query.shape)


@cross_attention.register_fake
def _(
    query: Tensor,
    key: Tensor,  # noqa: ARG001
    value: Tensor,  # noqa: ARG001
    scale: float,  # noqa: ARG001
) -> Tensor:
    return torch.empty_like(query)


@torch.library.custom_op("kvcast::encoder_attention", mutates_args=())
def encoder_attention(
    query: Tensor, key: Tensor, value: Tensor, heads: int, scale: float
) -> Tensor:
    """Attend from every position to every other, without a cache.

    Args:
        query: [b, t, heads * d].
        key: like `query`.
        value: like `query`.
        heads: number of heads.
        scale: factor on the products of queries and keys.

    Returns:
        [b, t, heads * d].

    """
    query, key, value = (
        _split_heads(flat, flat.shape[-1] // heads).transpose(1, 2) for flat in (query, key, value)
    )
    mixed = scaled_dot_product_attention(query, key, value, scale=scale)
    return mixed.transpose(1, 2).flatten(2)


@encoder_attention.register_fake
def _(
    query: Tensor,
    key: Tensor,  # noqa: ARG001
    value: Tensor,  # noqa: ARG001
    heads: int,  # noqa: ARG001
    scale: float,  # noqa: ARG001
) -> Tensor:
    return torch.empty_like(query)
