"""Compiles recurrences, which rewrite states, as `kvcast.runtimes.native.operations` does."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.native.building import NOTHING, Builder
from kvcast.runtimes.native.instructions import Activation, Dtype, Element, Operation
from kvcast.runtimes.native.operands import expect, expect_lengths, flat, flat_words, is_cache
from kvcast.runtimes.native.values import Value


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
    expect(held == rows and key_heads > 0 and heads % key_heads == 0, "heads of a state")
    expect(width == 2 * key_heads * key_dim + heads * value_dim, "heads of a state")
    expect(is_cache(state) and state.dtype == Dtype.F32, "a state")
    expect(state.strides[1] == key_dim * value_dim, "a state")
    for gate in filter(None, (share, step)):
        expect(gate.sizes == (rows, new, heads), "gates of a state")
    for array in (decay, bias, skip):
        fits = array is None or (array.shape == (heads,) and array.dtype == np.float32)
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
        step=flat(builder.lines(step)),
        decay=builder.outer(decay).address,
        bias=builder.outer(bias).address,
        skip=NOTHING if skip is None else builder.outer(skip).address,
        state=state.address,
        state_stride=state.strides[0],
        lengths=lengths.address,
        out=flat_words(out.address, heads * value_dim),
    )
    return out


def _rewrite(builder: Builder, state: Value, x: Value) -> Value:
    expect(state.sizes == x.sizes and state.storage.address is not None, "a state")
    builder.elements(Element.COPY, state, x)
    return state


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "short_convolution": _short_convolution,
    "delta_rule": _delta_rule,
    "selective_scan": _selective_scan,
    "rewrite": _rewrite,
}
