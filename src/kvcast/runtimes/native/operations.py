"""Compiles each operation to interpreter instructions.

A program's operations have the names and arguments of PyTorch's and kvcast's operators
(`kvcast/models/ops/attention.py`); those that the lowering fused have keywords in addition. A
function here takes the builder and the operation's arguments, as values, numbers and constants, and
returns its result. Sizes are known, so results that need no more are computed here. Knows no model.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.native.building import NOTHING, Builder, Experts, Joined, Matrix
from kvcast.runtimes.native.instructions import (
    SCALE_BYTES,
    STRUCTS,
    Activation,
    Dtype,
    Element,
    Operation,
    Word,
)
from kvcast.runtimes.native.library import TILE, Format
from kvcast.runtimes.native.values import Lines, Value
from kvcast.spec.file_rows import FileRows
from kvcast.spec.self_attention import SelfAttention, SharedAttention

_DTYPES = {"float32": Dtype.F32, "float16": Dtype.F16, "int32": Dtype.I32, "int64": Dtype.I64}
_ALL = 1 << 62


def _linear(
    builder: Builder,
    x: Value,
    matrix: Matrix | Joined,
    *,
    activation: str = "none",
    residual: Value | None = None,
    gate: str | None = None,
) -> Value:
    """Multiply; with a gate, multiply the activated first half of the results by the second."""
    _expect(x.sizes[-1] == matrix.inputs, "a product's inputs")
    _expect(gate is None or (matrix.outputs % 2 == 0 and residual is None), "a gate")
    is_one = isinstance(matrix, Matrix)
    whole_tiles = is_one and gate is not None and matrix.outputs % (2 * TILE) == 0
    outputs = matrix.outputs // 2 if whole_tiles else matrix.outputs
    sizes = (*x.sizes[:-1], outputs)
    _expect(residual is None or residual.sizes == sizes, "what is added to a product")
    out = Value.fresh(sizes, Dtype.F32)
    if gate is None or whole_tiles:
        _products(builder, builder.lines(x), matrix, gate or activation, residual, out, whole_tiles)
        return out
    _products(builder, builder.lines(x), matrix, "none", None, out)
    half = outputs // 2
    return _gated(builder, out.part(-1, 0, half), out.part(-1, half, half), activation=gate)


def _products(
    builder: Builder,
    lines: Lines,
    matrix: Matrix | Joined,
    activation: str,
    residual: Value | None,
    out: Value,
    gated: bool = False,
) -> None:
    """Multiply with each part of a matrix; `out` is contiguous."""
    if isinstance(matrix, Matrix):
        _product(builder, lines, matrix, activation, residual, out, gated)
        return
    first = 0
    for part in matrix.parts:
        added = None if residual is None else residual.part(-1, first, part.outputs)
        to = out.part(-1, first, part.outputs)
        _product(builder, lines, part, activation, added, to)
        first += part.outputs


def _product(
    builder: Builder,
    lines: Lines,
    matrix: Matrix,
    activation: str,
    residual: Value | None,
    out: Value,
    gated: bool = False,
) -> None:
    """Multiply lines of exactly the matrix's inputs; `out` is contiguous, or a part of lines."""
    # Of outputs that a tile lacks, which are zeros, it would make others.
    _expect(gated or activation != "sigmoid", "the activation of a product")
    x = factors(builder, lines, matrix)
    added = None if residual is None else builder.lines(residual)
    builder.emit(
        Operation.PRODUCT,
        matrix=matrix.words,
        rows=lines.rows,
        **x,
        activation=int(Activation[activation.upper()]),
        gated=int(gated),
        residual=NOTHING if added is None else added.value.address,
        residual_stride=0 if added is None else added.stride,
        out=out.address,
        out_stride=out.strides[-2] if len(out.sizes) > 1 else out.sizes[-1],
        rounded_out=NOTHING,
    )
    if out.fills_storage:
        builder.may_be_rounded(out, lines.rows, out.sizes[-1])


def factors(builder: Builder, lines: Lines, matrix: Matrix) -> dict[str, Word]:
    """Return the fields of lines that a product with the matrix reads."""
    if matrix.format == Format.F32:
        return {"x": lines.value.address, "stride": lines.stride, "rounded_x": NOTHING}
    return {"x": NOTHING, "stride": 0, "rounded_x": builder.rounded(lines)}


def _mixture_of_experts(
    builder: Builder,
    x: Value,
    logits: Value,
    gate_up: Experts,
    down: Experts,
    each: int,
    *,
    normalised: bool = True,
    alpha: float = 0.0,
    limit: float = 0.0,
    gate_up_bias: NDArray[Any] | None = None,
    down_bias: NDArray[Any] | None = None,
    activation: str = "silu",
    scales: NDArray[Any] | None = None,
) -> Value:
    tokens, width = x.sizes
    up, last, experts = gate_up.matrices[0], down.matrices[0], len(gate_up.matrices)
    _expect(len(down.matrices) == experts and 1 <= each <= experts, "experts")
    _expect((up.inputs, up.outputs) == (width, 2 * last.inputs), "experts' inputs")
    _expect(last.outputs == width and logits.sizes == (tokens, experts), "experts' outputs")
    out = Value.fresh(x.sizes, Dtype.F32)
    lines = builder.lines(logits)
    builder.emit(
        Operation.MIXTURE,
        tokens=tokens,
        experts=experts,
        each=each,
        logits=lines.value.address,
        logits_stride=lines.stride,
        gate_up=gate_up.words,
        down=down.words,
        **factors(builder, builder.lines(x), up),
        activation=int(Activation[activation.upper()]),
        shares_of_all=int(not normalised),
        alpha=float(alpha),
        limit=float(limit),
        gate_up_bias=_expert_bias(builder, gate_up_bias, (experts, up.outputs)),
        down_bias=_expert_bias(builder, down_bias, (experts, width)),
        scales=_expert_bias(builder, scales, (experts,)),
        out=out.address,
        out_stride=width,
    )
    return out


def _expert_bias(builder: Builder, bias: NDArray[Any] | None, sizes: tuple[int, ...]) -> Word:
    if bias is None:
        return NOTHING
    _expect(bias.shape == sizes and bias.dtype == np.float32, "experts' biases")
    return builder.outer(bias).address


def _conv1d(
    builder: Builder,
    x: Value,
    matrix: Matrix,
    stride: int,
    padding: int | Sequence[int],
    *,
    activation: str = "none",
) -> Value:
    """Multiply overlapping lines; `matrix` is [outputs, size * channels], channels innermost."""
    batch, channels, positions = x.sizes
    before, after = (padding, padding) if isinstance(padding, int) else padding
    fits = matrix.inputs % channels == 0 and stride > 0 and min(before, after) >= 0
    size, whole = matrix.inputs // channels, before + positions + after
    _expect(fits and size <= whole, "a convolution's inputs")
    padded = Value.fresh((batch, whole, channels), Dtype.F32)
    zero = builder.outer(np.zeros(1, np.float32))
    for first, count in ((0, before), (before + positions, after)):
        if count:
            builder.elements(Element.COPY, padded.part(1, first, count), zero)
    builder.elements(Element.COPY, padded.part(1, before, positions), x.transposed(1, 2))
    count = (whole - size) // stride + 1
    out = Value.fresh((batch, count, matrix.outputs), Dtype.F32)
    for i in range(batch):
        channels_last = padded.part(0, i, 1)
        windows = channels_last.viewed((count, size * channels), (stride * channels, 1))
        lines = Lines(windows, count, size * channels, stride * channels)
        part = out.part(0, i, 1).viewed((count, matrix.outputs), (matrix.outputs, 1))
        _product(builder, lines, matrix, activation, None, part)
    return out.transposed(1, 2)


def _conv2d(
    builder: Builder,
    x: Value,
    matrix: Matrix,
    stride: int,
    padding: int,
    *,
    activation: str = "none",
) -> Value:
    """Multiply overlapping squares of one image after the other, gathered so that few lie apart.

    `x` is [images, rows, columns, channels]; `matrix` is [outputs, rows * columns * channels of a
    square].
    """
    images, rows, columns, channels = x.sizes
    side = math.isqrt(matrix.inputs // max(channels, 1))
    _expect(side * side * channels == matrix.inputs and stride > 0 <= padding, "a convolution")
    padded_rows, padded_columns = rows + 2 * padding, columns + 2 * padding
    counts = [(size - side) // stride + 1 for size in (padded_rows, padded_columns)]
    _expect(min(counts) > 0, "a convolution")
    out = Value.fresh((images, *counts, matrix.outputs), Dtype.F32)
    zero = builder.outer(np.zeros(1, np.float32))
    line, count = side * channels, counts[0] * counts[1]
    for i in range(images):
        padded = Value.fresh((padded_rows, padded_columns, channels), Dtype.F32)
        builder.elements(Element.COPY, padded, zero)
        inside = padded.part(0, padding, rows).part(1, padding, columns)
        builder.elements(Element.COPY, inside, x.part(0, i, 1).viewed(x.sizes[1:], x.strides[1:]))
        squares = Value.fresh((*counts, side, line), Dtype.F32)
        steps = (stride * padded_columns * channels, stride * channels, 1)
        for row in range(side):
            lines = padded.viewed((*counts, line), steps, row * padded_columns * channels)
            part = squares.part(2, row, 1)
            builder.elements(
                Element.COPY, part.viewed((*counts, line), (*part.strides[:2], 1)), lines
            )
        flat_squares = Lines(
            squares.viewed((count, side * line), (side * line, 1)), count, side * line, side * line
        )
        part = out.part(0, i, 1).viewed((count, matrix.outputs), (matrix.outputs, 1))
        _product(builder, flat_squares, matrix, activation, None, part)
    return out


def _layer_norm(
    builder: Builder, x: Value, gain: NDArray[Any], bias: NDArray[Any], epsilon: float
) -> Value:
    _expect(bias.shape == x.sizes[-1:] and bias.dtype == np.float32, "a norm's bias")
    shift = builder.outer(bias).address
    return _norm(builder, Operation.LAYER_NORM, x, gain, epsilon, bias=shift)


def _rms_norm(builder: Builder, x: Value, gain: NDArray[Any], epsilon: float) -> Value:
    return _norm(builder, Operation.RMS_NORM, x, gain, epsilon)


def _group_norm(
    builder: Builder,
    x: Value,
    gain: NDArray[Any],
    bias: NDArray[Any],
    epsilon: float,
    lengths: Value,
) -> Value:
    inputs, positions, width = x.sizes
    for array in (gain, bias):
        _expect(array.shape == (width,) and array.dtype == np.float32, "a norm's gain and bias")
    _expect_lengths(lengths, inputs)
    out = Value.fresh(x.sizes, Dtype.F32)
    builder.emit(
        Operation.GROUP_NORM,
        inputs=inputs,
        positions=positions,
        width=width,
        x=flat(builder.lines(x)),
        lengths=lengths.address,
        gain=builder.outer(gain).address,
        bias=builder.outer(bias).address,
        epsilon=float(epsilon),
        out=_flat_words(out.address, width),
    )
    return out


def _norm(
    builder: Builder,
    operation: Operation,
    x: Value,
    gain: NDArray[Any],
    epsilon: float,
    **bias: Word,
) -> Value:
    _expect(gain.shape == x.sizes[-1:] and gain.dtype == np.float32, "a norm's gain")
    lines = builder.lines(x)
    out = Value.fresh(x.sizes, Dtype.F32)
    builder.emit(
        operation,
        x=lines.value.address,
        stride=lines.stride,
        rows=lines.rows,
        width=lines.width,
        gain=builder.outer(gain).address,
        **bias,
        epsilon=float(epsilon),
        out=out.address,
        out_stride=lines.width,
        rounded_out=NOTHING,
    )
    builder.may_be_rounded(out, lines.rows, lines.width)
    return out


def _gated(builder: Builder, gate: Value, up: Value, *, activation: str) -> Value:
    _expect(gate.sizes == up.sizes, "a gate")
    gates, ups = builder.lines(gate), builder.lines(up)
    out = Value.fresh(gate.sizes, Dtype.F32)
    builder.emit(
        Operation.GATED,
        gate=gates.value.address,
        stride=gates.stride,
        up=ups.value.address,
        up_stride=ups.stride,
        rows=gates.rows,
        width=gates.width,
        activation=int(Activation[activation.upper()]),
        out=out.address,
        out_stride=gates.width,
        rounded_out=NOTHING,
    )
    builder.may_be_rounded(out, gates.rows, gates.width)
    return out


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
            out=_flat_words(out.address, table.width),
        )
        return out
    if isinstance(table, Matrix):
        out = Value.fresh((*ids.sizes, table.inputs), Dtype.F32)
        builder.emit(
            Operation.EMBEDDING,
            table=table.words,
            ids=index.address,
            count=count,
            out=_flat_words(out.address, table.inputs),
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
    """Select along an axis; the axes before and after it are each joined to one."""
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


def _self_attention(builder: Builder, call: SelfAttention[Any]) -> Value:
    rows, new, width = call.query.sizes
    key_heads, capacity, head_dim = _expect_self_caches(call)
    _expect(
        call.key.sizes == call.value.sizes == (rows, new, key_heads * head_dim), "heads of keys"
    )
    _expect_bias(call.bias, (rows, width // head_dim, new, capacity))
    return _attended(
        builder,
        call,
        key=flat(builder.lines(call.key)),
        value=flat(builder.lines(call.value)),
        offsets=NOTHING,
        causal=int(call.causal),
        prompt=int(builder.prompt),
        bias=_bias(builder, call.bias),
        **_crossed(call, key_heads, head_dim),
    )


def _crossed(call: SelfAttention[Any], key_heads: int, head_dim: int) -> Mapping[str, Any]:
    """Return the words of an encoded input that is attended to beside a cache."""
    key, value, rows = call.cross_key, call.cross_value, call.query.sizes[0]
    if key is None or value is None:
        _expect(key is value is call.cross_lengths, "keys of an input")
        return _WITHOUT_INPUT
    inputs, heads, positions, size = _cache_sizes(key)
    fits = _cache_sizes(value) == _cache_sizes(key) and (heads, size) == (key_heads, head_dim)
    _expect(fits and _is_cache(key) and _is_cache(value), "keys of an input")
    _expect(inputs > 0 and rows % inputs == 0, "rows of an input")
    _expect_lengths(call.cross_lengths, inputs)
    return {
        "cross_key": _heads(key),
        "cross_value": _heads(value),
        "cross_lengths": _or_none(call.cross_lengths),
        "cross_positions": positions,
        "rows_each": rows // inputs,
    }


def _shared_attention(builder: Builder, call: SharedAttention[Any]) -> Value:
    _, asked, _ = call.query.sizes
    _expect(call.offsets.sizes == (asked,), "positions of queries")
    return _attended(
        builder,
        call,
        key=_flat_words(NOTHING, 0),
        value=_flat_words(NOTHING, 0),
        offsets=builder.contiguous(call.offsets, Dtype.I64).address,
        causal=1,
        prompt=0,  # few queries: packing keys for them would take longer
        bias=_bias(builder, None),
        **_WITHOUT_INPUT,
    )


def _attended(
    builder: Builder, call: SelfAttention[Any] | SharedAttention[Any], **own: Any
) -> Value:
    """Attend over a cache; `own` are the words in which writing and reading layers differ."""
    rows, new, width = call.query.sizes
    key_heads, capacity, head_dim = _expect_self_caches(call)
    out = Value.fresh(call.query.sizes, Dtype.F32)
    builder.emit(
        Operation.SELF_ATTENTION,
        rows=rows,
        new_positions=new,
        heads=width // head_dim,
        key_heads=key_heads,
        head_dim=head_dim,
        capacity=capacity,
        query=flat(builder.lines(call.query)),
        key_cache=_heads(call.key_cache),
        value_cache=_heads(call.value_cache),
        lengths=call.lengths.address,
        scale=float(call.scale),
        softcap=float(call.softcap),
        window=call.window,
        cosines=NOTHING if call.cosines is None else builder.outer(call.cosines).address,
        sines=NOTHING if call.sines is None else builder.outer(call.sines).address,
        sinks=NOTHING if call.sinks is None else builder.outer(call.sinks).address,
        out=_flat_words(out.address, width),
        **own,
    )
    return out


def _expect_self_caches(call: SelfAttention[Any] | SharedAttention[Any]) -> tuple[int, int, int]:
    """Return heads, capacity and numbers of a head of caches that fit a call; else ValueError."""
    rows, _, width = call.query.sizes
    sizes, sinks = _cache_sizes(call.key_cache), call.sinks
    held, key_heads, capacity, head_dim = sizes
    _expect(_cache_sizes(call.value_cache) == sizes and held == rows, "caches")
    _expect(width % (key_heads * head_dim) == 0, "heads of queries")
    _expect(_is_cache(call.key_cache) and _is_cache(call.value_cache), "caches")
    _expect_lengths(call.lengths, rows)
    _expect_angles(call.cosines, call.sines, head_dim // 2)
    has_sinks = sinks is None or (sinks.dtype == np.float32 and sinks.shape == (width // head_dim,))
    _expect(has_sinks, "sinks")
    return key_heads, capacity, head_dim


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
    _expect(kernel.ndim == 2 and kernel.shape[1] == width, "a convolution's kernel")
    _expect(bias is None or bias.shape == (width,), "a convolution's bias")
    for array in (kernel, bias):
        _expect(array is None or array.dtype == np.float32, "a convolution's numbers")
    _expect(_is_cache(past) and past.dtype == Dtype.F32, "a convolution's cache")
    _expect((past.sizes[:2], past.sizes[3]) == ((rows, 1), width), "a convolution's cache")
    _expect(past.sizes[2] >= len(kernel), "a convolution's cache")
    _expect_lengths(lengths, rows)
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
        out=_flat_words(out.address, width),
    )
    return out


def _channel_convolution(
    builder: Builder,
    x: Value,
    kernel: NDArray[Any],
    bias: NDArray[Any],
    stride: int,
    *,
    activation: str = "none",
) -> Value:
    _expect(kernel.ndim == len(x.sizes) - 1 == 3, "a convolution's kernel")
    inputs, positions, bands, given = x.sizes
    length, breadth, channels = kernel.shape
    _expect(given in (1, channels) and bias.shape == (channels,), "a convolution's channels")
    _expect(length % 2 == breadth % 2 == 1 and stride > 0, "a convolution's kernel")
    for array in (kernel, bias):
        _expect(array.dtype == np.float32, "a convolution's numbers")
    out_sizes = (inputs, -(-positions // stride), -(-bands // stride), channels)
    out = Value.fresh(out_sizes, Dtype.F32)
    builder.emit(
        Operation.CHANNEL_CONVOLUTION,
        inputs=inputs,
        positions=positions,
        bands=bands,
        channels=channels,
        length=length,
        breadth=breadth,
        stride=stride,
        shared=int(given != channels),
        x=builder.contiguous(x, Dtype.F32).address,
        kernel=builder.outer(np.ascontiguousarray(kernel)).address,
        bias=builder.outer(bias).address,
        activation=int(Activation[activation.upper()]),
        out=out.address,
    )
    return out


def _relative_scores(builder: Builder, query: Value, key: Value, heads: int, scale: float) -> Value:
    inputs, positions, width = query.sizes
    _expect(key.sizes == (2, positions, width) and width % heads == 0, "keys of distances")
    out = Value.fresh((inputs, heads, positions, positions), Dtype.F32)
    builder.emit(
        Operation.RELATIVE_SCORES,
        inputs=inputs,
        positions=positions,
        heads=heads,
        head_dim=width // heads,
        query=flat(builder.lines(query)),
        key=flat(builder.lines(key)),
        scale=float(scale),
        out=out.address,
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
) -> Value:
    given = decay, bias, state, lengths, key_heads
    return _rewritten(builder, x, share, step, *given, skip=None)


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
) -> Value:
    rows, new, width = x.sizes
    held, heads, key_dim, value_dim = state.sizes
    _expect(held == rows and key_heads > 0 and heads % key_heads == 0, "heads of a state")
    _expect(width == 2 * key_heads * key_dim + heads * value_dim, "heads of a state")
    _expect(_is_cache(state) and state.dtype == Dtype.F32, "a state")
    _expect(state.strides[1] == key_dim * value_dim, "a state")
    for gate in filter(None, (share, step)):
        _expect(gate.sizes == (rows, new, heads), "gates of a state")
    for array in (decay, bias, skip):
        fits = array is None or (array.shape == (heads,) and array.dtype == np.float32)
        _expect(fits, "gates of a state")
    _expect_lengths(lengths, rows)
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
        share=_flat_words(NOTHING, 0) if share is None else flat(builder.lines(share)),
        step=flat(builder.lines(step)),
        decay=builder.outer(decay).address,
        bias=builder.outer(bias).address,
        skip=NOTHING if skip is None else builder.outer(skip).address,
        state=state.address,
        state_stride=state.strides[0],
        lengths=lengths.address,
        out=_flat_words(out.address, heads * value_dim),
    )
    return out


def _rewrite(builder: Builder, state: Value, x: Value) -> Value:
    _expect(state.sizes == x.sizes and state.storage.address is not None, "a state")
    builder.elements(Element.COPY, state, x)
    return state


def _cross_attention(
    builder: Builder,
    query: Value,
    key: Value,
    value: Value,
    scale: float,
    lengths: Value | None = None,
    bias: Value | None = None,
    *,
    softcap: float = 0.0,
) -> Value:
    rows, new, width = query.sizes
    inputs, key_heads, positions, head_dim = _cache_sizes(key)
    heads = width // head_dim
    fits = _cache_sizes(value) == _cache_sizes(key) and width % (key_heads * head_dim) == 0
    _expect(fits, "keys of an input")
    _expect(_is_cache(key) and _is_cache(value) and rows % inputs == 0, "keys of an input")
    _expect_lengths(lengths, inputs)
    _expect_bias(bias, (rows, heads, new, positions))
    out = Value.fresh(query.sizes, Dtype.F32)
    builder.emit(
        Operation.CROSS_ATTENTION,
        inputs=inputs,
        queries_each=rows // inputs * new,
        heads=heads,
        key_heads=key_heads,
        head_dim=head_dim,
        positions=positions,
        query=flat(builder.lines(query)),
        key=_heads(key),
        value=_heads(value),
        lengths=_or_none(lengths),
        scale=float(scale),
        softcap=float(softcap),
        bias=_bias(builder, bias),
        new_positions=new,
        out=_flat_words(out.address, width),
    )
    return out


def _encoder_attention(
    builder: Builder,
    query: Value,
    key: Value,
    value: Value,
    heads: int,
    scale: float,
    lengths: Value | None = None,
    bias: Value | None = None,
    *,
    cosines: NDArray[Any] | None = None,
    sines: NDArray[Any] | None = None,
    exact: bool | None = None,  # in the programs of earlier bundles
) -> Value:
    if cosines is not None and sines is not None:
        _expect(key.sizes == value.sizes == query.sizes and query.sizes[-1] % heads == 0, "heads")
        query, key, value = _turned(builder, query, key, value, heads, cosines, sines)
    _expect(key.sizes == query.sizes, "heads")
    exact = builder.exact if exact is None else exact
    given = query, key, value, heads, scale, lengths
    return _whole_attention(builder, *given, bias=bias, exact=exact)


def _source_attention(
    builder: Builder,
    query: Value,
    key: Value,
    value: Value,
    heads: int,
    scale: float,
    lengths: Value,
    cosines: NDArray[Any],
    sines: NDArray[Any],
    *,
    window: int = 0,
    softcap: float = 0.0,
) -> Value:
    _expect_angles(cosines, sines, query.sizes[-1] // heads // 2)
    _expect(len(cosines) >= query.sizes[1] and window >= 0, "positions")
    given = query, key, value, heads, scale, lengths
    angles = cosines, sines
    return _whole_attention(builder, *given, window=window, softcap=softcap, angles=angles)


def _whole_attention(
    builder: Builder,
    query: Value,
    key: Value,
    value: Value,
    heads: int,
    scale: float,
    lengths: Value | None,
    *,
    bias: Value | None = None,
    window: int = 0,
    softcap: float = 0.0,
    angles: tuple[NDArray[Any], NDArray[Any]] | None = None,
    exact: bool = True,
) -> Value:
    inputs, positions, width = query.sizes
    _expect(width % heads == 0 and key.sizes[-1] > 0, "heads")
    head_dim = width // heads
    key_heads = key.sizes[-1] // head_dim
    _expect(key.sizes == value.sizes == (inputs, positions, key_heads * head_dim), "heads")
    _expect(key_heads > 0 and heads % key_heads == 0, "heads")
    _expect_lengths(lengths, inputs)
    _expect_bias(bias, (inputs, heads, positions, positions))
    tables = (
        (NOTHING, NOTHING) if angles is None else [builder.outer(part).address for part in angles]
    )
    out = Value.fresh(query.sizes, Dtype.F32)
    builder.emit(
        Operation.WHOLE_ATTENTION,
        inputs=inputs,
        positions=positions,
        heads=heads,
        key_heads=key_heads,
        head_dim=head_dim,
        window=window,
        query=flat(builder.lines(query)),
        key=flat(builder.lines(key)),
        value=flat(builder.lines(value)),
        lengths=_or_none(lengths),
        scale=float(scale),
        softcap=float(softcap),
        cosines=tables[0],
        sines=tables[1],
        bias=_bias(builder, bias),
        exact=int(exact),
        out=_flat_words(out.address, width),
    )
    return out


def _turned(
    builder: Builder,
    query: Value,
    key: Value,
    value: Value,
    heads: int,
    cosines: NDArray[Any],
    sines: NDArray[Any],
) -> tuple[Value, Value, Value]:
    """Rotate queries and keys of all positions; values come along, for kernels want them beside."""
    inputs, positions, width = query.sizes
    head_dim = width // heads
    _expect_angles(cosines, sines, head_dim // 2)
    _expect(len(cosines) >= positions, "tables of angles")
    beside = Value.fresh((inputs, positions, 3 * width), Dtype.F32)
    parts = [beside.part(-1, i * width, width) for i in range(3)]
    for x, out in ((query, parts[0]), (key, parts[1])):
        builder.emit(
            Operation.ROTATE,
            inputs=inputs,
            positions=positions,
            heads=width // head_dim,
            head_dim=head_dim,
            x=flat(builder.lines(x)),
            cosines=builder.outer(cosines).address,
            sines=builder.outer(sines).address,
            out=_flat_words(out.address, 3 * width),
        )
    builder.elements(Element.COPY, parts[2], value)
    return parts[0], parts[1], parts[2]


def _window_attention(
    builder: Builder,
    query: Value,
    key: Value,
    value: Value,
    heads: int,
    scale: float,
    before: int,
    after: int,
    lengths: Value | None = None,
    following: int = 0,
) -> Value:
    inputs, queries, width = query.sizes
    held, positions, _ = key.sizes
    first = positions - queries - following
    _expect(key.sizes == value.sizes == (inputs, positions, width), "keys")
    _expect(width % heads == 0 and held == inputs, "heads of queries")
    _expect(min(before, after, following, first) >= 0, "windows")
    _expect_lengths(lengths, inputs)
    out = Value.fresh(query.sizes, Dtype.F32)
    builder.emit(
        Operation.WINDOW_ATTENTION,
        inputs=inputs,
        queries=queries,
        positions=positions,
        heads=heads,
        head_dim=width // heads,
        first=first,
        before=before,
        after=after,
        query=flat(builder.lines(query)),
        key=flat(builder.lines(key)),
        value=flat(builder.lines(value)),
        lengths=_or_none(lengths),
        scale=float(scale),
        out=_flat_words(out.address, width),
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
        out=_flat_words(out.address, lines.width),
    )
    return out


def _expect(fits: bool, subject: str) -> None:
    """Raise ValueError: programs come from files, and instructions do not check addresses."""
    if not fits:
        raise ValueError(f"{subject} do not fit")


def _expect_lengths(lengths: Value | None, count: int) -> None:
    fits = lengths is None or (lengths.dtype == Dtype.I32 and lengths.sizes == (count,))
    _expect(fits and (lengths is None or lengths.is_contiguous), "lengths")


def _expect_angles(cosines: NDArray[Any] | None, sines: NDArray[Any] | None, each: int) -> None:
    _expect((cosines is None) == (sines is None), "tables of angles")
    for table in (cosines, sines):
        fits = table is None or (table.dtype == np.float32 and table.shape == (len(table), each))
        _expect(fits, "tables of angles")


def _expect_bias(bias: Value | None, sizes: Sequence[int]) -> None:
    _expect(bias is None or len(bias.sizes) == len(sizes), "a bias")
    if bias is not None:
        bias.broadcast(sizes)
        _expect(bias.sizes[2:] == tuple(sizes[2:]), "a bias")


def stored(builder: Builder, x: Value, to: Value) -> None:
    """Write numbers [n, heads, positions, d] as positions of a cache."""
    _expect(_is_cache(to) and _cache_sizes(to) == x.sizes, "keys of an input")
    if x.dtype != Dtype.F32 or (x.sizes[-1] != 1 and x.strides[-1] != 1):
        x = builder.copied(x, Dtype.F32)
    count, heads, positions, head_dim = x.sizes
    stride, head_stride, position_stride = x.strides[:3]
    builder.emit(
        Operation.STORE,
        count=count,
        heads=heads,
        positions=positions,
        head_dim=head_dim,
        x=x.address,
        stride=stride,
        head_stride=head_stride,
        position_stride=position_stride,
        to=_heads(to),
    )


def _cache_sizes(cache: Value) -> tuple[int, ...]:
    """Return rows, heads, positions and numbers of a head."""
    *sizes, line = cache.sizes
    return (*sizes, line - SCALE_BYTES if cache.dtype == Dtype.INT8 else line)


def _is_cache(cache: Value) -> bool:
    """Return whether positions and numbers of a head are contiguous."""
    is_known = cache.dtype in (Dtype.F32, Dtype.F16, Dtype.INT8) and _cache_sizes(cache)[-1] > 0
    return is_known and cache.strides[2:] == (cache.sizes[3], 1)


def flat(lines: Lines) -> list[Word]:
    """Return lines as the struct that instructions take."""
    return _flat_words(lines.value.address, lines.stride)


def _flat_words(data: Word, stride: int) -> list[Word]:
    return STRUCTS["Flat"].words(data=data, stride=stride)


def _heads(cache: Value) -> list[Word]:
    stride, head_stride = cache.strides[:2]
    return STRUCTS["Heads"].words(
        data=cache.address, number=int(cache.dtype), stride=stride, head_stride=head_stride
    )


def _or_none(value: Value | None) -> Word:
    return NOTHING if value is None else value.address


_NO_HEADS = STRUCTS["Heads"].words(data=NOTHING, number=int(Dtype.F32), stride=0, head_stride=0)
_WITHOUT_INPUT: Mapping[str, Any] = {
    "cross_key": _NO_HEADS,
    "cross_value": _NO_HEADS,
    "cross_lengths": NOTHING,
    "cross_positions": 0,
    "rows_each": 1,
}


def _bias(builder: Builder, bias: Value | None) -> list[Word]:
    layout = STRUCTS["Bias"]
    if bias is None:
        return layout.words(data=NOTHING, stride=0, head_stride=0, query_stride=0)
    if bias.strides[-1] != 1 or bias.dtype != Dtype.F32:
        bias = builder.copied(bias, Dtype.F32)
    stride, head_stride, query_stride, _ = bias.broadcast(bias.sizes)
    return layout.words(
        data=bias.address, stride=stride, head_stride=head_stride, query_stride=query_stride
    )


def _pointwise(element: Element, dtype: Dtype | None = None) -> Callable[..., Value]:
    """Return an operation that computes elementwise; without a dtype that of its inputs."""

    def operation(builder: Builder, *given: Any) -> Value:
        values = [_as_value(builder, value, given) for value in given]
        sizes = np.broadcast_shapes(*(value.sizes for value in values))
        chosen = dtype
        if chosen is None:
            # Of kinds the higher; of integers the wider. A number takes the dtype of the arrays.
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


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "linear": _linear,
    "mixture_of_experts": _mixture_of_experts,
    "conv1d": _conv1d,
    "conv2d": _conv2d,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "gated": _gated,
    "embedding": _embedding,
    "index_select": _index_select,
    "self_attention": lambda builder, *arguments, **options: _self_attention(
        builder, SelfAttention(*arguments, **options)
    ),
    "shared_attention": lambda builder, *arguments, **options: _shared_attention(
        builder, SharedAttention(*arguments, **options)
    ),
    "short_convolution": _short_convolution,
    "delta_rule": _delta_rule,
    "channel_convolution": _channel_convolution,
    "relative_scores": _relative_scores,
    "rewrite": _rewrite,
    "selective_scan": _selective_scan,
    "cross_attention": _cross_attention,
    "encoder_attention": _encoder_attention,
    "source_attention": _source_attention,
    "window_attention": _window_attention,
    "softmax": _softmax,
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
