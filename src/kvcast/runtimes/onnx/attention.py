"""Attention, as ONNX Runtime's operators.

`com.microsoft.GroupQueryAttention` appends to a cache and attends to it; where past and present
are bound to the same buffer, it writes only the new positions. `com.microsoft.MultiHeadAttention`
reads complete keys and values. Functions take the writer and an operation's arguments.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from kvcast.runtimes.onnx.writing import CONTRIB, GraphWriter, dims, number
from kvcast.spec.program import Constant, SelfAttention

INT8_CACHE = {
    "k_quant_type": "PER_CHANNEL",
    "v_quant_type": "PER_CHANNEL",
    "kv_cache_bit_width": 8,
}
"""Attributes of GroupQueryAttention over int8 caches with a scale for each channel."""

_FLOAT, _INT32, _INT64 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64


def self_attention(
    write: GraphWriter, *arguments: Any, scales: Sequence[Constant] = (), **options: Any
) -> ir.Value:
    """Attend over a cache; with scales, of its channels, the cache is int8."""
    call = SelfAttention[Any](*arguments, **options)
    new = write.cast(write.scalar(write.size(call.query, 1)), _INT32)
    longest = write.node("ReduceMax", [call.lengths], _INT32, [], keepdims=0)
    total = write.node("Add", [longest, new], _INT32, [])
    before_last = write.node("Sub", [new, write.number(1, _INT32)], _INT32, [])
    last = write.node("Add", [call.lengths, before_last], _INT32, dims(call.lengths))
    _, key_heads, _, head_dim = dims(call.key_cache)
    attributes: dict[str, Any] = {
        "num_heads": number(dims(call.query)[2]) // number(head_dim),
        "kv_num_heads": key_heads,
        "scale": float(call.scale),
    }
    if call.window:
        # The kernel keeps the window's positions contiguous rather than in fixed slots, and moves
        # them when the buffer is full.
        attributes |= {"local_window_size": call.window, "sliding_window_cache": 1}
    if call.softcap:
        attributes["softcap"] = float(call.softcap)
    if call.cosines is not None:
        attributes["do_rotary"] = 1
    if not call.causal:
        attributes["causal"] = 0
    if scales:
        attributes |= INT8_CACHE
    tables = [table and write.constant(table.name) for table in (call.cosines, call.sines)]
    bias = call.bias and _first_positions(write, call.bias, total)
    caches = (call.key_cache, call.value_cache)
    sinks = call.sinks and write.constant(call.sinks.name)
    given = [call.query, call.key, call.value, *caches, last, total, *tables, None, bias, sinks]
    given += [write.constant(scale.name) for scale in scales]
    results = [(value.dtype, dims(value)) for value in (call.query, *caches)]
    mixed, *after = write.nodes("GroupQueryAttention", given, results, CONTRIB, **attributes)
    for before, cache in zip(caches, after, strict=True):
        write.changed[before.name or ""] = cache
    return mixed


def _first_positions(write: GraphWriter, bias_rhsc: ir.Value, total: ir.Value) -> ir.Value:
    """Cut a bias off after the longest row, as the kernel expects it."""
    end = write.node("Unsqueeze", [write.cast(total, _INT64), write.integers(0)], _INT64, [1])
    given = [bias_rhsc, write.integers(0), end, write.integers(3)]
    return write.node("Slice", given, _FLOAT, [*dims(bias_rhsc)[:3], "total"])


def cross_attention(
    write: GraphWriter,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    scale: float,
    lengths: ir.Value | None = None,
    bias: ir.Value | None = None,
) -> ir.Value:
    """Fold an input's rows into its query axis, so that keys and values are not repeated."""
    heads = number(dims(key)[1])
    if bias is not None:
        by_head_rsht = write.transposed_axes(bias, 1, 2)
        sizes: list[int | ir.Value] = [write.size(key, 0), -1, heads, write.size(bias, 3)]
        bias = write.transposed_axes(write.reshaped(by_head_rsht, sizes), 1, 2)
    folded = write.folded(query, key)
    mixed = encoder_attention(write, folded, key, value, heads, scale, lengths, bias)
    return write.unfolded(mixed, query)


def encoder_attention(
    write: GraphWriter,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    heads: int,
    scale: float,
    lengths: ir.Value | None = None,
    bias: ir.Value | None = None,
) -> ir.Value:
    """Attend to all keys.

    Those of an encoder stay flat: if heads are split, the kernel stores the attention weights of
    all heads instead of working in blocks (72 MB for 8 heads of 1,500 positions).
    """
    given = [query, key, value, None, lengths, bias]
    attributes = multi_head(heads, scale)
    return write.node("MultiHeadAttention", given, _FLOAT, dims(query), CONTRIB, **attributes)


def multi_head(heads: int, scale: float) -> dict[str, Any]:
    """Return the attributes of MultiHeadAttention."""
    return {
        "num_heads": heads,
        "scale": float(scale),
        # Added to the products with padding. The default, -10,000, is too small for T5, whose
        # products are not scaled.
        "mask_filter_value": float(np.finfo(np.float32).min),
    }
