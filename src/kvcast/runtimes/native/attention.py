"""Compiles attention to caches and to whole inputs, as `kvcast.runtimes.native.operations` does."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.native.opcodes import Dtype, Element, Operation
from kvcast.runtimes.native.plan_builder import Builder
from kvcast.runtimes.native.values import (
    NO_HEADS,
    NOTHING,
    Value,
    bias_of,
    cache_sizes,
    expect,
    expect_angles,
    expect_bias,
    expect_lengths,
    flat,
    flat_words,
    heads_of,
    is_cache,
    or_none,
)
from kvcast.spec.program import SelfAttention, SharedAttention

_WITHOUT_INPUT: Mapping[str, Any] = {
    "cross_key": NO_HEADS,
    "cross_value": NO_HEADS,
    "cross_lengths": NOTHING,
    "cross_positions": 0,
    "rows_each": 1,
}


def _self_attention(builder: Builder, call: SelfAttention[Any]) -> Value:
    rows, new, width = call.query.sizes
    key_heads, capacity, head_dim = _expect_self_caches(call)
    expect(call.key.sizes == call.value.sizes == (rows, new, key_heads * head_dim), "heads of keys")
    expect_bias(call.bias, (rows, width // head_dim, new, capacity))
    return _attended(
        builder,
        call,
        key=flat(builder.lines(call.key)),
        value=flat(builder.lines(call.value)),
        offsets=NOTHING,
        causal=int(call.causal),
        prompt=int(builder.prompt),
        bias=bias_of(builder, call.bias),
        **_crossed(call, key_heads, head_dim),
    )


def _crossed(call: SelfAttention[Any], key_heads: int, head_dim: int) -> Mapping[str, Any]:
    key, value, rows = call.cross_key, call.cross_value, call.query.sizes[0]
    if key is None or value is None:
        expect(key is value is call.cross_lengths, "keys of an input")
        return _WITHOUT_INPUT
    inputs, heads, positions, size = cache_sizes(key)
    fits = cache_sizes(value) == cache_sizes(key) and (heads, size) == (key_heads, head_dim)
    expect(fits and is_cache(key) and is_cache(value), "keys of an input")
    expect(inputs > 0 and rows % inputs == 0, "rows of an input")
    expect_lengths(call.cross_lengths, inputs)
    return {
        "cross_key": heads_of(key),
        "cross_value": heads_of(value),
        "cross_lengths": or_none(call.cross_lengths),
        "cross_positions": positions,
        "rows_each": rows // inputs,
    }


def _shared_attention(builder: Builder, call: SharedAttention[Any]) -> Value:
    _, asked, _ = call.query.sizes
    expect(call.offsets.sizes == (asked,), "positions of queries")
    return _attended(
        builder,
        call,
        key=flat_words(NOTHING, 0),
        value=flat_words(NOTHING, 0),
        offsets=builder.contiguous(call.offsets, Dtype.I64).address,
        causal=1,
        prompt=0,  # few queries: packing keys for them would take longer
        bias=bias_of(builder, None),
        **_WITHOUT_INPUT,
    )


def _attended(
    builder: Builder, call: SelfAttention[Any] | SharedAttention[Any], **own: Any
) -> Value:
    """Attend over a cache; `own` are the words that differ between writing and reading layers."""
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
        key_cache=heads_of(call.key_cache),
        value_cache=heads_of(call.value_cache),
        lengths=call.lengths.address,
        scale=float(call.scale),
        softcap=float(call.softcap),
        window=call.window,
        cosines=NOTHING if call.cosines is None else builder.outer(call.cosines).address,
        sines=NOTHING if call.sines is None else builder.outer(call.sines).address,
        sinks=NOTHING if call.sinks is None else builder.outer(call.sinks).address,
        out=flat_words(out.address, width),
        **own,
    )
    return out


def _expect_self_caches(call: SelfAttention[Any] | SharedAttention[Any]) -> tuple[int, int, int]:
    """Return heads, capacity and head size of caches that fit a call; else ValueError."""
    rows, _, width = call.query.sizes
    sizes, sinks = cache_sizes(call.key_cache), call.sinks
    held, key_heads, capacity, head_dim = sizes
    expect(cache_sizes(call.value_cache) == sizes and held == rows, "caches")
    expect(width % (key_heads * head_dim) == 0, "heads of queries")
    expect(is_cache(call.key_cache) and is_cache(call.value_cache), "caches")
    expect_lengths(call.lengths, rows)
    expect_angles(call.cosines, call.sines, head_dim // 2)
    has_sinks = sinks is None or (sinks.dtype == np.float32 and sinks.shape == (width // head_dim,))
    expect(has_sinks, "sinks")
    return key_heads, capacity, head_dim


def store_value(builder: Builder, x: Value, to: Value) -> None:
    """Write values [n, heads, positions, d] as positions of a cache."""
    expect(is_cache(to) and cache_sizes(to) == x.sizes, "keys of an input")
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
        to=heads_of(to),
    )


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
    inputs, key_heads, positions, head_dim = cache_sizes(key)
    heads = width // head_dim
    fits = cache_sizes(value) == cache_sizes(key) and width % (key_heads * head_dim) == 0
    expect(fits, "keys of an input")
    expect(is_cache(key) and is_cache(value) and rows % inputs == 0, "keys of an input")
    expect_lengths(lengths, inputs)
    expect_bias(bias, (rows, heads, new, positions))
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
        key=heads_of(key),
        value=heads_of(value),
        lengths=or_none(lengths),
        scale=float(scale),
        softcap=float(softcap),
        bias=bias_of(builder, bias),
        new_positions=new,
        out=flat_words(out.address, width),
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
        expect(key.sizes == value.sizes == query.sizes and query.sizes[-1] % heads == 0, "heads")
        query, key, value = _turned(builder, query, key, value, heads, cosines, sines)
    expect(key.sizes == query.sizes, "heads")
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
    expect_angles(cosines, sines, query.sizes[-1] // heads // 2)
    expect(len(cosines) >= query.sizes[1] and window >= 0, "positions")
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
    expect(width % heads == 0 and key.sizes[-1] > 0, "heads")
    head_dim = width // heads
    key_heads = key.sizes[-1] // head_dim
    expect(key.sizes == value.sizes == (inputs, positions, key_heads * head_dim), "heads")
    expect(key_heads > 0 and heads % key_heads == 0, "heads")
    expect_lengths(lengths, inputs)
    expect_bias(bias, (inputs, heads, positions, positions))
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
        lengths=or_none(lengths),
        scale=float(scale),
        softcap=float(softcap),
        cosines=tables[0],
        sines=tables[1],
        bias=bias_of(builder, bias),
        exact=int(exact),
        out=flat_words(out.address, width),
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
    inputs, positions, width = query.sizes
    head_dim = width // heads
    expect_angles(cosines, sines, head_dim // 2)
    expect(len(cosines) >= positions, "tables of angles")
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
            out=flat_words(out.address, 3 * width),
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
    expect(key.sizes == value.sizes == (inputs, positions, width), "keys")
    expect(width % heads == 0 and held == inputs, "heads of queries")
    expect(min(before, after, following, first) >= 0, "windows")
    expect_lengths(lengths, inputs)
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
        lengths=or_none(lengths),
        scale=float(scale),
        out=flat_words(out.address, width),
    )
    return out


def _relative_scores(builder: Builder, query: Value, key: Value, heads: int, scale: float) -> Value:
    inputs, positions, width = query.sizes
    expect(key.sizes == (2, positions, width) and width % heads == 0, "keys of distances")
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


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "self_attention": lambda builder, *arguments, **options: _self_attention(
        builder, SelfAttention(*arguments, **options)
    ),
    "shared_attention": lambda builder, *arguments, **options: _shared_attention(
        builder, SharedAttention(*arguments, **options)
    ),
    "cross_attention": _cross_attention,
    "encoder_attention": _encoder_attention,
    "source_attention": _source_attention,
    "window_attention": _window_attention,
    "relative_scores": _relative_scores,
}
