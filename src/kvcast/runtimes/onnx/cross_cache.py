"""int8 cross caches: a step reads a quarter of the bytes.

`encode` returns each layer's cross keys and values in int8, with one scale per channel from the
largest magnitude in each input. `decode` reads them with GroupQueryAttention, which supports
quantised caches. It receives no new keys, so it writes nothing, but it requires an output for each
cache; that is bound to the cache's own buffer. Knows no model: caches are found by their names.

The operator has one scale per channel for the whole batch, and a batch holds inputs that were
encoded apart. With a key k = s c, q . k = (q s) . c, and mixed values are their scale times the
mixed codes. So the query is multiplied by its own input's key scales, the result by its value
scales, and the operator's scales are ones.

With 8 heads, 1,500 positions and one query, a layer's cross-attention takes 0.10 ms, where
MultiHeadAttention over fp32 takes 0.31; with five queries 0.31 against 0.37. (12 layers were read
in turn, so that none was still in the processor's cache.)

The operator decodes a cache once for each query, so many queries, of a prompt or of a text that is
aligned, have a branch of their own: the cache is cast once and MultiHeadAttention reads it. With 6
heads and 64 queries that takes 1.4 ms instead of 3.3; they break even at 10 to 12. Steps do not
notice the branch. The operator then runs for one query, as its outputs have to alias the cache.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from kvcast.runtimes.onnx.editing import CONTRIB, constant, put_in_place

PARTS = ("key", "value")
_MANY = 16
"""More queries than this of an input, tokens times rows, read a cache that was cast."""


def quantize_cross_caches(encode: ir.Model, decode: ir.Model) -> dict[str, str]:
    """Change both graphs in place; return which of `decode`'s outputs alias which inputs.

    Graphs without cross caches stay as they are.
    """
    layers = sum((value.name or "").startswith("cross_key_") for value in decode.graph.inputs)
    for layer in range(layers):
        _quantize_outputs(encode.graph, layer)
    encode.graph.sort()
    return _read_quantized(decode.graph, layers) if layers else {}


def _quantize_outputs(graph: ir.Graph, layer: int) -> None:
    """Quantise a layer's projection [batch, t, 2 * width] before it is split into heads."""
    outputs = {value.name: value for value in graph.outputs}
    split = _ancestor(outputs[f"cross_key_{layer}"], "Split")
    projection = split.inputs[0]
    axis = constant(graph, f"cross_axis_{layer}", np.array([1], np.int64))
    high = ir.node("ReduceMax", [projection, axis], {"keepdims": 1})
    low = ir.node("ReduceMin", [projection, axis], {"keepdims": 1})
    negated = ir.node("Neg", low.outputs)
    magnitude = ir.node("Max", [high.outputs[0], negated.outputs[0]])
    # A channel of zeros still needs a scale to divide by.
    steps = constant(graph, f"cross_steps_{layer}", np.array(127, np.float32))
    least = constant(graph, f"cross_least_{layer}", np.array(1e-8, np.float32))
    divided = ir.node("Div", [magnitude.outputs[0], steps])
    scale = ir.node("Max", [divided.outputs[0], least])
    # QuantizeLinear per channel takes 26 ms; multiplying first and using one scale takes 1 ms.
    inverse = ir.node("Reciprocal", scale.outputs)
    scaled = ir.node("Mul", [projection, inverse.outputs[0]])
    unit = constant(graph, f"cross_one_{layer}", np.array(1, np.float32))
    codes = ir.node("QuantizeLinear", [scaled.outputs[0], unit], {"output_dtype": ir.DataType.INT8})
    halves = ir.node("Split", [scale.outputs[0]], {"axis": 2, "num_outputs": 2}, num_outputs=2)
    added = [high, low, negated, magnitude, divided, scale, inverse, scaled, codes, halves]
    graph.insert_before(split, added)
    split.replace_input_with(0, codes.outputs[0])
    for part, half in zip(PARTS, halves.outputs, strict=True):
        cache = outputs[f"cross_{part}_{layer}"]
        _mark_int8(cache, split)
        half.name = f"cross_{part}_scale_{layer}"
        half.type = ir.TensorType(ir.DataType.FLOAT)
        half.shape = _scale_shape(cache)
        graph.outputs.append(half)


def _read_quantized(graph: ir.Graph, layers: int) -> dict[str, str]:
    inputs = {value.name: value for value in graph.inputs}
    shared = _shared_inputs(graph, inputs["cross_key_0"])
    aliases = {}
    for layer in range(layers):
        caches = [inputs[f"cross_{part}_{layer}"] for part in PARTS]
        key_scale, value_scale = (
            _scale_input(graph, cache, f"cross_{part}_scale_{layer}")
            for cache, part in zip(caches, PARTS, strict=True)
        )
        attention = _reader(caches[0])
        scaled = ir.node("Mul", [attention.inputs[0], key_scale])
        few = ir.node("Slice", [scaled.outputs[0], *shared.few])
        node = _attention(attention, few.outputs[0], caches, shared)
        either = _either(attention, scaled.outputs[0], caches, node.outputs[0], shared.many)
        mixed = ir.node("Mul", [either.outputs[0], value_scale])
        graph.insert_before(attention, [scaled, few, node, either])
        put_in_place(graph, attention, attention, mixed)
        for cache, part, same in zip(caches, PARTS, node.outputs[1:], strict=True):
            cache.type = same.type = ir.TensorType(ir.DataType.INT8)
            same.shape = cache.shape
            same.name = f"same_cross_{part}_{layer}"
            aliases[same.name] = f"cross_{part}_{layer}"
            graph.outputs.append(same)
    return aliases


@dataclass(frozen=True)
class _Shared:
    """Inputs of the operators that all layers share."""

    many: ir.Value
    few: Sequence[ir.Value]
    no_keys: ir.Value
    last: ir.Value
    total: ir.Value
    ones: ir.Value


def _shared_inputs(graph: ir.Graph, cache: ir.Value) -> _Shared:
    """Add the inputs that all layers share.

    Whether there are many queries; from where to where and along which axis those lie that the
    operator takes; empty new keys, the last position, the number of positions, and scales of one.
    """
    first, positions = _reader(cache), _size(cache, 2)
    none = constant(graph, "no_positions", np.zeros(1, np.int64))
    single = constant(graph, "one_position", np.ones(1, np.int64))
    axis = constant(graph, "position_axis", np.ones(1, np.int64))
    most = constant(graph, "few_positions", np.array([_MANY], np.int64))
    queries = ir.node("Shape", [first.inputs[0]], {"start": 1, "end": 2})
    many = ir.node("Greater", [queries.outputs[0], most])
    taken = ir.node("Where", [many.outputs[0], single, queries.outputs[0]])
    no_keys = ir.node("Slice", [first.inputs[0], none, none, axis])
    batch = ir.node("Shape", [cache], {"start": 0, "end": 1})
    position = ir.tensor(np.array([positions - 1], np.int32))
    last = ir.node("ConstantOfShape", batch.outputs, {"value": position})
    graph.insert_before(first, [queries, many, taken, no_keys, batch, last])
    total = constant(graph, "source_positions", np.array(positions, np.int32))
    ones = constant(graph, "cross_ones", np.ones(_channels(cache), np.float32))
    return _Shared(
        many.outputs[0],
        (none, taken.outputs[0], axis),
        no_keys.outputs[0],
        last.outputs[0],
        total,
        ones,
    )


def _attention(
    before: ir.Node, query: ir.Value, caches: Sequence[ir.Value], shared: _Shared
) -> ir.Node:
    """Return a GroupQueryAttention over int8 caches, with the sizes of the node `before` it."""
    heads = before.attributes["num_heads"].as_int()
    return ir.node(
        "GroupQueryAttention",
        [
            query,
            shared.no_keys,
            shared.no_keys,
            *caches,
            shared.last,
            shared.total,
            *[None] * 5,
            shared.ones,
            shared.ones,
        ],
        {
            "num_heads": heads,
            "kv_num_heads": heads,
            "scale": before.attributes["scale"].as_float(),
            "causal": 0,
            "k_quant_type": "PER_CHANNEL",
            "v_quant_type": "PER_CHANNEL",
            "kv_cache_bit_width": 8,
        },
        domain=CONTRIB,
        num_outputs=3,
    )


def _either(
    before: ir.Node,
    query: ir.Value,
    caches: Sequence[ir.Value],
    mixed: ir.Value,
    many: ir.Value,
) -> ir.Node:
    """Return a node with the result for many queries, computed by it alone, or `mixed`."""
    casts = [ir.node("Cast", [cache], {"to": ir.DataType.FLOAT}) for cache in caches]
    attention = ir.node(
        "MultiHeadAttention",
        [query, *(cast.outputs[0] for cast in casts)],
        dict(before.attributes),
        domain=CONTRIB,
    )
    same = ir.node("Identity", [mixed])
    branches = {
        "then_branch": ir.Graph([], attention.outputs, nodes=[*casts, attention]),
        "else_branch": ir.Graph([], same.outputs, nodes=[same]),
    }
    for name, branch in branches.items():
        branch.name = f"{name}_{caches[0].name}"
        for number, node in enumerate(branch):
            node.outputs[0].name = f"{branch.name}_{number}"
        branch.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    return ir.node("If", [many], branches)


def _scale_input(graph: ir.Graph, cache: ir.Value, name: str) -> ir.Value:
    scale = ir.Value(
        name=name,
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=_scale_shape(cache),
    )
    graph.inputs.append(scale)
    return scale


def _reader(cache: ir.Value) -> ir.Node:
    (node,) = (use.node for use in cache.uses() if use.node.op_type == "MultiHeadAttention")
    return node


def _size(value: ir.Value, axis: int) -> int:
    size = value.shape[axis] if value.shape is not None else None
    if not isinstance(size, int):
        raise TypeError(f"{value.name} has no fixed size along axis {axis}")
    return size


def _channels(cache: ir.Value) -> int:
    """Return the number of channels, heads * d."""
    return _size(cache, 1) * _size(cache, 3)


def _scale_shape(cache: ir.Value) -> ir.Shape:
    """Return the shape of a cache's scales, one per channel: [batch, 1, heads * d]."""
    batch = cache.shape[0] if cache.shape is not None else None
    return ir.Shape([batch, 1, _channels(cache)])


def _ancestors(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes above a value, along first inputs."""
    node = value.producer()
    while node is not None:
        yield node
        source = node.inputs[0]
        node = None if source is None else source.producer()


def _ancestor(value: ir.Value, op_type: str) -> ir.Node:
    return next(node for node in _ancestors(value) if node.op_type == op_type)


def _mark_int8(value: ir.Value, since: ir.Node) -> None:
    """Mark everything between `since` and `value` as int8; those nodes only move data."""
    for node in _ancestors(value):
        for output in node.outputs:
            output.type = ir.TensorType(ir.DataType.INT8)
        if node is since:
            return
