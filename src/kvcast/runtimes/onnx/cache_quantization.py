"""int8 self-attention and cross-attention caches: a step reads a quarter of the bytes.

`encode` returns each layer's cross keys and values in int8, with one scale per channel from the
largest magnitude in each input. `decode` reads them with GroupQueryAttention, which supports
quantized caches. It receives no new keys, so it writes nothing, but it requires an output for each
cache; that is bound to the cache's own buffer.

The operator has one scale per channel for the whole batch, and a batch holds inputs that were
encoded apart. With a key k = s c, q . k = (q s) . c, and mixed values are their scale times the
mixed codes. So the query is multiplied by its own input's key scales, the result by its value
scales, and the operator's scales are ones.

With 8 heads, 1,500 positions and one query, a layer's cross-attention takes 0.10 ms, where
MultiHeadAttention over fp32 takes 0.31; with five queries 0.31 against 0.37. (12 layers were read
in turn, so that none was still in the processor's cache.)

The operator decodes a cache once for each query, so many queries, of a prompt or of a text that is
aligned, have a separate branch: the cache is cast once and MultiHeadAttention reads it. With 6
heads and 64 queries that takes 1.4 ms instead of 3.3; they break even at 10 to 12. Steps do not
notice the branch. The operator then runs for one query, as its outputs have to alias the cache.

In a self-attention cache GroupQueryAttention has one scale per channel that is fixed in the graph.
Rotary embeddings rotate pairs of a key's channels, so both channels of a pair share a scale for the
pair's length, which no rotation changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from kvcast.families.programs import Argument, CacheArgument, ProgramSignature
from kvcast.runtimes.onnx.attention import INT8_CACHE, multi_head
from kvcast.runtimes.onnx.graph_writer import CONTRIB, GraphWriter, dims, number
from kvcast.spec.program import Constant, Node, Program, Step

_PARTS = ("key", "value")
_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64
_MANY = 16
"""More queries than this of an input, tokens times rows, read a cache that was cast."""

Described = tuple[Program, ProgramSignature]
"""A program with its arguments and results."""


def quantize_outputs(encode: Program, signature: ProgramSignature) -> Described:
    """Return `encode` with int8 cross caches, and their scales as further results."""
    layers = len(signature.outputs) // 2
    layer_of = {encode.last_product(f"cross_key_{i}").name: i for i in range(layers)}
    steps = [
        quantizing
        for step in encode.steps
        for quantizing in (
            _quantized(step, layer_of[step.name]) if step.name in layer_of else [step]
        )
    ]
    scales = [name for layer in range(layers) for name in _scale_names(layer)]
    outputs = {**encode.outputs, **{name: name for name in scales}}
    return (
        replace(encode, steps=steps, outputs=outputs),
        replace(signature, outputs=(*signature.outputs, *scales)),
    )


def _quantized(projection: Step, layer: int) -> Iterator[Step]:
    """Yield the steps that replace a projection by codes, and by scales of both halves."""
    exact, scales = Node(f"{projection.name}_exact"), Node(f"{projection.name}_scales")
    yield replace(projection, name=exact.name)
    yield Step(scales.name, "channel_scales", [exact])
    yield Step(projection.name, "scaled_codes", [exact, scales])
    halves = Node(f"{projection.name}_halves")
    yield Step(halves.name, "chunk", [scales, 2, -1])
    for i, name in enumerate(_scale_names(layer)):
        yield Step(name, "getitem", [halves, i])


def quantize_inputs(decode: Program, signature: ProgramSignature) -> Described:
    """Return `decode` over int8 cross caches; it gives each of them again, unchanged."""
    (cross,) = (argument for argument in signature.arguments if argument.name == "cross")
    if not isinstance(cross, CacheArgument):
        raise TypeError("cross caches are no caches")
    steps = [
        replace(step, operation="int8_cross_attention", keywords=_scales_of(step))
        if step.operation == "cross_attention"
        else step
        for step in decode.steps
    ]
    scales = [
        Argument(name=name, shape=("batch", 1, number(heads) * number(size)), dtype="float32")
        for layer, (_, heads, _, size) in enumerate(cross.shapes[:: len(_PARTS)])
        for name in _scale_names(layer)
    ]
    same = [f"same_{name}" for name in cross.names]
    caches = [
        replace(argument, dtype="int8") if argument is cross else argument
        for argument in signature.arguments
    ]
    return (
        replace(decode, steps=steps, inputs=[*decode.inputs, *(scale.name for scale in scales)]),
        ProgramSignature(arguments=(*caches, *scales), outputs=(*signature.outputs, *same)),
    )


def aliases_of(signature: ProgramSignature) -> dict[str, str]:
    """Return which results of `decode` alias which cross caches."""
    return {name: name.removeprefix("same_") for name in signature.outputs if "same_" in name}


def _scale_names(layer: int) -> list[str]:
    return [f"cross_{part}_scale_{layer}" for part in _PARTS]


def _scales_of(step: Step) -> Mapping[str, list[Node]]:
    layer = int(step.arguments[1].name.rpartition("_")[2])
    return {"scales": [Node(name) for name in _scale_names(layer)]}


def channel_scales(write: GraphWriter, x: ir.Value) -> ir.Value:
    """[batch, t, channels] to a scale for each channel, [batch, 1, channels]."""
    batch, _, channels = dims(x)
    shape = [batch, 1, channels]
    high, low = (
        write.node(operator, [x, write.integers(1)], _FLOAT, shape, keepdims=1)
        for operator in ("ReduceMax", "ReduceMin")
    )
    magnitude = write.node("Max", [high, write.node("Neg", [low], _FLOAT, shape)], _FLOAT, shape)
    divided = write.node("Div", [magnitude, write.number(127)], _FLOAT, shape)
    # A channel of zeros still needs a scale to divide by.
    return write.node("Max", [divided, write.number(1e-8)], _FLOAT, shape)


def scaled_codes(write: GraphWriter, x: ir.Value, scales: ir.Value) -> ir.Value:
    """[batch, t, channels] to int8."""
    # QuantizeLinear per channel takes 26 ms; multiplying first and using one scale takes 1 ms.
    inverse = write.node("Reciprocal", [scales], _FLOAT, dims(scales))
    scaled = write.node("Mul", [x, inverse], _FLOAT, dims(x))
    code = ir.DataType.INT8
    given = [scaled, write.number(1)]
    return write.node("QuantizeLinear", given, code, dims(x), output_dtype=code.value)


def int8_cross_attention(
    write: GraphWriter,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    scale: float,
    *,
    scales: Sequence[ir.Value],
) -> ir.Value:
    """Attend to int8 keys and values, each with the scales of its channels [batch, 1, channels]."""
    folded, heads = write.folded(query, key), number(dims(key)[1])
    shared = write.once("cross caches", lambda: _shared(write, folded, key))
    key_scale, value_scale = scales
    scaled = write.node("Mul", [folded, key_scale], _FLOAT, dims(folded))
    batch, _, width = dims(folded)
    few = write.node("Slice", [scaled, *shared.few], _FLOAT, [batch, "few", width])
    given = [few, shared.no_keys, shared.no_keys, key, value, shared.last, shared.total]
    given += [*[None] * 5, shared.ones, shared.ones]  # type: ignore[list-item]
    attributes = {"num_heads": heads, "kv_num_heads": heads, "scale": float(scale), "causal": 0}
    results = [(x.dtype, dims(x)) for x in (few, key, value)]
    mixed, *same = write.nodes(
        "GroupQueryAttention", given, results, CONTRIB, **attributes, **INT8_CACHE
    )
    for cache, after in zip((key, value), same, strict=True):
        write.changed[f"same_{cache.name}"] = after
    branches: dict[str, Any] = {
        "then_branch": _cast_first(scaled, (key, value), multi_head(heads, scale)),
        "else_branch": _as_it_is(mixed),
    }
    for name, branch in branches.items():
        branch.name = f"{name}_{key.name}"
        for i, node in enumerate(branch):
            node.outputs[0].name = f"{branch.name}_{i}"
        branch.outputs[0].type = ir.TensorType(_FLOAT)
    either = write.node("If", [shared.many], _FLOAT, dims(folded), **branches)
    result = write.node("Mul", [either, value_scale], _FLOAT, dims(folded))
    return write.unfolded(result, query)


def _cast_first(
    query: ir.Value, caches: Sequence[ir.Value], attributes: Mapping[str, object]
) -> ir.Graph:
    casts = [ir.node("Cast", [cache], {"to": _FLOAT}) for cache in caches]
    given = [query, *(cast.outputs[0] for cast in casts)]
    attention = ir.node("MultiHeadAttention", given, attributes, domain=CONTRIB)  # type: ignore[arg-type]
    return ir.Graph([], attention.outputs, nodes=[*casts, attention])


def _as_it_is(x: ir.Value) -> ir.Graph:
    same = ir.node("Identity", [x])
    return ir.Graph([], same.outputs, nodes=[same])


class _Shared(NamedTuple):
    many: ir.Value  # whether there are many queries
    few: Sequence[ir.Value]  # from where to where and along which axis the operator takes queries
    no_keys: ir.Value  # empty new keys
    last: ir.Value  # the last position of each input
    total: ir.Value  # the number of positions
    ones: ir.Value  # scales


def _shared(write: GraphWriter, folded: ir.Value, key: ir.Value) -> _Shared:
    batch, heads, positions, head_dim = dims(key)
    none, single = write.integers(0), write.integers(1)
    queries = write.node("Shape", [folded], _INT64, [1], start=1, end=2)
    many = write.node("Greater", [queries, write.integers(_MANY)], ir.DataType.BOOL, [1])
    taken = write.node("Where", [many, single, queries], _INT64, [1])
    empty = [batch, 0, dims(folded)[2]]
    last = ir.tensor(np.array([number(positions) - 1], np.int32))
    return _Shared(
        many=many,
        few=(none, taken, single),
        no_keys=write.node("Slice", [folded, none, none, single], _FLOAT, empty),
        last=write.node(
            "ConstantOfShape", [write.size(key, 0)], ir.DataType.INT32, [batch], value=last
        ),
        total=write.number(number(positions), ir.DataType.INT32),
        ones=write.constant("cross_ones", np.ones(number(heads) * number(head_dim), np.float32)),
    )


_STEPS, _LEAST = np.float32(127), np.float32(1e-5)
# Real texts may have larger activations than the random tokens that were measured.
_MARGIN = np.float32(1.2)

Layer = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Keys and values [rows, kv_heads, positions, d]."""


def quantize_self_caches(decode: Program, signature: ProgramSignature) -> Described:
    """Return `decode` over int8 self caches; `scales_of` gives the constants that it reads."""
    layers = iter(range(len(decode.steps)))
    steps = [
        replace(
            step, keywords={**step.keywords, "scales": list(map(Constant, _names(next(layers))))}
        )
        if step.operation == "self_attention"
        else step
        for step in decode.steps
    ]
    arguments = tuple(
        replace(argument, dtype="int8") if argument.name == "past" else argument
        for argument in signature.arguments
    )
    return replace(decode, steps=steps), replace(signature, arguments=arguments)


def scales_of(measured: Sequence[Layer]) -> dict[str, NDArray[np.float32]]:
    """Return the scales [kv_heads * d] of each layer's channels, from a sample text."""
    return {
        name: scales
        for i, (key, value) in enumerate(measured)
        for name, scales in zip(
            _names(i), (_scales(_pair_lengths(key)), _scales(np.abs(value))), strict=True
        )
    }


def _names(layer: int) -> list[str]:
    return [f"self_{part}_scale_{layer}" for part in ("key", "value")]


def _pair_lengths(key: NDArray[np.float32]) -> NDArray[np.float32]:
    length = np.hypot(*np.split(key, 2, axis=-1))
    return np.concatenate([length, length], axis=-1)


def _scales(magnitude: NDArray[np.float32]) -> NDArray[np.float32]:
    """[rows, kv_heads, positions, d] to [kv_heads * d]."""
    largest = np.maximum(magnitude.max(axis=(0, 2)).ravel(), _LEAST)
    scales: NDArray[np.float32] = largest * (_MARGIN / _STEPS)
    return scales
