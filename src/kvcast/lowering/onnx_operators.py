"""kvcast's operators as ONNX Runtime has them.

`com.microsoft.GroupQueryAttention` appends to a cache and attends to it; where past and present
are bound to the same buffer it writes only the new rows. `com.microsoft.MultiHeadAttention`
reads keys and values that are complete.
"""

from typing import Any

import torch
from torch import Tensor
from torch.onnx import ops as onnx_ops

from kvcast.lowering.replace import Table
from kvcast.ops.attention import cross_attention, encoder_attention, self_attention
from kvcast.ops.experts import mixture_of_experts

OPSET = 21
_CONTRIB = 1  # version of the com.microsoft domain


def _self_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    lengths: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    cosines: Tensor | None = None,
    sines: Tensor | None = None,
) -> tuple[Tensor, ...]:
    new = query.shape[1]
    head_dim = key_cache.shape[3]
    total = (lengths.max() + new).to(torch.int32)
    inputs = [query, key, value, key_cache, value_cache, lengths + (new - 1), total]
    attributes: dict[str, Any] = {
        "num_heads": query.shape[2] // head_dim,
        "kv_num_heads": key_cache.shape[1],
        "scale": scale,
    }
    if window:
        # The kernel keeps the window's positions together instead of at slots of their own, and
        # moves them once the buffer is full.
        attributes |= {"local_window_size": window, "sliding_window_cache": 1}
    if softcap:
        attributes["softcap"] = softcap
    if cosines is not None and sines is not None:
        attributes["do_rotary"] = 1
        inputs += [cosines, sines]
    return tuple(
        onnx_ops.symbolic_multi_out(
            "com.microsoft::GroupQueryAttention",
            inputs,
            attrs=attributes,
            dtypes=(query.dtype, key_cache.dtype, value_cache.dtype),
            shapes=(query.shape, key_cache.shape, value_cache.shape),
            version=_CONTRIB,
        )
    )


def _cross_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    rows, new, width = query.shape
    batch, heads = key.shape[:2]
    # Reshape by a shape computed in the graph: that rows is a multiple of batch is the caller's
    # promise, which torch.export would want to prove.
    batch_size = onnx_ops.symbolic(
        "Shape", (key,), {"start": 0, "end": 1}, dtype=torch.int64, shape=(1,), version=OPSET
    )
    folded_shape = onnx_ops.symbolic(
        "Concat",
        (batch_size, torch.tensor([-1, width])),
        {"axis": 0},
        dtype=torch.int64,
        shape=(3,),
        version=OPSET,
    )
    folded_size = (batch, rows // batch * new, width)
    folded = onnx_ops.symbolic(
        "Reshape", (query, folded_shape), dtype=query.dtype, shape=folded_size, version=OPSET
    )
    mixed = onnx_ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        (folded, key, value),
        {"num_heads": heads, "scale": scale},
        dtype=query.dtype,
        shape=folded_size,
        version=_CONTRIB,
    )
    query_shape = onnx_ops.symbolic("Shape", (query,), dtype=torch.int64, shape=(3,), version=OPSET)
    return onnx_ops.symbolic(
        "Reshape", (mixed, query_shape), dtype=query.dtype, shape=query.shape, version=OPSET
    )


def _encoder_attention(
    query: Tensor, key: Tensor, value: Tensor, heads: int, scale: float
) -> Tensor:
    # Flat keys and values: given heads apart, the kernel keeps all weights of all heads instead
    # of working through blocks (72 MB for 8 heads of 1,500 positions).
    return onnx_ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        (query, key, value),
        {"num_heads": heads, "scale": scale},
        dtype=query.dtype,
        shape=query.shape,
        version=_CONTRIB,
    )


def _rms_norm(hidden: Tensor, normalized_shape: list[int], weight: Tensor, eps: float) -> Tensor:
    # The operator of this name that the standard has since version 23 is one that ONNX Runtime
    # does not fuse with the addition before it.
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
            # Gates and ups take turns: `onnx_fusion.interleave_experts` brings them into order.
            "swiglu_fusion": 1,
        },
        dtype=hidden.dtype,
        shape=hidden.shape,
        version=_CONTRIB,
    )


TABLE: Table = {
    torch.ops.aten.rms_norm.default: _rms_norm,
    torch.ops.kvcast.mixture_of_experts.default: _mixture_of_experts,
    torch.ops.kvcast.self_attention.default: _self_attention,
    torch.ops.kvcast.cross_attention.default: _cross_attention,
    torch.ops.kvcast.encoder_attention.default: _encoder_attention,
}
# Importing the module registers the operators; naming them keeps that visible.
OPERATORS = (self_attention, cross_attention, encoder_attention, mixture_of_experts)
