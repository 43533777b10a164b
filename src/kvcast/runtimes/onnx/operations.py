"""Each operation of a program as ONNX Runtime's operators; functions take writer and arguments."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from kvcast.families.programs import ProgramSignature
from kvcast.runtimes.onnx.attention import (
    cross_attention,
    delta_rule,
    encoder_attention,
    self_attention,
    short_convolution,
)
from kvcast.runtimes.onnx.cache_quantization import (
    channel_scales,
    int8_cross_attention,
    scaled_codes,
)
from kvcast.runtimes.onnx.experts import mixture_of_experts
from kvcast.runtimes.onnx.graph_writer import (
    GraphWriter,
    Matrix,
    Shape,
    broadcast,
    dims,
    number,
)
from kvcast.spec.program import Constant, Node, Program

_FLOAT, _INT32, _INT64 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64
_BOOL = ir.DataType.BOOL


def graph_of(
    program: Program,
    signature: ProgramSignature,
    constants: Mapping[str, NDArray[Any]],
    matrices: Mapping[str, Matrix],
) -> ir.Model:
    """Return a program as a graph; constants keep their names, and `matrices` are quantized."""
    write = GraphWriter(signature, constants, matrices)
    values: dict[str, Any] = dict(write.inputs)

    def value(given: Any) -> Any:
        match given:
            case Node(name):
                return values[name]
            case list() | tuple():
                return [value(item) for item in given]
        return given

    for step in program.steps:
        keywords = {name: value(given) for name, given in step.keywords.items()}
        operation = OPERATIONS[step.operation]
        values[step.name] = operation(write, *value(step.arguments), **keywords)
        values |= write.changed
    results = {
        name: program.outputs.get(name, name.replace("present_", "past_", 1))
        for name in signature.outputs
    }
    return write.model({name: values[node] for name, node in results.items()})


def _linear(
    write: GraphWriter,
    x: ir.Value,
    matrix: Constant,
    *,
    activation: str | None = None,
    gate: str | None = None,
    residual: ir.Value | None = None,
) -> ir.Value:
    bias = None if matrix.bias is None else write.constant(matrix.bias)
    product = write.matrix(matrix.name).product(write, x, bias)
    if activation is not None:
        product = OPERATIONS[activation](write, product)
    if gate is not None:
        first, second = _chunk(write, product, 2, -1)
        product = _arithmetic("Mul", write, OPERATIONS[gate](write, first), second)
    return product if residual is None else _arithmetic("Add", write, residual, product)


def _conv1d(
    write: GraphWriter,
    x: ir.Value,
    matrix: Constant,
    stride: int,
    padding: int,
    *,
    activation: str | None = None,
) -> ir.Value:
    outputs, _, size = write.array(matrix.name).shape
    batch, _, positions = dims(x)
    if not isinstance(positions, int) or matrix.bias is None:
        raise TypeError(f"{matrix.name} lacks a bias, or a number of positions")
    count = (positions + 2 * padding - size) // stride + 1
    result = write.node(
        "Conv",
        [x, write.constant(matrix.name), write.constant(matrix.bias)],
        _FLOAT,
        [batch, outputs, count],
        kernel_shape=[size],
        strides=[stride],
        pads=[padding, padding],
    )
    return result if activation is None else OPERATIONS[activation](write, result)


def _layer_norm(
    write: GraphWriter, x: ir.Value, gain: Constant, bias: Constant, epsilon: float
) -> ir.Value:
    given = [x, write.constant(gain.name), write.constant(bias.name)]
    attributes: dict[str, Any] = {"axis": -1, "epsilon": epsilon, "stash_type": 1}
    return write.node("LayerNormalization", given, _FLOAT, dims(x), **attributes)


def _rms_norm(write: GraphWriter, x: ir.Value, gain: Constant, epsilon: float) -> ir.Value:
    # ONNX has RMSNormalization since opset 23, but ONNX Runtime does not fuse that one with the
    # addition before it.
    attributes: dict[str, Any] = {"axis": -1, "epsilon": epsilon, "stash_type": 1}
    given = [x, write.constant(gain.name)]
    return write.node("SimplifiedLayerNormalization", given, _FLOAT, dims(x), **attributes)


def _embedding(write: GraphWriter, table: Constant, ids: ir.Value) -> ir.Value:
    return write.matrix(table.name).lookup(write, ids)


def _index_select(write: GraphWriter, x: Any, axis: int, index: Any) -> ir.Value:
    values = [write.constant(v.name) if isinstance(v, Constant) else v for v in (x, index)]
    shape = dims(values[0])
    shape[axis] = dims(values[1])[0]
    return write.node("Gather", values, _FLOAT, shape, axis=axis % len(shape))


def _operands(write: GraphWriter, *given: Any) -> list[ir.Value]:
    """Return operands in one dtype: scalars and sizes take the arrays' dtype."""
    values = [write.constant(item.name) if isinstance(item, Constant) else item for item in given]
    arrays = [v for v in values if isinstance(v, ir.Value) and not write.is_size(v)]
    dtypes = {array.dtype for array in arrays}
    if not arrays or any(isinstance(item, float) for item in given):
        dtypes = {_FLOAT}
    dtype = next(dtype for dtype in (_FLOAT, _INT64, _INT32) if dtype in dtypes)
    return [
        write.cast(item, dtype) if isinstance(item, ir.Value) else write.number(item, dtype)
        for item in values
    ]


def _arithmetic(
    operator: str, write: GraphWriter, *given: Any, dtype: ir.DataType | None = None
) -> ir.Value:
    return write.arithmetic(operator, *_operands(write, *given), dtype=dtype)


def _where(write: GraphWriter, condition: ir.Value, chosen: Any, other: Any) -> ir.Value:
    values = _operands(write, chosen, other)
    shape = broadcast(dims(condition), *map(dims, values))
    return write.node("Where", [condition, *values], values[0].dtype, shape)


def _clamp(write: GraphWriter, x: ir.Value, least: float, most: float) -> ir.Value:
    return write.node("Clip", _operands(write, x, least, most), x.dtype, dims(x))


def _unary(operator: str, write: GraphWriter, x: ir.Value, **attributes: Any) -> ir.Value:
    return write.node(operator, [x], _FLOAT, dims(x), **attributes)


def _silu(write: GraphWriter, x: ir.Value) -> ir.Value:
    return _arithmetic("Mul", write, x, _unary("Sigmoid", write, x))


def _gated(write: GraphWriter, gate: ir.Value, up: ir.Value, *, activation: str) -> ir.Value:
    return _arithmetic("Mul", write, OPERATIONS[activation](write, gate), up)


def _short_convolution(write: GraphWriter, *given: Any, activation: str | None = None) -> ir.Value:
    mixed = short_convolution(write, *given)
    return mixed if activation is None else OPERATIONS[activation](write, mixed)


def _arange(write: GraphWriter, count: ir.Value, *, dtype: str) -> ir.Value:
    number = ir.DataType.from_numpy(np.dtype(dtype))
    end = write.cast(write.scalar(count), number)
    first, step = write.number(0, number), write.number(1, number)
    return write.node("Range", [first, end, step], number, [write.dim(count)])


def _positions(write: GraphWriter, tokens: ir.Value, lengths: ir.Value) -> ir.Value:
    new = _arange(write, write.size(tokens, 1), dtype="int64")
    return _arithmetic("Add", write, write.unsqueezed(lengths, 1), new)


def _to(write: GraphWriter, x: ir.Value, dtype: str) -> ir.Value:
    return write.cast(x, ir.DataType.from_numpy(np.dtype(dtype)))


def _cat(write: GraphWriter, parts: Sequence[ir.Value], axis: int) -> ir.Value:
    shape = dims(parts[0])
    shape[axis] = sum(number(dims(part)[axis]) for part in parts)
    return write.node("Concat", parts, parts[0].dtype, shape, axis=axis)


def _flatten(write: GraphWriter, x: ir.Value, first: int = 0, last: int = -1) -> ir.Value:
    axes = len(dims(x))
    after = range(last % axes + 1, axes)
    sizes = [*[0] * (first % axes), -1, *(_size(write, x, axis) for axis in after)]
    return write.reshaped(x, sizes)


def _unflatten(
    write: GraphWriter, x: ir.Value, axis: int, sizes: Sequence[int | ir.Value]
) -> ir.Value:
    axis %= len(dims(x))
    if [size if isinstance(size, int) else write.dim(size) for size in sizes] == dims(x)[
        : len(sizes)
    ]:
        return x  # a product in blocks undid what flattened its input
    after = range(axis + 1, len(dims(x)))
    return write.reshaped(x, [*[0] * axis, *sizes, *(_size(write, x, other) for other in after)])


def _size(write: GraphWriter, x: ir.Value, axis: int) -> int | ir.Value:
    size = dims(x)[axis]
    return size if isinstance(size, int) else write.size(x, axis)


def _split(write: GraphWriter, x: ir.Value, widths: Sequence[int], axis: int) -> Sequence[ir.Value]:
    given = [x, write.integers(*widths)]
    return write.nodes("Split", given, _parts(x, widths), axis=axis % len(dims(x)))


def _chunk(write: GraphWriter, x: ir.Value, count: int, axis: int) -> Sequence[ir.Value]:
    results = _parts(x, [number(dims(x)[axis]) // count] * count)
    axis %= len(dims(x))
    return write.nodes("Split", [x], results, axis=axis, num_outputs=count)


def _parts(x: ir.Value, widths: Sequence[int]) -> list[tuple[ir.DataType | None, Shape]]:
    return [(x.dtype, [*dims(x)[:-1], width]) for width in widths]


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "linear": _linear,
    "conv1d": _conv1d,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "self_attention": self_attention,
    "cross_attention": cross_attention,
    "encoder_attention": encoder_attention,
    "int8_cross_attention": int8_cross_attention,
    "channel_scales": channel_scales,
    "scaled_codes": scaled_codes,
    "short_convolution": _short_convolution,
    "delta_rule": delta_rule,
    "gated": _gated,
    "mixture_of_experts": mixture_of_experts,
    "embedding": _embedding,
    "index_select": _index_select,
    "add": partial(_arithmetic, "Add"),
    "sub": partial(_arithmetic, "Sub"),
    "mul": partial(_arithmetic, "Mul"),
    "div": partial(_arithmetic, "Div"),
    "maximum": partial(_arithmetic, "Max"),
    "lt": partial(_arithmetic, "Less", dtype=_BOOL),
    "ge": partial(_arithmetic, "GreaterOrEqual", dtype=_BOOL),
    "eq": partial(_arithmetic, "Equal", dtype=_BOOL),
    "tanh": partial(_unary, "Tanh"),
    "gelu": partial(_unary, "Gelu", approximate="none"),
    "gelu_tanh": partial(_unary, "Gelu", approximate="tanh"),
    "relu": partial(_unary, "Relu"),
    "sigmoid": partial(_unary, "Sigmoid"),
    "silu": _silu,
    "where": _where,
    "clamp": _clamp,
    "arange": _arange,
    "positions": _positions,
    "to": _to,
    "cat": _cat,
    "contiguous": lambda _, x: x,
    "transpose": GraphWriter.transposed_axes,
    "unsqueeze": GraphWriter.unsqueezed,
    "flatten": _flatten,
    "unflatten": _unflatten,
    "view": GraphWriter.reshaped,
    "chunk": _chunk,
    "split": _split,
    "getitem": lambda _, parts, i: parts[i],
    "size": GraphWriter.size,
}
