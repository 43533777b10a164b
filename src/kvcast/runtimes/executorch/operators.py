"""kvcast's operators in terms of ExecuTorch's, for one row at a time.

`llama::update_cache` writes new keys and values into a self cache in place, and
`llama::custom_sdpa` attends to that cache without reading past its last position; both come with
ExecuTorch's wheel. Their kernels take one start position and one mask for all rows and heads. So
each call processes one row, and attention whose bias differs between heads uses matrix products.

Self caches have the shape [heads, c, 1, d] here, with heads where the kernels expect rows. A head's
positions are then contiguous and read at the speed of memory (a third faster than interleaved by
position), and matrix products need no transposed cache.

Encoders and cross-attention, whose caches do not grow, are products and a softmax on XNNPACK. It
uses all threads and the processor's widest instructions, while `custom_sdpa` uses one thread and
scalar exponentials: 23 ms instead of 77 for a layer of Whisper tiny's encoder. Cross caches are
keys [heads, d, t] and values [heads, t, d], ready to be the products' second factors, in fp16 where
weights are quantized. One row needs no padding, so the `lengths` of sources are not used.

Letters in shapes as in `kvcast.models.ops.attention`; k: key heads, g: query heads for each.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu

from kvcast.errors import KvcastError
from kvcast.models.ops.attention import cross_attention, encoder_attention, self_attention
from kvcast.models.ops.experts import mixture_of_experts
from kvcast.models.ops.states import short_convolution
from kvcast.runtimes.executorch.methods import quiet
from kvcast.runtimes.lowering.torch_export import Table, taking
from kvcast.spec.program import SelfAttention

with quiet():
    from executorch.extension.llm.custom_ops import custom_ops


def _self_attention(call: SelfAttention[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    key_cache, value_cache = call.key_cache, call.value_cache
    if call.softcap:
        raise KvcastError("ExecuTorch's attention has no soft cap: use --runtime onnx or eager")
    query, key, value = (_by_head(flat, key_cache) for flat in call[:3])
    positions_s = call.lengths + torch.arange(query.shape[1])
    if call.cosines is not None and call.sines is not None:
        angles = call.cosines[positions_s][:, None], call.sines[positions_s][:, None]
        query, key = _rotated(query, *angles), _rotated(key, *angles)
    if call.window:
        mixed = _attend_to_ring(
            query, key, value, key_cache, value_cache, positions_s, call.window, call.scale
        )
        return _side_by_side(mixed), key_cache, value_cache
    start = _append(key, key_cache, call.lengths)
    _append(value, value_cache, call.lengths)
    if call.bias is not None and call.bias.shape[1] > 1:
        mask_hsc = _causal(call.bias[0], positions_s) if call.causal else call.bias[0]
        mixed = _attend_with_bias(query, key_cache, value_cache, mask_hsc, call.scale)
    else:
        mask_sc = None if call.bias is None else call.bias[0, 0]
        by_start = call.causal and mask_sc is None
        mixed = torch.ops.llama.custom_sdpa(
            query,
            key_cache,
            value_cache,
            start if by_start else 0,
            mask_sc,
            0.0,
            by_start,
            call.scale,
        )
    return _side_by_side(mixed), key_cache, value_cache


def _by_head(flat_1sx: Tensor, cache_kc1d: Tensor) -> Tensor:
    heads, head_dim = cache_kc1d.shape[0], cache_kc1d.shape[-1]
    return flat_1sx.flatten(0, 1).unflatten(-1, (heads, -1, head_dim)).transpose(0, 1)


def _side_by_side(mixed_ksgd: Tensor) -> Tensor:
    return mixed_ksgd.transpose(0, 1).flatten(1).unflatten(0, (1, -1))


def _append(new: Tensor, cache: Tensor, lengths: Tensor) -> Any:
    """Append `new` [k, s, 1, d] to the cache; return its length before."""
    start: Any = lengths[0].item()
    torch._check(start >= 0)
    torch._check(start < cache.shape[1])
    torch._check(start + new.shape[1] <= cache.shape[1])
    torch.ops.llama.update_cache(new, cache, start)
    return start


def _attend_to_ring(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    positions_s: Tensor,
    window: int,
    scale: float,
) -> Tensor:
    """Write first, then read; this needs a capacity of at least window + s - 1."""
    capacity = key_cache.shape[1]
    slots_ks = (positions_s % capacity).expand(len(key), -1)
    torch.ops.llama.update_cache_with_indices(key, key_cache, 0, slots_ks)
    torch.ops.llama.update_cache_with_indices(value, value_cache, 0, slots_ks)
    last = positions_s[-1:]
    held_c = last - (last - torch.arange(capacity)) % capacity
    distance_sc = positions_s[:, None] - held_c
    visible_sc = (distance_sc >= 0) & (distance_sc < window) & (held_c >= 0)
    mask_sc = torch.where(visible_sc, 0.0, -torch.inf)
    return torch.ops.llama.custom_sdpa(query, key_cache, value_cache, 0, mask_sc, 0.0, False, scale)


def _causal(bias_hsc: Tensor, positions_s: Tensor) -> Tensor:
    slots_c = torch.arange(bias_hsc.shape[-1])
    return torch.where(slots_c <= positions_s[:, None], bias_hsc, -torch.inf)


def _attend_with_bias(
    query_hs1d: Tensor, key_hc1d: Tensor, value_hc1d: Tensor, mask_hsc: Tensor, scale: float
) -> Tensor:
    """[h, s, 1, d]. Products are [h, c, s] at first, so that they, not the keys, are transposed."""
    # Reshaped as views: squeeze would copy whole caches.
    heads, head_dim = key_hc1d.shape[0], key_hc1d.shape[-1]
    key_hcd, value_hcd = (x.reshape(heads, -1, head_dim) for x in (key_hc1d, value_hc1d))
    query_hds = query_hs1d.squeeze(2).transpose(1, 2) * scale
    products_hsc = torch.bmm(key_hcd, query_hds).transpose(1, 2)
    weights_hsc = (products_hsc + mask_hsc).softmax(-1)
    return torch.bmm(weights_hsc, value_hcd).unsqueeze(2)


def _rotated(heads_ksgd: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = heads_ksgd.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)


def _cross_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    lengths: Tensor | None = None,  # noqa: ARG001
    bias: Tensor | None = None,
) -> Tensor:
    query_hsd = _heads_first(query, len(key))
    bias_hst = None if bias is None else bias[0]
    mixed_hsd = _attend(query_hsd, key, value, bias_hst, scale=scale)
    return _side_by_side(mixed_hsd.unsqueeze(2))


def _encoder_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    scale: float,
    lengths: Tensor | None = None,  # noqa: ARG001
    bias: Tensor | None = None,
) -> Tensor:
    query_htd, key_htd, value_htd = (_heads_first(flat, heads) for flat in (query, key, value))
    parts = [query_htd, key_htd.transpose(1, 2), value_htd]
    if bias is not None:
        parts.append(bias[0])
    # One head at a time: scores of t by t positions dominate an encoder's peak memory.
    each = zip(*(part.split(1) for part in parts), strict=True)
    mixed_htd = torch.cat([_attend(*of_head, scale=scale) for of_head in each])
    return _side_by_side(mixed_htd.unsqueeze(2))


def _heads_first(flat_1sx: Tensor, heads: int) -> Tensor:
    return flat_1sx.flatten(0, 1).unflatten(-1, (heads, -1)).transpose(0, 1)


def _attend(
    query_hsd: Tensor,
    key_hdt: Tensor,
    value_htd: Tensor,
    bias_hst: Tensor | None = None,
    *,
    scale: float,
) -> Tensor:
    """[h, s, d] in the query's dtype, with products in the keys' dtype."""
    products_hst = torch.bmm((query_hsd * scale).to(key_hdt.dtype), key_hdt)
    if bias_hst is not None:
        products_hst = products_hst + bias_hst.to(key_hdt.dtype)
    return torch.bmm(products_hst.softmax(-1), value_htd).to(query_hsd.dtype)


def _short_convolution(
    x: Tensor, kernel: Tensor, bias: Tensor | None, past: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """As in `kvcast.models.ops.states`, over inputs [1, c, 1, w]."""
    length, new, slots = len(kernel), x.shape[1], past.shape[1]
    before_l = lengths + torch.arange(1 - length, 0)
    held_lw = past.reshape(slots, -1)[before_l % slots]
    inputs = torch.cat([torch.where((before_l >= 0)[:, None], held_lw, 0.0), x[0]])
    mixed = torch.zeros_like(x) if bias is None else bias.expand_as(x)
    for i, factors in enumerate(kernel):
        mixed = mixed + factors * inputs.narrow(0, i, new)
    new_s = torch.arange(new)
    latest_s = length - 1 + new_s + (new - 1 - new_s) // slots * slots
    slots_1s = ((lengths + new_s) % slots)[None]
    kept_1s1w = inputs[latest_s][None, :, None]
    torch.ops.llama.update_cache_with_indices(kept_1s1w, past, 0, slots_1s)
    return mixed, past


def _mixture_of_experts(*_: object) -> Tensor:
    raise KvcastError("ExecuTorch cannot run mixtures of experts: use --runtime onnx or eager")


def _gelu(hidden: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return gelu(hidden)
    # XNNPACK ignores `approximate`, which gives errors of up to 4e-4.
    inner = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden * hidden * hidden)
    return 0.5 * hidden * (1 + torch.tanh(inner))


TABLE: Table = {
    torch.ops.aten.gelu.default: _gelu,
    torch.ops.kvcast.self_attention.default: taking(SelfAttention, _self_attention),
    torch.ops.kvcast.cross_attention.default: _cross_attention,
    torch.ops.kvcast.encoder_attention.default: _encoder_attention,
    torch.ops.kvcast.short_convolution.default: _short_convolution,
    torch.ops.kvcast.mixture_of_experts.default: _mixture_of_experts,
}
# Importing these modules registers the operators; naming them keeps that visible.
OPERATORS = (
    self_attention,
    cross_attention,
    encoder_attention,
    short_convolution,
    mixture_of_experts,
    custom_ops,
)
