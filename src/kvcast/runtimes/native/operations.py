"""Compiles each operation to interpreter instructions.

A program's operations have the names and arguments of PyTorch's and kvcast's operators
(`kvcast/models/ops/attention.py`); fused operations have additional keywords. A function here takes
the builder and the operation's arguments, as values, scalars and constants, and returns its result.
Results that depend only on sizes are computed here. GEMMs and attention are in separate modules.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.native import attention, gemm, latents
from kvcast.runtimes.native.opcodes import Activation, Dtype, Element, Operation
from kvcast.runtimes.native.plan_builder import Builder, Matrix
from kvcast.runtimes.native.values import (
    NOTHING,
    Value,
    expect,
    expect_lengths,
    flat,
    flat_words,
    is_cache,
)
from kvcast.spec.stored_matrices import FileRows

_DTYPES = {"float32": Dtype.F32, "float16": Dtype.F16, "int32": Dtype.I32, "int64": Dtype.I64}
_ALL = 1 << 62


def _embedding(builder: Builder, table: Matrix | FileRows | NDArray[Any], ids: Value) -> Value:
    index = builder.contiguous(ids, Dtype.I64)
    count = prod(ids.sizes)
    if isinstance(table, FileRows):
        out = Value.fresh((*ids.sizes, table.width), Dtype.F32)
        builder.kept.append(table)
        builder.emit(
            Operation.FILE_EMBEDDING,
            rows=table.addresses.ctypes.data,
            encodings=table.encodings.ctypes.data,
            limit=len(table),
            width=table.width,
            ids=index.address,
            count=count,
            out=flat_words(out.address, table.width),
        )
        return out
    if isinstance(table, Matrix):
        out = Value.fresh((*ids.sizes, table.inputs), Dtype.F32)
        builder.emit(
            Operation.EMBEDDING,
            table=table.words,
            ids=index.address,
            count=count,
            out=flat_words(out.address, table.inputs),
        )
        return out
    gathered = _gather(builder, builder.outer(table), 0, index, count)
    return gathered.unflattened(0, ids.sizes)


def _index_select(builder: Builder, x: Value | NDArray[Any], axis: int, index: Any) -> Value:
    given = builder.outer(x) if isinstance(x, np.ndarray) else x
    places = builder.outer(index) if isinstance(index, np.ndarray) else index
    places = builder.contiguous(places, Dtype.I64)
    return _gather(builder, given, axis % len(given.sizes), places, prod(places.sizes))


def _gather(builder: Builder, x: Value, axis: int, index: Value, count: int) -> Value:
    """Select along an axis, with the axes on each side of it joined."""
    if x.dtype != Dtype.F32:
        x = builder.copied(x, Dtype.F32)
    before, limit, after = x.sizes[:axis], x.sizes[axis], x.sizes[axis + 1 :]
    out = Value.fresh((*before, count, *after), Dtype.F32)
    three = x
    three = builder.flattened(three, axis + 1, -1) if after else three.unsqueezed(-1)
    three = builder.flattened(three, 0, axis - 1) if before else three.unsqueezed(0)
    sizes = (three.sizes[0], count, three.sizes[2])
    builder.emit(
        Operation.GATHER,
        sizes=sizes,
        index=index.address,
        limit=limit,
        x=three.address,
        strides=three.strides,
        out=out.address,
        out_strides=(count * sizes[2], sizes[2], 1),
    )
    return out


def _softmax(builder: Builder, x: Value) -> Value:
    lines = builder.lines(x)
    out = Value.fresh(x.sizes, Dtype.F32)
    builder.emit(
        Operation.SOFTMAX,
        rows=lines.rows,
        width=lines.width,
        x=flat(lines),
        out=flat_words(out.address, lines.width),
    )
    return out


def _moments(builder: Builder, x: Value) -> Value:
    lines = builder.lines(x)
    out = Value.fresh((*x.sizes[:-1], 3), Dtype.F32)
    builder.emit(
        Operation.MOMENTS,
        rows=lines.rows,
        width=lines.width,
        x=flat(lines),
        out=flat_words(out.address, 3),
    )
    return out


def _pointwise(element: Element, dtype: Dtype | None = None) -> Callable[..., Value]:
    """Return an elementwise operation; without a dtype the inputs' dtype."""

    def operation(builder: Builder, *given: Any) -> Value:
        values = [_as_value(builder, value, given) for value in given]
        sizes = np.broadcast_shapes(*(value.sizes for value in values))
        chosen = dtype
        if chosen is None:
            # The higher kind, the wider integer. A scalar takes the dtype of the arrays.
            arrays = [_dtype_of(item) for item in given if not isinstance(item, int | float)]
            floats = [item for item in arrays if item in (Dtype.F32, Dtype.F16)]
            has_float = floats or any(isinstance(item, float) for item in given)
            chosen = Dtype.F32 if has_float else max(arrays)
        out = Value.fresh(sizes, chosen)
        builder.elements(element, out, *values)
        return out

    return operation


def _dtype_of(given: Value | NDArray[Any]) -> Dtype:
    return given.dtype if isinstance(given, Value) else Value.of(given).dtype


def _as_value(builder: Builder, given: Any, others: Sequence[Any]) -> Value:
    if isinstance(given, Value):
        return given
    if isinstance(given, np.ndarray):
        return builder.outer(given)
    integral = isinstance(given, int) and not any(isinstance(item, float) for item in others)
    return builder.outer(np.full(1, given, np.int64 if integral else np.float32))


def _where(builder: Builder, condition: Value, chosen: Any, other: Any) -> Value:
    given = [_as_value(builder, value, (chosen, other)) for value in (chosen, other)]
    sizes = np.broadcast_shapes(condition.sizes, *(value.sizes for value in given))
    dtypes = [value.dtype for value in given]
    is_float = Dtype.F32 in dtypes
    out = Value.fresh(sizes, Dtype.F32 if is_float else _integers(chosen, other, dtypes))
    builder.elements(Element.WHERE, out, condition, *given)
    return out


def _integers(chosen: Any, other: Any, dtypes: Sequence[Dtype]) -> Dtype:
    arrays = [
        dtype
        for item, dtype in zip((chosen, other), dtypes, strict=True)
        if not isinstance(item, int | float)
    ]
    return max(arrays, default=Dtype.I64)


def _clamp(builder: Builder, x: Value, least: int | float, most: int | float) -> Value:
    raised: Value = _pointwise(Element.MAXIMUM)(builder, x, least)
    lowered: Value = _pointwise(Element.MINIMUM)(builder, raised, most)
    return lowered


def _arange(builder: Builder, count: int, *, dtype: str = "int64") -> Value:
    return builder.outer(np.arange(count, dtype=dtype))


def _positions(builder: Builder, tokens: Value, lengths: Value) -> Value:
    new = _arange(builder, tokens.sizes[1])
    result: Value = _pointwise(Element.ADD)(builder, lengths.unsqueezed(1), new)
    return result


def _to(builder: Builder, x: Value, dtype: str) -> Value:
    return builder.copied(x, _DTYPES[dtype])


def _cat(builder: Builder, parts: Sequence[Value], axis: int) -> Value:
    axis %= len(parts[0].sizes)
    sizes = list(parts[0].sizes)
    sizes[axis] = sum(part.sizes[axis] for part in parts)
    out = Value.fresh(sizes, parts[0].dtype)
    first = 0
    for part in parts:
        if part.sizes[axis]:
            builder.elements(Element.COPY, out.part(axis, first, part.sizes[axis]), part)
        first += part.sizes[axis]
    return out


def _view(builder: Builder, x: Value, sizes: Sequence[int]) -> Value:
    return builder.flattened(x, 0, -1).unflattened(0, sizes)


def _split(_: Builder, x: Value, sizes: Sequence[int], axis: int) -> list[Value]:
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [x.part(axis, first, size) for first, size in zip(firsts, sizes, strict=True)]


def _chunk(builder: Builder, x: Value, count: int, axis: int) -> list[Value]:
    return _split(builder, x, [x.sizes[axis] // count] * count, axis)


def _slice(_: Builder, x: Value, axis: int = 0, first: int = 0, last: int = _ALL) -> Value:
    size = x.sizes[axis]
    first, last = (max(0, min(i + size if i < 0 else i, size)) for i in (first, last))
    return x.part(axis, first, max(0, last - first))


def _short_convolution(
    builder: Builder,
    x: Value,
    kernel: NDArray[Any],
    bias: NDArray[Any] | None,
    past: Value,
    lengths: Value,
    *,
    activation: str = "none",
) -> Value:
    rows, new, width = x.sizes
    expect(kernel.ndim == 2 and kernel.shape[1] == width, "a convolution's kernel")
    expect(bias is None or bias.shape == (width,), "a convolution's bias")
    for array in (kernel, bias):
        expect(array is None or array.dtype == np.float32, "a convolution's numbers")
    expect(is_cache(past) and past.dtype == Dtype.F32, "a convolution's cache")
    expect((past.sizes[:2], past.sizes[3]) == ((rows, 1), width), "a convolution's cache")
    expect(past.sizes[2] >= len(kernel), "a convolution's cache")
    expect_lengths(lengths, rows)
    out = Value.fresh(x.sizes, Dtype.F32)
    builder.emit(
        Operation.SHORT_CONVOLUTION,
        rows=rows,
        new_positions=new,
        width=width,
        length=len(kernel),
        slots=past.sizes[2],
        x=flat(builder.lines(x)),
        kernel=builder.outer(np.ascontiguousarray(kernel)).address,
        bias=NOTHING if bias is None else builder.outer(bias).address,
        activation=int(Activation[activation.upper()]),
        past=past.address,
        past_stride=past.strides[0],
        lengths=lengths.address,
        out=flat_words(out.address, width),
    )
    return out


def _delta_rule(
    builder: Builder,
    x: Value,
    share: Value,
    step: Value,
    decay: NDArray[Any],
    bias: NDArray[Any],
    state: Value,
    lengths: Value,
    key_heads: int,
    *,
    most: float = 1.0,
    least: float = 0.0,
) -> Value:
    given = decay, bias, state, lengths, key_heads
    return _rewritten(builder, x, share, step, *given, skip=None, most=most, least=least)


def _selective_scan(
    builder: Builder,
    x: Value,
    step: Value,
    decay: NDArray[Any],
    bias: NDArray[Any],
    skip: NDArray[Any],
    state: Value,
    lengths: Value,
    key_heads: int,
) -> Value:
    given = decay, bias, state, lengths, key_heads
    return _rewritten(builder, x, None, step, *given, skip=skip)


def _rewritten(
    builder: Builder,
    x: Value,
    share: Value | None,
    step: Value,
    decay: NDArray[Any],
    bias: NDArray[Any],
    state: Value,
    lengths: Value,
    key_heads: int,
    *,
    skip: NDArray[Any] | None,
    most: float = 1.0,
    least: float = 0.0,
) -> Value:
    rows, new, width = x.sizes
    held, heads, key_dim, value_dim = state.sizes
    expect(held == rows and key_heads > 0 and heads % key_heads == 0, "heads of a state")
    expect(width == 2 * key_heads * key_dim + heads * value_dim, "heads of a state")
    expect(is_cache(state) and state.dtype == Dtype.F32, "a state")
    expect(state.strides[1] == key_dim * value_dim, "a state")
    decays = max(step.sizes[-1] // heads, 1)
    expect(decays == 1 or (decays == key_dim and share is not None), "decays of a state")
    expect(step.sizes == (rows, new, heads * decays), "gates of a state")
    expect(share is None or share.sizes == (rows, new, heads), "gates of a state")
    for array, each in ((decay, 1), (bias, decays), (skip, 1)):
        fits = array is None or (array.shape == (heads * each,) and array.dtype == np.float32)
        expect(fits, "gates of a state")
    expect_lengths(lengths, rows)
    out = Value.fresh((rows, new, heads * value_dim), Dtype.F32)
    builder.emit(
        Operation.REWRITE_STATES,
        rows=rows,
        new_positions=new,
        key_heads=key_heads,
        value_heads=heads,
        key_dim=key_dim,
        value_dim=value_dim,
        x=flat(builder.lines(x)),
        share=flat_words(NOTHING, 0) if share is None else flat(builder.lines(share)),
        most=most,
        decays=decays,
        step=flat(builder.lines(step)),
        decay=builder.outer(decay).address,
        bias=builder.outer(bias).address,
        least=float(least),
        skip=NOTHING if skip is None else builder.outer(skip).address,
        state=state.address,
        state_stride=state.strides[0],
        lengths=lengths.address,
        out=flat_words(out.address, heads * value_dim),
    )
    return out


def _gated_recurrence(
    builder: Builder, x: Value, gate: Value, state: Value, lengths: Value
) -> Value:
    rows, new, width = x.sizes
    expect(gate.sizes == x.sizes, "the gates of a recurrence")
    expect(is_cache(state) and state.dtype == Dtype.F32, "a state")
    expect(state.sizes == (rows, 1, 1, width), "a state")
    expect_lengths(lengths, rows)
    out = Value.fresh(x.sizes, Dtype.F32)
    builder.emit(
        Operation.GATED_RECURRENCE,
        rows=rows,
        new_positions=new,
        width=width,
        x=flat(builder.lines(x)),
        gate=flat(builder.lines(gate)),
        state=state.address,
        state_stride=state.strides[0],
        lengths=lengths.address,
        out=flat_words(out.address, width),
    )
    return out


def _rewrite(builder: Builder, state: Value, x: Value) -> Value:
    expect(state.sizes == x.sizes and state.storage.address is not None, "a state")
    builder.elements(Element.COPY, state, x)
    return state


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    **gemm.OPERATIONS,
    **attention.OPERATIONS,
    **latents.OPERATIONS,
    "short_convolution": _short_convolution,
    "delta_rule": _delta_rule,
    "selective_scan": _selective_scan,
    "gated_recurrence": _gated_recurrence,
    "rewrite": _rewrite,
    "embedding": _embedding,
    "index_select": _index_select,
    "softmax": _softmax,
    "moments": _moments,
    "add": _pointwise(Element.ADD),
    "sub": _pointwise(Element.SUB),
    "mul": _pointwise(Element.MUL),
    "div": _pointwise(Element.DIV, Dtype.F32),
    "maximum": _pointwise(Element.MAXIMUM),
    "floor_divide": _pointwise(Element.DIV),
    "lt": _pointwise(Element.LT, Dtype.BOOL),
    "ge": _pointwise(Element.GE, Dtype.BOOL),
    "eq": _pointwise(Element.EQ, Dtype.BOOL),
    "tanh": _pointwise(Element.TANH),
    "gelu": _pointwise(Element.GELU),
    "gelu_tanh": _pointwise(Element.GELU_TANH),
    "silu": _pointwise(Element.SILU),
    "relu": _pointwise(Element.RELU),
    "asinh": _pointwise(Element.ASINH),
    "where": _where,
    "clamp": _clamp,
    "arange": _arange,
    "positions": _positions,
    "to": _to,
    "cat": _cat,
    "contiguous": lambda _, x: x,  # `lines`, `flattened` and results copy where order matters
    "transpose": lambda _, x, first, second: x.transposed(first, second),
    "unsqueeze": lambda _, x, axis: x.unsqueezed(axis),
    "unflatten": lambda _, x, axis, sizes: x.unflattened(axis, sizes),
    "flatten": lambda builder, x, first=0, last=-1: builder.flattened(x, first, last),
    "view": _view,
    "slice": _slice,
    "split": _split,
    "chunk": _chunk,
    "getitem": lambda _, parts, i: parts[i],
    "size": lambda _, x, axis: x.sizes[axis],
}
