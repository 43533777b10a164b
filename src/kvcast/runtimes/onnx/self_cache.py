"""int8 self caches: a step reads a quarter of the bytes of past keys and values.

GroupQueryAttention quantises what it writes and reads it as int8, with one scale per channel that
is fixed in the graph. Rotary embeddings rotate pairs of a key's channels, so both channels of a
pair share a scale for the pair's length, which no rotation changes. Knows no model: the caller
gives sample keys and values.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvcast.runtimes.onnx.editing import constant

_STEPS = 127
# Real texts may have larger activations than the random tokens that were measured.
_MARGIN = 1.2


def quantize_self_caches(model: ir.Model, measured: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Make every self cache int8, in place.

    Args:
        model: has one GroupQueryAttention per layer, in order.
        measured: each layer's keys and values [rows, kv_heads, positions, d] for a sample text.

    """
    graph = model.graph
    nodes = [node for node in graph if node.op_type == "GroupQueryAttention"]
    for layer, (node, (key, value)) in enumerate(zip(nodes, measured, strict=True)):
        node.resize_inputs(14)
        for index, part, scales in (
            (12, "key", _scales(_pair_lengths(key))),
            (13, "value", _scales(value.abs())),
        ):
            name = f"self_{part}_scale_{layer}"
            node.replace_input_with(index, constant(graph, name, scales))
        for name in ("k_quant_type", "v_quant_type"):
            node.attributes[name] = ir.AttrString(name, "PER_CHANNEL")
        node.attributes["kv_cache_bit_width"] = ir.AttrInt64("kv_cache_bit_width", 8)
        for cache in (*node.inputs[3:5], *node.outputs[1:3]):
            if cache is not None:
                cache.type = ir.TensorType(ir.DataType.INT8)


def _pair_lengths(key: Tensor) -> Tensor:
    first, second = key.chunk(2, dim=-1)
    length = torch.hypot(first, second)
    return torch.cat([length, length], dim=-1)


def _scales(magnitude: Tensor) -> NDArray[np.float32]:
    """[rows, kv_heads, positions, d] to [kv_heads * d]."""
    largest = magnitude.amax(dim=(0, 2)).flatten().clamp(min=1e-5)
    return (largest * (_MARGIN / _STEPS)).numpy()
