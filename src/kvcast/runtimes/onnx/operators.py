"""kvcast's operators in terms of ONNX Runtime's.

`com.microsoft.GroupQueryAttention` appends to a cache and attends to it; where past and present
are bound to the same buffer, it writes only the new positions. `com.microsoft.MultiHeadAttention`
reads complete keys and values. Knows no model.
"""

from typing import Any

import torch
from torch import Tensor
from torch.onnx import ops as onnx_ops

from kvcast.models.ops.attention import cross_attention, encoder_attention, self_attention
from kvcast.models.ops.experts import mixture_of_experts
from kvcast.runtimes.lowering.replace import Table, taking
from kvcast.spec.self_attention import SelfAttention

OPSET = 21
_CONTRIB = 1  # version of the com.microsoft domain


def _self_attention(call: SelfAttention[Tensor]) -> tuple[Tensor, ...]:
    new = call.query.shape[1]
    head_dim = call.key_cache.shape[3]
    total = (call.lengths.max() + new).to(torch.int32)
    past = (call.key_cache, call.value_cache)
    inputs: list[Tensor | None] = [
        call.query,
        call.key,
        call.value,
        *past,
        call.lengths + (new - 1),
        total,
    ]
    inputs += [call.cosines, call.sines, None, _first_positions(call.bias, total)]
    while inputs[-1] is None:
        inputs.pop()
    attributes: dict[str, Any] = {
        "num_heads": call.query.shape[2] // head_dim,
        "kv_num_heads": call.key_cache.shape[1],
        "scale": call.scale,
    }
    if call.window:
        # The kernel keeps the window's positions contiguous rather than in fixed slots, and moves
        # them when the buffer is full.
        attributes |= {"local_window_size": call.window, "sliding_window_cache": 1}
    if call.softcap:
        attributes["softcap"] = call.softcap
    if call.cosines is not None and call.sines is not None:
        attributes["do_rotary"] = 1
    if not call.causal:
        attributes["causal"] = 0
    return tuple(
        onnx_ops.symbolic_multi_out(
            "com.microsoft::GroupQueryAttention",
            inputs,
            attrs=attributes,
            dtypes=(call.query.dtype, call.key_cache.dtype, call.value_cache.dtype),
            shapes=(call.query.shape, call.key_cache.shape, call.value_cache.shape),
            version=_CONTRIB,
        )
    )


def _first_positions(bias_rhsc: Tensor | None, total: Tensor) -> Tensor | None:
    """Cut a bias off after the longest row, as the kernel expects it."""
    if bias_rhsc is None:
        return None
    inputs = (bias_rhsc, _constant(0), total.to(torch.int64)[None], _constant(3))
    return onnx_ops.symbolic(
        "Slice", inputs, dtype=bias_rhsc.dtype, shape=bias_rhsc.shape, version=OPSET
    )


def _constant(*values: int) -> Tensor:
    """Return a constant node, which `replace_in_place` allows and tensors made of numbers not."""
    return onnx_ops.symbolic(
        "Constant",
        (),
        {"value_ints": list(values)},
        dtype=torch.int64,
        shape=(len(values),),
        version=OPSET,
    )


def _cross_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    rows, new, width = query.shape
    batch, heads, positions = key.shape[:3]
    # The graph computes the shape: torch.export would demand a proof that rows is a multiple of
    # batch, which callers guarantee. It comes from the lengths where there are any, since all
    # layers share those and ONNX Runtime then computes it once.
    batch_size = onnx_ops.symbolic(
        "Shape",
        (key if lengths is None else lengths,),
        {"start": 0, "end": 1},
        dtype=torch.int64,
        shape=(1,),
        version=OPSET,
    )
    folded_shape = onnx_ops.symbolic(
        "Concat",
        (batch_size, _constant(-1, width)),
        {"axis": 0},
        dtype=torch.int64,
        shape=(3,),
        version=OPSET,
    )
    folded_size = (batch, rows // batch * new, width)
    folded = onnx_ops.symbolic(
        "Reshape", (query, folded_shape), dtype=query.dtype, shape=folded_size, version=OPSET
    )
    mixed = _multi_head_attention(
        (folded, key, value, None, lengths, _folded_bias(bias, batch_size, positions)),
        heads,
        scale,
        folded_size,
    )
    query_shape = onnx_ops.symbolic("Shape", (query,), dtype=torch.int64, shape=(3,), version=OPSET)
    return onnx_ops.symbolic(
        "Reshape", (mixed, query_shape), dtype=query.dtype, shape=query.shape, version=OPSET
    )


def _folded_bias(
    bias_rhst: Tensor | None, batch_size: Tensor, positions: int | torch.SymInt
) -> Tensor | None:
    """[r, h, s, t] to [b, h, r / b * s, t]."""
    if bias_rhst is None:
        return None
    rows, heads, new = bias_rhst.shape[:3]
    # -1 stands for rows / batch * new, so the graph divides nothing.
    by_head_rsht = bias_rhst.transpose(1, 2)
    positions_1 = torch.scalar_tensor(positions, dtype=torch.int64)[None]  # type: ignore[arg-type]
    flat_shape = onnx_ops.symbolic(
        "Concat",
        (batch_size, _constant(-1, heads), positions_1),
        {"axis": 0},
        dtype=torch.int64,
        shape=(4,),
        version=OPSET,
    )
    folded_bqht = onnx_ops.symbolic(
        "Reshape",
        (by_head_rsht, flat_shape),
        dtype=bias_rhst.dtype,
        shape=(rows, new, heads, positions),
        version=OPSET,
    )
    return folded_bqht.transpose(1, 2)


def _encoder_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    scale: float,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    # Keys and values stay flat: if heads are split, the kernel stores the attention weights of all
    # heads instead of working in blocks (72 MB for 8 heads of 1,500 positions).
    return _multi_head_attention(
        (query, key, value, None, lengths, bias), heads, scale, query.shape
    )


def _multi_head_attention(
    inputs: tuple[Tensor | None, ...], heads: int, scale: float, shape: tuple[Any, ...]
) -> Tensor:
    """Attend; inputs are query, key, value, projection bias, key lengths and attention bias."""
    given = list(inputs)
    while given[-1] is None:
        given.pop()
    return onnx_ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        given,
        # Added to the products with padding. The default, -10,000, is too small for T5, whose
        # products are not scaled.
        {"num_heads": heads, "scale": scale, "mask_filter_value": torch.finfo(torch.float32).min},
        dtype=torch.float32,
        shape=shape,
        version=_CONTRIB,
    )


def _rms_norm(hidden: Tensor, normalized_shape: list[int], weight: Tensor, eps: float) -> Tensor:
    # ONNX has RMSNormalization since opset 23, but ONNX Runtime does not fuse that one with the
    # addition before it.
    del normalized_shape
    return onnx_ops.symbolic(
        "SimplifiedLayerNormalization",
        (hidden, weight),
        {"axis": -1, "epsilon": eps, "stash_type": 1},
        dtype=hidden.dtype,
        shape=hidden.shape,
        version=OPSET,
    )


def _mixture_of_experts(
    hidden: Tensor, router_logits: Tensor, gate_up: Tensor, down: Tensor, per_token: int
) -> Tensor:
    return onnx_ops.symbolic(
        "com.microsoft::MoE",
        (hidden, router_logits, gate_up, None, down),
        {
            "activation_type": "swiglu",
            "activation_alpha": 1.0,
            "activation_beta": 0.0,
            "k": per_token,
            "normalize_routing_weights": 1,
            # Gate and up interleaved: see `onnx_fusion.interleave_experts`.
            "swiglu_fusion": 1,
        },
        dtype=hidden.dtype,
        shape=hidden.shape,
        version=_CONTRIB,
    )


TABLE: Table = {
    torch.ops.aten.rms_norm.default: _rms_norm,
    torch.ops.kvcast.mixture_of_experts.default: _mixture_of_experts,
    torch.ops.kvcast.self_attention.default: taking(SelfAttention, _self_attention),
    torch.ops.kvcast.cross_attention.default: _cross_attention,
    torch.ops.kvcast.encoder_attention.default: _encoder_attention,
}
# Importing the module registers the operators; naming them keeps that visible.
OPERATORS = (self_attention, cross_attention, encoder_attention, mixture_of_experts)
