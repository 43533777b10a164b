"""kvcast's operators in terms of plain PyTorch ones, which AOTInductor compiles.

A cache is written by `index_put_` on the caller's own buffer: tracing turns that into a value
and a copy back, and Inductor fuses these into one write in place again. Unlike the eager kernels,
these never depend on data, so programs have no branches: each call passes how many slots to read,
and a ring has slots for all new positions in addition to the positions they see. A view of the
first slots would need fixed strides, so the extra inputs `slots_linear` and `slots_ring` pass how
many count.

A step's attention is sums that Inductor turns into loops; products would first copy the slots that
they read and rearrange a cross cache. For more than 16 tokens `prefill`, the same program over the
same weights, uses two products. An encoder attends a few heads at a time, because PyTorch's fused
kernel does not use bf16 without matrix units. A softmax divides after it has mixed the values, so
nothing of the products' size is stored in fp32. Without quantization every expert sees every token,
as a graph has no sizes that depend on data.

Letters in shapes: see `kvcast.models.ops.attention`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.functional import linear, scaled_dot_product_attention

from kvcast.errors import KvcastError
from kvcast.models.ops.attention import cross_attention, encoder_attention, self_attention
from kvcast.models.ops.attention_math import (
    held_positions,
    padding_mask,
    rotate,
    split_heads,
    visible,
)
from kvcast.models.ops.experts import apply_gate, mixture_of_experts, route
from kvcast.models.ops.states import convolve_and_keep, short_convolution
from kvcast.runtimes.aoti import packed
from kvcast.runtimes.lowering.torch_export import Table, taking
from kvcast.spec.program import SelfAttention

Attend: TypeAlias = Callable[..., Tensor]
"""(query, key, value, mask, scale[, softcap]) to mixed values, all [rows, heads, positions, d]."""
# An encoder's heads attend in this many groups.
_PARTS = 8


@dataclass(frozen=True)
class _SharedByLayers:
    slots: Mapping[str, int]
    masks: dict[tuple[int, bool], Tensor] = field(default_factory=dict)


_CALL: ContextVar[_SharedByLayers] = ContextVar("call")


@contextmanager
def reading(slots: Mapping[str, int]) -> Iterator[None]:
    """Set how many leading slots self-attention reads of each kind of cache, for one call."""
    token = _CALL.set(_SharedByLayers(slots))
    try:
        yield
    finally:
        _CALL.reset(token)


def _self_attention(
    call: SelfAttention[Tensor], *, attend: Attend
) -> tuple[Tensor, Tensor, Tensor]:
    if call.sinks is not None:
        raise KvcastError("AOTInductor has no attention with sinks: use another runtime")
    key_cache, value_cache = call.key_cache, call.value_cache
    head_dim, capacity, dtype = key_cache.shape[-1], key_cache.shape[2], key_cache.dtype
    query, key, value = (split_heads(x, head_dim).transpose(1, 2) for x in call[:3])
    positions_rs = call.lengths[:, None].long() + torch.arange(query.shape[2], device=query.device)
    if call.cosines is not None and call.sines is not None:
        angles = call.cosines[positions_rs][:, None], call.sines[positions_rs][:, None]
        query, key = rotate(query, *angles), rotate(key, *angles)
    row_index = torch.arange(query.shape[0], device=query.device)[:, None]
    slots_rs = positions_rs % capacity
    key_cache[row_index, :, slots_rs] = key.transpose(1, 2).to(dtype)
    value_cache[row_index, :, slots_rs] = value.transpose(1, 2).to(dtype)
    held = _CALL.get().slots["ring" if call.window else "linear"]
    torch._check(held <= capacity)  # type: ignore[no-untyped-call]
    keys, values = (cache.narrow(2, 0, held) for cache in (key_cache, value_cache))
    mask = _self_mask(positions_rs, capacity, held, call.window, call.causal)
    if call.bias is not None:
        mask = mask + call.bias.narrow(3, 0, held)
    mixed = attend(query.to(dtype), keys, values, mask, call.scale, call.softcap)
    return mixed.to(query.dtype).transpose(1, 2).flatten(2), key_cache, value_cache


def _self_mask(positions_rs: Tensor, capacity: int, held: int, window: int, causal: bool) -> Tensor:
    """Return an additive mask [r, 1, s, held], shared by all layers of a call."""
    masks = _CALL.get().masks
    if (window, causal) not in masks:
        last_r = positions_rs[:, -1]
        positions_rc = held_positions(last_r, capacity, held)
        seen_from_rs = positions_rs if causal else last_r[:, None].expand_as(positions_rs)
        seen_rsc = visible(seen_from_rs, positions_rc, window).squeeze(1)
        masks[window, causal] = kept(torch.where(seen_rsc, 0.0, -torch.inf)).unsqueeze(1)
    return masks[window, causal]


def kept(tensor: Tensor) -> Tensor:
    """Return the same tensor, stored once; Inductor recomputes all that is not marked `kept`.

    Only the last axis may have size 1: Inductor orders axes by their strides and confuses two that
    are equal, so the last axis would no longer be contiguous.
    """
    tensor = tensor.contiguous()
    return torch.ops.prims.copy_strided(tensor, tensor.stride())  # type: ignore[no-any-return]


def _attend_by_products(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float = 0.0,
) -> Tensor:
    """Attend with [r, h, s, d] to [r, kv_heads, c, d], with an additive mask [r, 1 or h, s, c].

    PyTorch's fused kernel is slow for single queries below fp32: with 1,500 keys it takes eight
    times as long as two matrix products. So those use products, and queries that share keys fold
    into one axis, so keys are never repeated.
    """
    rows, heads, new, head_dim = query.shape
    kv_heads, held = key.shape[1:3]
    groups = heads // kv_heads
    if not softcap and key.dtype == torch.float32:
        return scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale, enable_gqa=groups > 1
        )
    folded = query.reshape(rows, kv_heads, groups * new, head_dim)
    products = (folded @ key.transpose(-1, -2)).float().view(rows, kv_heads, groups, new, held)
    weights, sums = _weights(_logits(products, mask, scale, softcap), value.dtype)
    mixed = weights.view(*folded.shape[:3], held) @ value
    return (mixed.view(rows, kv_heads, groups, new, head_dim) / sums).view(query.shape)


def _attend_by_sums(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float = 0.0,
) -> Tensor:
    """As `_attend_by_products`, for few queries: one pass over the keys and one over the values.

    Inductor turns this into loops that read the cache in place, while a matrix product first copies
    the slots that it reads from a larger cache.
    """
    rows, heads, new, head_dim = query.shape
    kv_heads, held = key.shape[1:3]
    shape = (rows, kv_heads, heads // kv_heads, new, held, head_dim)
    grouped = kept(query).view(*shape[:4], 1, head_dim).float().expand(shape)
    products = (grouped * key[:, :, None, None].float().expand(shape)).sum(-1)
    weights, sums = _weights(_logits(products, mask, scale, softcap), torch.float32)
    mixed = (weights[..., None] * value[:, :, None, None].float().expand(shape)).sum(-2)
    return (mixed / sums).view(query.shape)


def _logits(products: Tensor, mask: Tensor | None, scale: float, softcap: float) -> Tensor:
    logits = products * scale
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    if mask is None:
        return logits
    per_group = products.shape[2] if mask.shape[1] > 1 else 1
    return logits + mask.unflatten(1, (-1, per_group))  # type: ignore[no-untyped-call, no-any-return]


def _weights(logits: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return softmax's numerators in `dtype`, and the sums by which to divide the mixed values.

    Dividing last means that nothing of the logits' size is stored in fp32, which alone took twice
    as long as all of softmax takes now.
    """
    exponents = logits - logits.amax(-1, keepdim=True)
    if dtype == torch.float16:
        # Before the division, mixed values may overflow fp16.
        exponents = exponents - exponents.exp().sum(-1, keepdim=True).log()
    weights = exponents.exp().to(dtype)
    return weights, weights.float().sum(-1, keepdim=True)


def _cross_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    attend: Attend,
) -> Tensor:
    rows, new, _ = query.shape
    batch, heads, positions, head_dim = key.shape
    each = rows // batch
    torch._check(rows == batch * each)  # type: ignore[no-untyped-call]
    folded_bqhd = query.view(batch, each * new, heads, head_dim)
    mask = padding_mask(key, lengths)
    if mask is not None:
        summands: Tensor | float = 0.0
        if bias is not None:
            by_input_bhest = bias.view(batch, each, heads, new, positions).transpose(1, 2)
            summands = by_input_bhest.reshape(batch, heads, each * new, positions)
        mask = torch.where(mask, summands, -torch.inf).to(key.dtype)
    mixed = attend(folded_bqhd.transpose(1, 2).to(key.dtype), key, value, mask, scale)
    return mixed.to(query.dtype).transpose(1, 2).reshape(query.shape)


def _encoder_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    scale: float,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype,
    attend: Attend,
) -> Tensor:
    result = query.dtype
    query, key, value = (
        split_heads(flat, flat.shape[-1] // heads).transpose(1, 2).to(dtype)
        for flat in (query, key, value)
    )
    mask = padding_mask(key, lengths)
    if mask is not None:
        mask = torch.where(mask, 0.0 if bias is None else bias, -torch.inf).to(dtype)
    mixed = attend(query, key, value, mask, scale)
    return mixed.to(result).transpose(1, 2).flatten(2)


def _attend_fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


def _attend_in_parts(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """As `_attend_fused`, some heads at a time, so that attention weights stay in a core's cache.

    On a processor without matrix units the fused kernel makes no use of bf16 dot products: with
    1,500 positions it takes 2.4 times as long.
    """
    each = -(-query.shape[1] // _PARTS)
    mixed = []
    for first in range(0, query.shape[1], each):
        here = slice(first, first + each)
        masked = mask if mask is None or mask.shape[1] == 1 else mask[:, here]
        heads = query[:, here], key[:, here], value[:, here]
        mixed.append(_attend_by_products(*heads, masked, scale))
    return torch.cat(mixed, 1)


def _short_convolution(
    x: Tensor, kernel: Tensor, bias: Tensor | None, past: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    return convolve_and_keep(x, kernel, bias, past, lengths), past


def _mixture_of_experts(
    hidden: Tensor,
    router_logits: Tensor,
    gate_up: Tensor,
    down: Tensor,
    per_token: int,
    normalised: bool = True,
    alpha: float = 0.0,
    limit: float = 0.0,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    activation: str = "silu",
    scales: Tensor | None = None,
    score: str = "softmax",
    choice_bias: Tensor | None = None,
    groups: list[int] | None = None,
    epsilon: float = 0.0,
    scale: float = 1.0,
) -> Tensor:
    weights_nk, chosen_nk = route(
        router_logits, per_token, normalised, scales, score, choice_bias, groups, epsilon, scale
    )
    weights_ne = torch.zeros_like(router_logits).scatter(-1, chosen_nk, weights_nk)
    mixed = torch.zeros_like(hidden)
    for expert in range(gate_up.shape[0]):
        biases = [None if b is None else b[expert] for b in (gate_up_bias, down_bias)]
        inner = apply_gate(linear(hidden, gate_up[expert], biases[0]), alpha, limit, activation)
        answer = linear(inner, down[expert], biases[1])
        mixed = mixed + weights_ne[:, expert, None] * answer
    return mixed


def mix_routed(
    hidden: Tensor, logits: Tensor, gate_up: Tensor, down: Tensor, each: int, **routing: Any
) -> Tensor:
    """As `mix`, with the weights that `route` returns.

    The operator's are the softmax over the highest logits: of logarithms, each over their sum.
    """
    weights, chosen = route(logits, each, **routing)
    logarithms = torch.full_like(logits, -torch.inf).scatter(-1, chosen, weights.log())
    mixed = packed.mix(hidden, logarithms, gate_up, down, each)
    return mixed * weights.sum(-1, keepdim=True)


def multiply_by_onednn(module: GraphModule) -> None:
    """Route the remaining fp32 GEMMs from MKL to oneDNN, in place.

    On processors that are not Intel's, MKL takes twice as long for many rows, and 2.4 times as long
    for one row by a large matrix. On Intel's, both are fast.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default):
        hidden, weight, bias = (*node.args, None)[:3]
        node.target = torch.ops.mkldnn._linear_pointwise.default
        node.args = (hidden, weight, bias, "none", [], "")
    module.recompile()


def table(dtype: torch.dtype, *, few: bool = False, device: str = "cpu") -> Table:
    """Return the function that replaces each operator.

    `dtype` is of attention without a cache (caches have their own); `few` optimizes for steps of
    few tokens.
    """
    reduced = dtype != torch.float32 and device == "cpu"
    cached = _attend_by_sums if few and reduced else _attend_by_products
    encode = _attend_in_parts if reduced else _attend_fused
    return {
        torch.ops.kvcast.self_attention.default: taking(
            SelfAttention, _given(_self_attention, attend=cached)
        ),
        torch.ops.kvcast.cross_attention.default: _given(_cross_attention, attend=cached),
        torch.ops.kvcast.encoder_attention.default: _given(
            _encoder_attention, dtype=dtype, attend=encode
        ),
        torch.ops.kvcast.short_convolution.default: _short_convolution,
        torch.ops.kvcast.mixture_of_experts.default: _mixture_of_experts,
    }


def _given(function: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
    return update_wrapper(partial(function, **arguments), function)


# Importing the module registers the operators; naming them keeps that visible.
OPERATORS = (
    self_attention,
    cross_attention,
    encoder_attention,
    short_convolution,
    mixture_of_experts,
)
