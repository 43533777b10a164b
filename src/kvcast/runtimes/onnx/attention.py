"""Attention, short convolutions and delta nets, as ONNX Runtime's operators.

`com.microsoft.GroupQueryAttention` appends to a cache and attends to it; where past and present
are bound to the same buffer, it writes only the new positions. `com.microsoft.MultiHeadAttention`
reads complete keys and values. Functions take the writer and an operation's arguments.

A cache after a short convolution or delta net depends on all that was read of it, so that past and
present may be bound to the same buffer.

Letters in shapes: r rows, s new positions, c slots, w channels, l length of a convolution, h heads
of values, g heads of keys, k and v sizes of a head.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from kvcast.runtimes.onnx.graph_writer import CONTRIB, GraphWriter, Shape, dims, number
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
    """Cut a bias off after the longest row, as the kernel expects."""
    end = write.unsqueezed(write.cast(total, _INT64), 0)
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
    """Attend to all keys with flat queries.

    If heads are split, the kernel stores the attention weights of all heads instead of working in
    blocks (72 MB for 8 heads of 1,500 positions).
    """
    given = [query, key, value, None, lengths, bias]
    attributes = multi_head(heads, scale)
    return write.node("MultiHeadAttention", given, _FLOAT, dims(query), CONTRIB, **attributes)


def multi_head(heads: int, scale: float) -> dict[str, Any]:
    return {
        "num_heads": heads,
        "scale": float(scale),
        # Added to the products with padding. The default, -10,000, is too small for T5, whose
        # products are not scaled.
        "mask_filter_value": float(np.finfo(np.float32).min),
    }


_BOOL = ir.DataType.BOOL
_END = np.iinfo(np.int64).max
_EPSILON = 1e-6  # of the lengths of queries and keys


def short_convolution(
    write: GraphWriter,
    x: ir.Value,
    kernel: Constant,
    bias: Constant | None,
    past: ir.Value,
    lengths: ir.Value,
) -> ir.Value:
    """Convolve new and cached inputs, and write the new ones into the ring."""
    factors = write.array(kernel.name)
    length, (rows, _, _, width) = len(factors), dims(past)
    held = write.node("Squeeze", [past, write.integers(1)], _FLOAT, [rows, *dims(past)[2:]])
    count = write.unsqueezed(write.cast(lengths, _INT64), 1)
    before = write.arithmetic("Add", count, write.integers(*range(1 - length, 0)))
    places = write.arithmetic("Mod", before, write.size(past, 2))
    read = _taken(write, held, places)
    given = [_at_least(write, before, 0), read, write.number(0.0)]
    read = write.node("Where", given, _FLOAT, dims(read))
    inputs = write.node("Concat", [read, x], _FLOAT, [rows, "read", width], axis=1)
    mixed = None if bias is None else write.constant(bias.name)
    for i in range(length):
        span = write.integers(i), write.integers(i + 1 - length or _END), write.integers(1)
        part = write.node("Slice", [inputs, *span], _FLOAT, dims(x))
        factor = write.constant(f"{kernel.name}.{i}", np.ascontiguousarray(factors[i]))
        product = write.arithmetic("Mul", part, factor)
        mixed = product if mixed is None else write.arithmetic("Add", product, mixed)
    if mixed is None:
        raise ValueError("a convolution has no positions")
    write.changed[past.name or ""] = _turned(write, held, inputs, count, write.size(x, 1), length)
    return mixed


def _turned(
    write: GraphWriter,
    held: ir.Value,
    inputs: ir.Value,
    count: ir.Value,
    new: ir.Value,
    length: int,
) -> ir.Value:
    """Return the ring [r, 1, c, w] of `held` [r, c, w] after `new` more of `inputs`."""
    slots = dims(held)[1]
    last = write.arithmetic("Sub", write.arithmetic("Add", count, new), write.integers(1))
    size = write.scalar(write.size(held, 1))
    ends = write.number(0, _INT64), size, write.number(1, _INT64)
    each = write.node("Range", ends, _INT64, [slots])
    # How long ago the newest position of a slot was.
    ago = write.arithmetic("Mod", write.arithmetic("Sub", last, each), size)
    newest = write.arithmetic("Sub", write.arithmetic("Sub", last, ago), count)
    places = write.arithmetic("Add", newest, write.integers(length - 1))
    taken = _taken(write, inputs, write.arithmetic("Max", places, write.integers(0)))
    ring = write.node("Where", [_at_least(write, newest, 0), taken, held], _FLOAT, dims(held))
    return write.unsqueezed(ring, 1)


def delta_rule(
    write: GraphWriter,
    x: ir.Value,
    share: ir.Value,
    step: ir.Value,
    decay: Constant,
    bias: Constant,
    state: ir.Value,
    lengths: ir.Value,
    key_heads: int,
    *,
    most: float = 1.0,
    least: float = 0.0,
) -> ir.Value:
    """Update states [r, h, k, v] by new positions in sequence, reading them at each."""
    heads, key_dim, value_dim = map(number, dims(state)[1:])
    keys = key_heads * key_dim
    rows, new, _ = dims(x)
    widths = [keys, keys, heads * value_dim]
    parts = [(_FLOAT, [rows, new, width]) for width in widths]
    query, key, value = write.nodes("Split", [x, write.integers(*widths)], parts, axis=2)
    query, key = (_unit_heads(write, part, heads, key_dim) for part in (query, key))
    query = write.arithmetic("Mul", query, write.number(key_dim**-0.5))
    kept, decays = _kept(write, step, decay, bias, least)
    shares = write.node("Sigmoid", [share], _FLOAT, dims(share))
    each = [
        (query, 1, key_dim),
        (key, 1, key_dim),
        (key, key_dim, 1),
        (value, 1, value_dim),
        (kept, decays, 1),
        (shares if most == 1 else write.arithmetic("Mul", shares, write.number(most)), 1, 1),
    ]
    scanned = [_by_head(write, part, heads, *sizes) for part, *sizes in each]
    is_there = write.unsqueezed(write.cast(lengths, _BOOL), 1, 2, 3)
    matrix = write.node("Where", [is_there, state, write.number(0.0)], _FLOAT, dims(state))
    mixed_shape = [rows, new, heads, 1, value_dim]
    after, mixed = write.nodes(
        "Scan",
        [matrix, *scanned],
        [(_FLOAT, dims(state)), (_FLOAT, mixed_shape)],
        body=_position(dims(state), [sizes for _, *sizes in each]),
        num_scan_inputs=len(scanned),
        scan_input_axes=[1] * len(scanned),
        scan_output_axes=[1],
    )
    write.changed[state.name or ""] = after
    return write.reshaped(mixed, [0, 0, heads * value_dim])


def _kept(
    write: GraphWriter, step: ir.Value, decay: Constant, bias: Constant, least: float
) -> tuple[ir.Value, int]:
    """Return decays of states [r, s, h * n], and n: 1, or the size of a head of keys."""
    rates, shape = np.exp(write.array(decay.name)), dims(step)
    decays = number(shape[-1]) // len(rates)
    factors = np.repeat(rates if least else -rates, decays)
    by = write.constant(f"{decay.name}.factor", factors)
    steps = write.arithmetic("Add", step, write.constant(bias.name))
    if least:
        share = write.node("Sigmoid", [write.arithmetic("Mul", steps, by)], _FLOAT, shape)
        logarithms = write.arithmetic("Mul", share, write.number(least))
    else:
        logarithms = write.arithmetic("Mul", write.node("Softplus", [steps], _FLOAT, shape), by)
    return write.node("Exp", [logarithms], _FLOAT, shape), decays


def _position(state: Shape, each: Sequence[Sequence[int]]) -> ir.Graph:
    """Return the loop body of a position: states before it to states after it, and its results."""
    rows, heads, key_dim, value_dim = state

    def value(name: str, *sizes: int | str) -> ir.Value:
        shape = ir.Shape([rows, heads, *sizes])
        return ir.Value(name=name, type=ir.TensorType(_FLOAT), shape=shape)

    before = value("before", key_dim, value_dim)
    names = ("query", "key", "key_column", "value", "kept", "share")
    scanned = [value(name, *sizes) for name, sizes in zip(names, each, strict=True)]
    query, key, key_column, wanted, kept, share = scanned
    nodes: list[ir.Node] = []

    def node(operator: str, *given: ir.Value) -> ir.Value:
        nodes.append(ir.node(operator, given))
        nodes[-1].outputs[0].name = f"position_{len(nodes)}"  # none of the graph's around it
        return nodes[-1].outputs[0]

    decayed = node("Mul", before, kept)
    added = node("Mul", node("Sub", wanted, node("MatMul", key, decayed)), share)
    after = node("Add", decayed, node("Mul", key_column, added))
    results = [after, node("MatMul", query, after)]
    for result, name, sizes in zip(
        results, ("after", "mixed"), ((key_dim, value_dim), (1, value_dim)), strict=True
    ):
        result.name, result.type = name, ir.TensorType(_FLOAT)
        result.shape = ir.Shape([rows, heads, *sizes])
    return ir.Graph([before, *scanned], results, nodes=nodes, name="position")


def _unit_heads(write: GraphWriter, flat: ir.Value, heads: int, size: int) -> ir.Value:
    """[r, s, g * k] to [r, s, h * k], with heads of length 1, repeated for the heads of values."""
    groups = number(dims(flat)[2]) // size
    split = write.reshaped(flat, [0, 0, groups, 1, size])
    squares = write.arithmetic("Mul", split, split)
    shape = [*dims(split)[:-1], 1]
    summed = write.node("ReduceSum", [squares, write.integers(-1)], _FLOAT, shape, keepdims=1)
    summed = write.arithmetic("Add", summed, write.number(_EPSILON))
    lengths = write.node("Sqrt", [summed], _FLOAT, shape)
    unit = write.arithmetic("Div", split, lengths)
    if heads > groups:
        repeats = [unit] * (heads // groups)
        shape = [*dims(split)[:3], heads // groups, size]
        unit = write.node("Concat", repeats, _FLOAT, shape, axis=3)
    return write.reshaped(unit, [0, 0, heads * size])


def _by_head(write: GraphWriter, x: ir.Value, heads: int, *sizes: int) -> ir.Value:
    """[r, s, h * n * m] to [r, s, h, n, m]."""
    return write.reshaped(x, [0, 0, heads, *sizes])


def _at_least(write: GraphWriter, x: ir.Value, least: int) -> ir.Value:
    given = [x, write.number(least, _INT64)]
    return write.unsqueezed(write.node("GreaterOrEqual", given, _BOOL, dims(x)), 2)


def _taken(write: GraphWriter, x: ir.Value, places: ir.Value) -> ir.Value:
    shape = [*dims(places), dims(x)[2]]
    return write.node("GatherND", [x, write.unsqueezed(places, 2)], x.dtype, shape, batch_dims=1)
