"""Attention of the native kernels against NumPy, bit for bit against itself, and against torch."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcast.errors import KvcastError
from kvcast.runtimes.native.library import instruction_sets
from kvcast.runtimes.native.opcodes import Operation
from runtimes.native.attention_calls import (
    CrossCall,
    SelfCall,
    WholeCall,
    line,
    machine,
    normal,
    nothing,
    numbers,
    run,
    stored,
    strided,
)
from runtimes.native.guarded import guarded

SETS = instruction_sets()
DIMS = st.sampled_from([2, 8, 16, 20, 34, 48, 64, 80, 96, 128, 256])
NUMBERS = st.sampled_from([np.float32, np.float16, np.int8])
few = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))

each_set = pytest.mark.parametrize("instructions", SETS)


def close(actual: Any, expected: Any, error: float = 2e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=error, atol=error)


def prompts_differ(instructions: str) -> bool:
    return machine(1, instructions).prompts_differ


def error_of(actual: Any, expected: Any) -> float:
    return float(np.sqrt(np.mean((actual - expected) ** 2) / np.mean(expected**2)))


@st.composite
def self_calls(draw: st.DrawFn, *, ring: bool = False) -> SelfCall:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    rows, new = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 5, 17, 40]))
    key_heads, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 5, 13]))
    head_dim = draw(DIMS)
    longest = draw(st.sampled_from([0, 5, 40, 250, 600]))
    lengths = [draw(st.integers(0, longest)) for _ in range(rows)]
    kinds = draw(NUMBERS), draw(NUMBERS)
    end = max(lengths) + new
    window = draw(st.sampled_from([1, 3, 16, 60, 300])) if ring else draw(st.sampled_from([0, 20]))
    spare = draw(st.sampled_from([0, 1, 3, new - 1, 100]))
    capacity = window + spare if ring else end + draw(st.integers(0, 20))
    causal = ring or draw(st.booleans())
    rotates, biased = draw(st.booleans()), not ring and draw(st.booleans())
    angles = rng.uniform(0, 6, (end, head_dim // 2))
    pasts = [[stored(normal(rng, n, key_heads, head_dim), to) for n in lengths] for to in kinds]
    bias = None
    if biased:
        sizes = draw(st.sampled_from([1, rows])), draw(st.sampled_from([1, key_heads * groups]))
        bias = normal(rng, *sizes, new, capacity)
        # What no query sees does not count.
        bias[..., end:] = np.nan
        for s in range(new if causal and rows == 1 else 0):
            bias[:, :, s, lengths[0] + s + 1 :] = np.nan
    cross = draw_inputs(draw, rng, rows, key_heads, head_dim) if draw(st.booleans()) else {}
    return SelfCall(
        **cross,
        query=3 * normal(rng, rows, new, key_heads * groups, head_dim),
        key=normal(rng, rows, new, key_heads, head_dim),
        value=normal(rng, rows, new, key_heads, head_dim),
        past_keys=pasts[0],
        past_values=pasts[1],
        key_number=kinds[0],
        value_number=kinds[1],
        capacity=capacity,
        softcap=draw(st.sampled_from([0.0, 0.0, 2.0, 30.0])),
        window=window,
        causal=causal,
        prompt=draw(st.booleans()),
        cosines=np.cos(angles).astype(np.float32) if rotates else None,
        sines=np.sin(angles).astype(np.float32) if rotates else None,
        sinks=3 * normal(rng, key_heads * groups) if draw(st.booleans()) else None,
        bias=bias,
        gap=draw(st.sampled_from([0, 7])),
    )


def draw_inputs(
    draw: st.DrawFn, rng: np.random.Generator, rows: int, key_heads: int, head_dim: int
) -> dict[str, Any]:
    """Return encoded inputs that rows read beside their caches."""
    inputs, positions = draw(st.sampled_from([1, rows])), draw(st.sampled_from([1, 7, 256, 300]))
    parts = [
        stored(normal(rng, inputs, key_heads, positions, head_dim), draw(NUMBERS)) for _ in range(2)
    ]
    lengths = None
    if draw(st.booleans()):
        lengths = np.array([draw(st.integers(1, positions)) for _ in range(inputs)], np.int32)
        for cache in parts:
            for row, length in enumerate(lengths):
                cache[row, :, length:] = nothing((), cache.dtype)
    return {"cross_key": parts[0], "cross_value": parts[1], "cross_lengths": lengths}


def check_self(call: SelfCall, threads: int, instructions: str) -> None:
    out, keys, values = call.run(threads, instructions)
    if call.prompt and prompts_differ(instructions):
        assert error_of(out, call.expected()) < 0.1  # few positions count: errors do not cancel
        return
    # Keys rotated in fp32 and in fp64 may round to different halves or codes.
    rounding = {np.float32: 2e-5, np.float16: 2e-3, np.int8: 5e-2}[call.key_number]
    close(out, call.expected(), 2e-5 if call.cosines is None else rounding)
    before = call.caches()
    new = call.key.shape[1]
    for row, length in enumerate(call.lengths):
        slots = (length + np.arange(new)) % call.capacity
        kept = max(0, new - call.capacity)  # of more positions than slots, the last remain
        others = np.setdiff1d(np.arange(call.capacity), slots)
        key = call.rotated(call.key)[row, kept:].swapaxes(0, 1)
        value = call.value[row, kept:].swapaxes(0, 1)
        error = {np.float32: 1e-5, np.float16: 1e-3, np.int8: 5e-2}[call.key_number]
        written, expected = keys[row][:, slots[kept:]], stored(key, call.key_number)
        np.testing.assert_allclose(numbers(written), numbers(expected), rtol=error, atol=error)
        np.testing.assert_array_equal(
            values[row][:, slots[kept:]], stored(value, call.value_number)
        )
        for cache, old in ((keys, before[0]), (values, before[1])):
            np.testing.assert_array_equal(cache[row][:, others], old[row][:, others])


@each_set
@few
@given(call=self_calls(), threads=st.integers(1, 3))
def test_a_linear_cache(call: SelfCall, threads: int, instructions: str) -> None:
    check_self(call, threads, instructions)


@each_set
@few
@given(call=self_calls(ring=True), threads=st.integers(1, 3))
def test_a_ring(call: SelfCall, threads: int, instructions: str) -> None:
    check_self(call, threads, instructions)


@each_set
@few
@given(call=self_calls(), threads=st.integers(1, 3), draw=st.data())
def test_a_cache_that_is_written_gives_queries_in_any_order_what_they_had(
    call: SelfCall, threads: int, draw: st.DataObject, instructions: str
) -> None:
    call = replace(call, causal=True, prompt=False, bias=None)
    offsets = draw.draw(st.lists(st.integers(0, call.query.shape[1] - 1), min_size=1, max_size=20))
    out, keys, values = call.run(1, instructions)
    caches = guarded(keys), guarded(values)
    again = call.again(offsets, *caches, threads, instructions)
    np.testing.assert_array_equal(again, out[:, offsets])
    for after, before in zip(caches, (keys, values), strict=True):
        np.testing.assert_array_equal(after, before)


@each_set
def test_queries_past_a_written_cache_are_refused(instructions: str) -> None:
    rng = np.random.default_rng(0)
    call = linear_call(rng, 3, 2)
    _, keys, values = call.run(1, instructions)
    call = replace(call, query=np.repeat(call.query, 2, axis=1))
    for offset in (-1, 3):
        with pytest.raises(KvcastError, match="past its cache"):
            call.again([offset], keys, values, 1, instructions)


@each_set
@few
@given(call=self_calls(), ring=self_calls(ring=True))
def test_neither_threads_nor_other_rows_change_a_bit(
    call: SelfCall, ring: SelfCall, instructions: str
) -> None:
    for each in (call, ring):
        whole = each.run(1, instructions)
        for threads in (2, 3):
            for result, same in zip(each.run(threads, instructions), whole, strict=True):
                np.testing.assert_array_equal(result, same)
        for row in range(len(each.query)):
            alone = each.rows(row, row + 1).run(2, instructions)
            for result, same in zip(alone, whole, strict=True):
                np.testing.assert_array_equal(result[0], same[row])


@each_set
@few
@given(ring=self_calls(ring=True), cut=st.floats(0, 1))
def test_neither_chunks_nor_a_rings_capacity_change_a_bit(
    ring: SelfCall, cut: float, instructions: str
) -> None:
    ring = ring.rows(0, 1)
    whole, keys, values = ring.run(2, instructions)
    new, length = ring.query.shape[1], int(ring.lengths[0])
    linear, all_keys, all_values = replace(ring, capacity=length + new).run(1, instructions)
    np.testing.assert_array_equal(whole, linear)
    kept = range(max(0, length + new - ring.window), length + new)
    # A cache holds what it holds, so later chunks find it as the past.
    pasts = [
        np.concatenate([past, written[0][:, length:].swapaxes(0, 1)])
        for past, written in ((ring.past_keys[0], all_keys), (ring.past_values[0], all_values))
    ]
    for cache, linear_cache in ((keys, all_keys), (values, all_values)):
        slots = np.array(kept) % ring.capacity
        np.testing.assert_array_equal(cache[0][:, slots], linear_cache[0][:, list(kept)])
    middle = round(cut * new)
    for first, last in pairwise(sorted({0, middle, new})):
        chunk = replace(
            ring,
            query=ring.query[:, first:last],
            key=ring.key[:, first:last],
            value=ring.value[:, first:last],
            past_keys=[pasts[0][: length + first]],
            past_values=[pasts[1][: length + first]],
        )
        np.testing.assert_array_equal(chunk.run(3, instructions)[0], whole[:, first:last])


@each_set
@pytest.mark.parametrize("number", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize(("head_dim", "softcap"), [(64, 0.0), (80, 0.0), (128, 5.0)])
def test_prompts_are_attended_to_nearly_as_in_fp32(
    head_dim: int, softcap: float, number: Any, instructions: str
) -> None:
    rng = np.random.default_rng(head_dim)
    query, key, value = normal(rng, 3, 1, 340, 2, head_dim)
    key[..., 3] += 20  # as keys have it: one number is far larger than the others
    value[:, 7] *= 100
    value[:, 8] = 0
    call = SelfCall(
        query=query, key=key[:, :, :1], value=value[:, :, :1],
        past_keys=[stored(key[0, :0, :1], number)], past_values=[stored(value[0, :0, :1], number)],
        key_number=number, value_number=number,
        capacity=340, scale=head_dim**-0.5, softcap=softcap, prompt=True,
    )  # fmt: skip
    out = call.run(2, instructions)[0]
    assert error_of(out, call.expected()) < (0.03 if prompts_differ(instructions) else 1e-4)


@each_set
def test_what_a_prompts_query_sees_and_is_not_finite_is_told_and_nothing_else_is(
    instructions: str,
) -> None:
    rng = np.random.default_rng(0)
    query, key, value = normal(rng, 3, 1, 40, 1, 64)
    key[0, 20, 0, 5], value[0, 30, 0, 6] = np.nan, np.nan
    past = np.zeros((0, 1, 64), np.float32)
    call = SelfCall(
        query=query, key=key, value=value, past_keys=[past], past_values=[past],
        key_number=np.float32, value_number=np.float32, capacity=40, prompt=True,
    )  # fmt: skip
    out = call.run(1, instructions)[0][0, :, 0]
    assert np.isfinite(out[:20]).all()
    assert np.isnan(out[20:]).all()
    of_finite_keys = replace(call, key=np.nan_to_num(key)).run(1, instructions)[0][0, :, 0]
    np.testing.assert_array_equal(out[:20], of_finite_keys[:20])
    assert np.isfinite(of_finite_keys[:30]).all()
    assert not np.isfinite(of_finite_keys[30:]).all(-1).any()


SHARED, CAPS = st.sampled_from([1, 1, 3]), st.sampled_from([0.0, 0.0, 2.0])


@st.composite
def cross_calls(draw: st.DrawFn) -> CrossCall:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    inputs, each = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 5, 9]))
    new, key_heads = draw(st.sampled_from([1, 4])), draw(st.integers(1, 3))
    heads = key_heads * draw(SHARED)
    head_dim, positions = draw(DIMS), draw(st.sampled_from([1, 7, 256, 300, 700]))
    key, value = (
        stored(normal(rng, inputs, key_heads, positions, head_dim), draw(NUMBERS)) for _ in range(2)
    )
    bias = normal(rng, inputs * each, heads, new, positions) if draw(st.booleans()) else None
    lengths = None
    if draw(st.booleans()):
        lengths = np.array([draw(st.integers(1, positions)) for _ in range(inputs)], np.int32)
        for row, length in enumerate(lengths):
            for cache in (key, value):
                cache[row, :, length:] = nothing((), cache.dtype)
            if bias is not None:
                bias[row * each : (row + 1) * each, ..., length:] = np.nan
    query = 3 * normal(rng, inputs * each, new, heads, head_dim)
    return CrossCall(
        query=query, key=key, value=value, lengths=lengths, bias=bias,
        softcap=draw(CAPS), gap=draw(st.sampled_from([0, 5])),
    )  # fmt: skip


@each_set
@few
@given(call=cross_calls())
def test_inputs_with_lengths_and_bias(call: CrossCall, instructions: str) -> None:
    whole = call.run(1, instructions)
    close(whole, call.expected())
    for threads in (2, 3):
        np.testing.assert_array_equal(call.run(threads, instructions), whole)
    each = len(call.query) // len(call.key)
    for source in range(len(call.key)):
        alone = call.inputs(source, source + 1).run(2, instructions)
        np.testing.assert_array_equal(alone, whole[source * each : (source + 1) * each])


@st.composite
def whole_calls(draw: st.DrawFn, *, exact: bool) -> WholeCall:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    inputs, key_heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    head_dim, positions = draw(DIMS), draw(st.sampled_from([1, 7, 30, 65, 130, 300]))
    heads = key_heads * (draw(SHARED) if exact else 1)
    query = normal(rng, inputs, positions, heads, head_dim)
    key, value = (normal(rng, inputs, positions, key_heads, head_dim) for _ in range(2))
    bias = None
    if exact and draw(st.booleans()):
        bias = normal(rng, draw(st.sampled_from([1, inputs])), heads, positions, positions)
    lengths = None
    if draw(st.booleans()):
        lengths = np.array([draw(st.integers(1, positions)) for _ in range(inputs)], np.int32)
        for row, length in enumerate(lengths):
            for array in (query, key, value):
                array[row, length:] = np.nan
    gap = draw(st.sampled_from([0, 7]))
    gaps = (gap, draw(st.sampled_from([0, 3])), gap) if exact else (gap, gap, gap)
    call = WholeCall(
        query=query, key=key, value=value, lengths=lengths, bias=bias, exact=exact, gaps=gaps
    )
    if not exact:
        # What a score loses by rounding grows with it: rough calls are scaled as models scale.
        return replace(call, scale=head_dim**-0.5)
    rotates = head_dim % 2 == 0 and draw(st.booleans())
    angles = rng.uniform(0, 6, (positions, head_dim // 2)).astype(np.float32) if rotates else None
    window = draw(st.sampled_from([0, 0, 1, 2, 6, 11, 161]))
    return replace(call, softcap=draw(CAPS), window=window, angles=angles)


@each_set
@few
@given(call=whole_calls(exact=True))
def test_all_positions_exactly(call: WholeCall, instructions: str) -> None:
    whole = call.run(1, instructions)
    close(whole, call.expected())
    check_whole_bits(call, whole, instructions)


@each_set
@few
@given(call=whole_calls(exact=False))
def test_all_positions_roughly(call: WholeCall, instructions: str) -> None:
    whole = call.run(1, instructions)
    np.testing.assert_allclose(whole, call.expected(), rtol=0.06, atol=0.06)
    check_whole_bits(call, whole, instructions)


@each_set
def test_what_all_keys_have_in_common_costs_no_digits(instructions: str) -> None:
    rng = np.random.default_rng(5)
    query, key, value = (normal(rng, 1, 200, 2, 64) for _ in range(3))
    key += 30 * normal(rng, 1, 1, 2, 64)
    call = WholeCall(query=query, key=key, value=value, lengths=None, scale=0.125, exact=False)
    error = call.run(2, instructions) - call.expected()
    assert np.sqrt((error**2).mean()) < 0.01 * call.expected().std()


@each_set
def test_a_query_of_zeros_sees_all_alike(instructions: str) -> None:
    rng = np.random.default_rng(6)
    query, key, value = (normal(rng, 1, 70, 1, 64) for _ in range(3))
    query[0, 3] = 0
    call = WholeCall(query=query, key=key, value=value, lengths=None, exact=False)
    np.testing.assert_allclose(call.run(2, instructions)[0, 3], value[0].mean(0), atol=0.02)


@each_set
@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("position", [0, 65])
def test_what_is_not_a_number_is_not_lost(name: str, position: int, instructions: str) -> None:
    rng = np.random.default_rng(6)
    arrays = {each: normal(rng, 2, 70, 2, 64) for each in ("query", "key", "value")}
    arrays[name][0, position, 1, 3] = np.nan
    mixed = WholeCall(**arrays, lengths=None, exact=False).run(2, instructions)
    hurt = np.isnan(mixed)
    assert hurt[0, position, 1].any()
    assert hurt[0, :, 1].any(axis=-1).sum() == (1 if name == "query" else 70)
    assert not hurt[1].any()
    assert not hurt[0, :, 0].any()


@each_set
def test_far_scores_leave_one_share(instructions: str) -> None:
    rng = np.random.default_rng(7)
    query, value = normal(rng, 1, 300, 1, 64), normal(rng, 1, 300, 1, 64)
    call = WholeCall(query=query, key=query, value=value, lengths=None, scale=40.0, exact=False)
    np.testing.assert_allclose(call.run(1, instructions), value, rtol=0.01, atol=0.01)


def check_whole_bits(call: WholeCall, whole: Any, instructions: str) -> None:
    for threads in (2, 3):
        np.testing.assert_array_equal(call.run(threads, instructions), whole)
    for row in range(len(call.query)):
        alone = call.inputs(row, row + 1).run(2, instructions)
        np.testing.assert_array_equal(alone, whole[row : row + 1])


@each_set
@few
@given(
    seed=st.integers(0, 1 << 30),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 5, 64, 150])),
    head_dim=DIMS,
    number=NUMBERS,
    gap=st.sampled_from([0, 7]),
)
def test_encoded_inputs_become_a_cache(
    seed: int, sizes: tuple[int, int, int], head_dim: int, number: Any, gap: int, instructions: str
) -> None:
    count, heads, positions = sizes
    x = normal(np.random.default_rng(seed), count, positions, heads, head_dim)
    x[:, ::3] *= np.float32(1e-20) ** (np.arange(heads)[:, None] % 3)  # and positions of zeros
    width = heads * head_dim + gap
    lines = strided(x.reshape(count * positions, -1), width)
    expected = stored(x.swapaxes(1, 2), number)
    for threads in (1, 3):
        cache = guarded(nothing((count, heads, positions, line(head_dim, number)), number))
        strides = [stride // cache.itemsize for stride in cache.strides[:2]]
        words = [count, heads, positions, head_dim, lines.ctypes.data]
        words += [positions * width, head_dim, width, cache.ctypes.data]
        words += [{np.float32: 0, np.float16: 1, np.int8: 5}[number], *strides]
        run(machine(threads, instructions), Operation.STORE, words)
        np.testing.assert_array_equal(cache, expected)


@each_set
@pytest.mark.parametrize("hurt", [np.nan, np.inf])
def test_codes_of_what_is_not_finite_stand_for_that(hurt: float, instructions: str) -> None:
    rng = np.random.default_rng(8)
    past = [stored(normal(rng, 40, 2, 32), np.int8) for _ in range(2)]
    call = linear_call(rng, 3, 40, key_number=np.int8, value_number=np.int8)
    call = replace(call, past_keys=past, past_values=past)
    whole = call.run(2, instructions)[0]
    value = call.value.copy()
    value[0, 1, 0, 5] = hurt
    mixed = replace(call, value=value).run(2, instructions)[0]
    assert not np.isfinite(mixed[0, 1:, :2]).any()
    mixed[0, 1:, :2] = whole[0, 1:, :2]
    np.testing.assert_array_equal(mixed, whole)


def linear_call(rng: np.random.Generator, new: int, length: int, **changes: Any) -> SelfCall:
    """Return a call with two rows, 4 heads over 2 of keys, and heads of 32."""
    past = [normal(rng, length, 2, 32), normal(rng, length // 2, 2, 32)]
    call = SelfCall(
        query=normal(rng, 2, new, 4, 32),
        key=normal(rng, 2, new, 2, 32),
        value=normal(rng, 2, new, 2, 32),
        past_keys=past,
        past_values=[x[::-1] for x in past],
        key_number=np.float32,
        value_number=np.float32,
        capacity=length + new,
    )
    return replace(call, **changes)


@each_set
def test_masked_scores_weigh_nothing(instructions: str) -> None:
    rng = np.random.default_rng(0)
    bias = normal(rng, 2, 1, 3, 703)
    bias[..., 256:512] = -np.inf  # a whole part
    bias[..., 700] = -np.inf
    bias[..., :100] = np.finfo(np.float32).min
    call = linear_call(rng, 3, 700, bias=bias)
    close(call.run(2, instructions)[0], call.expected())


@each_set
def test_what_is_not_finite_reaches_only_those_who_see_it(instructions: str) -> None:
    call = linear_call(np.random.default_rng(1), 30, 240)
    value, key = call.value.copy(), call.key.copy()
    value[0, 20] = np.inf
    key[1, 10] = np.nan
    mixed = replace(call, value=value, key=key).run(2, instructions)[0]
    whole = call.run(2, instructions)[0]
    np.testing.assert_array_equal(mixed[0, :20], whole[0, :20])
    assert not np.isfinite(mixed[0, 20:]).any()
    np.testing.assert_array_equal(mixed[1, :10], whole[1, :10])
    assert np.isnan(mixed[1, 10:]).all()


@each_set
@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_subnormals_are_zeros_whatever_the_caller_has_set(
    threads: int, flushes: bool, instructions: str
) -> None:
    import torch

    query = np.zeros((1, 40, 1, 16), np.float32)
    value = np.full((1, 1, 1, 16), 1e-39, np.float32)
    call = CrossCall(query=query, key=np.zeros_like(value), value=value, lengths=None)
    if not torch.set_flush_denormal(flushes):
        pytest.skip("this processor cannot flush them")
    try:
        mixed = call.run(threads, instructions)
        assert (torch.tensor([1e-30]).mul(1e-9).item() == 0) == flushes  # as it was before
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(mixed, np.zeros_like(query))


@each_set
def test_every_half_is_read_and_every_rounding_written(instructions: str) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = np.where(np.isnan(halves), np.float16(0), halves)
    key = np.zeros((512, 1, 1, 128), np.float16)
    value = halves.reshape(key.shape)
    query = np.zeros((512, 1, 1, 128), np.float32)
    mixed = CrossCall(query=query, key=key, value=value, lengths=None).run(1, instructions)
    np.testing.assert_array_equal(mixed.ravel(), halves.astype(np.float32))

    finite = np.sort(halves[np.isfinite(halves)].astype(np.float32))
    middles = (finite[1:] + finite[:-1]) / 2
    told = [np.float32(x) for x in (np.inf, -np.inf, np.nan, 65519.9, 65520, 1e-8, -1e-30, 3e38)]
    numbers = np.concatenate(
        [middles, np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf), told]
    )
    numbers = np.resize(numbers, (1, -(-len(numbers) // 128), 1, 128)).astype(np.float32)
    call = SelfCall(
        query=np.zeros_like(numbers),
        key=np.zeros_like(numbers),
        value=numbers,
        past_keys=[np.zeros((0, 1, 128), np.float16)],
        past_values=[np.zeros((0, 1, 128), np.float16)],
        key_number=np.float16,
        value_number=np.float16,
        capacity=numbers.shape[1],
        window=1,
    )
    with np.errstate(over="ignore"):
        expected = numbers.astype(np.float16)[0, :, 0]
    np.testing.assert_array_equal(call.run(1, instructions)[2][0, 0], expected)


@each_set
@pytest.mark.parametrize("capacity", [9, 12, 40])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("crossing", [False, True])
def test_self_attention_is_torchs_also_with_an_input_in_the_same_softmax(
    capacity: int, softcap: float, crossing: bool, instructions: str
) -> None:
    import torch

    from kvcast.models.ops.attention import self_attention

    rng = np.random.default_rng(5)
    angles = rng.uniform(0, 6, (28, 16))
    tables: dict[str, Any] = {
        name: f(angles).astype(np.float32) for name, f in (("cosines", np.cos), ("sines", np.sin))
    }
    if crossing:
        tables |= {name: normal(rng, 1, 2, 13, 32) for name in ("cross_key", "cross_value")}
        tables["cross_lengths"] = np.array([11], np.int32)
    call = linear_call(rng, 7, 21, capacity=capacity, window=9, softcap=softcap, **tables)
    mixed, keys, values = call.run(2, instructions)
    caches = [torch.tensor(np.nan_to_num(cache)) for cache in call.caches()]
    flat = [torch.tensor(x).flatten(2) for x in (call.query, call.key, call.value)]
    given = [torch.tensor(call.lengths), call.scale, 9, softcap]
    options = {name: torch.tensor(table) for name, table in tables.items()}
    expected = self_attention(*flat, *caches, *given, **options)
    close(mixed.reshape(2, 7, -1), expected.numpy())
    for ours, theirs in zip((keys, values), caches, strict=True):
        close(np.nan_to_num(ours), theirs.numpy())
    if crossing:
        alone = replace(call, cross_key=None, cross_value=None, cross_lengths=None)
        assert np.abs(alone.run(2, instructions)[0] - mixed).max() > 0.1


@each_set
def test_attention_without_a_self_cache_is_torchs(instructions: str) -> None:
    import torch

    from kvcast.models.ops.attention import cross_attention, encoder_attention

    rng = np.random.default_rng(4)
    lengths = np.array([30, 11], np.int32)
    query, bias = normal(rng, 6, 2, 3, 16), normal(rng, 6, 3, 2, 30)
    key, value = normal(rng, 2, 3, 30, 16), normal(rng, 2, 3, 30, 16)
    cross = CrossCall(query=query, key=key, value=value, lengths=lengths, bias=bias)
    flat, *others = (torch.tensor(x) for x in (query.reshape(6, 2, -1), key, value))
    expected = cross_attention(flat, *others, 0.3, torch.tensor(lengths), torch.tensor(bias))
    close(cross.run(2, instructions).reshape(6, 2, -1), expected.numpy())

    lines = [normal(rng, 2, 30, 3, 16) for _ in range(3)]
    bias = normal(rng, 1, 3, 30, 30)
    whole = WholeCall(query=lines[0], key=lines[1], value=lines[2], lengths=lengths, bias=bias)
    flats = [torch.tensor(x).flatten(2) for x in lines]
    expected = encoder_attention(*flats, 3, 0.3, torch.tensor(lengths), torch.tensor(bias))
    mixed = whole.run(2, instructions).reshape(2, 30, -1)
    for row, length in enumerate(lengths):
        close(mixed[row, :length], expected.numpy()[row, :length])
