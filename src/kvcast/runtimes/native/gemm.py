"""Compiles products, convolutions and norms, as `kvcast.runtimes.native.operations` does."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.native.library import TILE, Format
from kvcast.runtimes.native.opcodes import STRUCTS, Activation, Dtype, Element, Operation, Word
from kvcast.runtimes.native.plan_builder import Builder, Experts, Joined, Matrix
from kvcast.runtimes.native.values import (
    NOTHING,
    Lines,
    Value,
    expect,
    expect_lengths,
    flat,
    flat_words,
)


def _linear(
    builder: Builder,
    x: Value,
    matrix: Matrix | Joined,
    *,
    activation: str = "none",
    residual: Value | None = None,
    gate: str | None = None,
) -> Value:
    """Multiply; a gate multiplies the activated first half by the second."""
    expect(x.sizes[-1] == matrix.inputs, "a product's inputs")
    expect(gate is None or (matrix.outputs % 2 == 0 and residual is None), "a gate")
    is_one = isinstance(matrix, Matrix)
    whole_tiles = is_one and gate is not None and matrix.outputs % (2 * TILE) == 0
    outputs = matrix.outputs // 2 if whole_tiles else matrix.outputs
    sizes = (*x.sizes[:-1], outputs)
    expect(residual is None or residual.sizes == sizes, "what is added to a product")
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
    # Of outputs that a tile lacks, which are zeros, it would make others.
    expect(gated or activation != "sigmoid", "the activation of a product")
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
    score: str = "softmax",
    choice_bias: NDArray[Any] | None = None,
    groups: Sequence[int] | None = None,
    epsilon: float = 0.0,
    scale: float = 1.0,
) -> Value:
    tokens, width = x.sizes
    up, last, experts = gate_up.matrices[0], down.matrices[0], len(gate_up.matrices)
    expect(len(down.matrices) == experts and 1 <= each <= experts, "experts")
    expect((up.inputs, up.outputs) == (width, 2 * last.inputs), "experts' inputs")
    expect(last.outputs == width and logits.sizes == (tokens, experts), "experts' outputs")
    out = Value.fresh(x.sizes, Dtype.F32)
    lines = builder.lines(logits)
    count, groups_each, best = groups or (1, 1, 1)
    routing = STRUCTS["Routing"].words(
        sigmoid=int(score == "sigmoid"),
        normalised=int(normalised),
        groups=count,
        groups_each=groups_each,
        best=best,
        epsilon=float(epsilon),
        scale=float(scale),
        bias=_expert_bias(builder, choice_bias, (experts,)),
        scales=_expert_bias(builder, scales, (experts,)),
    )
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
        routing=routing,
        alpha=float(alpha),
        limit=float(limit),
        gate_up_bias=_expert_bias(builder, gate_up_bias, (experts, up.outputs)),
        down_bias=_expert_bias(builder, down_bias, (experts, width)),
        out=out.address,
        out_stride=width,
    )
    return out


def _expert_bias(builder: Builder, bias: NDArray[Any] | None, sizes: tuple[int, ...]) -> Word:
    if bias is None:
        return NOTHING
    expect(bias.shape == sizes and bias.dtype == np.float32, "experts' biases")
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
    expect(fits and size <= whole, "a convolution's inputs")
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
    """Convolve x [images, rows, columns, channels] by GEMMs of overlapping contiguous patches."""
    images, rows, columns, channels = x.sizes
    side = math.isqrt(matrix.inputs // max(channels, 1))
    expect(side * side * channels == matrix.inputs and stride > 0 <= padding, "a convolution")
    padded_rows, padded_columns = rows + 2 * padding, columns + 2 * padding
    counts = [(size - side) // stride + 1 for size in (padded_rows, padded_columns)]
    expect(min(counts) > 0, "a convolution")
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


def _channel_convolution(
    builder: Builder,
    x: Value,
    kernel: NDArray[Any],
    bias: NDArray[Any],
    stride: int,
    *,
    activation: str = "none",
) -> Value:
    expect(kernel.ndim == len(x.sizes) - 1 == 3, "a convolution's kernel")
    inputs, positions, bands, given = x.sizes
    length, breadth, channels = kernel.shape
    expect(given in (1, channels) and bias.shape == (channels,), "a convolution's channels")
    expect(length % 2 == breadth % 2 == 1 and stride > 0, "a convolution's kernel")
    for array in (kernel, bias):
        expect(array.dtype == np.float32, "a convolution's numbers")
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


def _layer_norm(
    builder: Builder, x: Value, gain: NDArray[Any], bias: NDArray[Any], epsilon: float
) -> Value:
    expect(bias.shape == x.sizes[-1:] and bias.dtype == np.float32, "a norm's bias")
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
        expect(array.shape == (width,) and array.dtype == np.float32, "a norm's gain and bias")
    expect_lengths(lengths, inputs)
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
        out=flat_words(out.address, width),
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
    expect(gain.shape == x.sizes[-1:] and gain.dtype == np.float32, "a norm's gain")
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
    expect(gate.sizes == up.sizes, "a gate")
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


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "linear": _linear,
    "mixture_of_experts": _mixture_of_experts,
    "conv1d": _conv1d,
    "conv2d": _conv2d,
    "channel_convolution": _channel_convolution,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "gated": _gated,
}
