"""Matrices in a file's own codes: gguf-py's numbers, and their products."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kit.coded_gguf import WITH_LEAST, put_halves
from kvcast.errors import KvcastError
from kvcast.runtimes.native.library import Format
from kvcast.runtimes.native.matrices import Kind
from kvcast.runtimes.native.opcodes import Operation
from kvcast.runtimes.native.weights import format_of
from kvcast.spec.stored_matrices import BLOCKS, Encoding, FileRows
from runtimes.native.guarded import guarded
from runtimes.native.native_calls import (
    Floats,
    Rounded,
    address,
    all_instructions,
    call,
    flat,
    machine,
    rounded,
)
from runtimes.native.test_file_rows import CODED, NF4, ROWS, WIDTH, coded, dequantize, rows_of

EPSILON = 2.0**-24
CONVERTED = {Encoding.Q5_1}
"""Types that become int8 in blocks: no format holds their codes."""
ROUNDED = {Encoding.NF4, Encoding.F8_E4M3}
"""Types whose numbers a format holds to within int8's."""
KEPT = [encoding for encoding in CODED if encoding not in CONVERTED | ROUNDED]


def own_format(encoding: Encoding, width: int = WIDTH) -> Format:
    return format_of(Kind.INT8_BLOCK, {encoding}, width, own=True)


def blocks_of(encoding: Encoding, *, extreme: bool = False, seed: int = 0) -> NDArray[np.uint8]:
    """Return random blocks; of MXFP4 with the powers of two that halves have."""
    raw = coded(encoding, seed, extreme=extreme)
    if encoding == Encoding.MXFP4 and extreme:
        powers = np.random.default_rng(seed).integers(104, 143, raw.size // 17, np.uint8)
        raw.reshape(-1, 17)[:, 0] = powers
    return raw


def packed(
    instructions: str, encoding: Encoding, raw: NDArray[np.uint8], bias: Floats | None = None
) -> NDArray[np.uint8]:
    tiles = machine(2, instructions).pack_rows(
        own_format(encoding), rows_of(raw, encoding), bias, own=True
    )
    return guarded(tiles)


def unpacked(
    instructions: str, encoding: Encoding, tiles: NDArray[np.uint8], format_: Format | None = None
) -> Floats:
    ids, out = np.arange(ROWS), np.empty((ROWS, WIDTH), np.float32)
    call(
        machine(1, instructions), Operation.EMBEDDING,
        own_format(encoding) if format_ is None else format_, ROWS, WIDTH,
        address(tiles), address(ids), ROWS, *flat(out),
    )  # fmt: skip
    return out


def product(
    instructions: str, threads: int, encoding: Encoding, tiles: NDArray[np.uint8], x: Rounded
) -> Floats:
    out = np.full((x.shape[0], ROWS), np.nan, np.float32)
    call(
        machine(threads, instructions), Operation.PRODUCT, own_format(encoding), ROWS, WIDTH,
        address(tiles), x.shape[0], 0, 0, address(x.data), 0, 0, 0, 0, *flat(out), 0,
    )  # fmt: skip
    return out


@pytest.mark.parametrize("instructions", all_instructions())
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("encoding", KEPT, ids=lambda encoding: encoding.name)
def test_a_kept_matrix_is_ggufs(encoding: Encoding, extreme: bool, instructions: str) -> None:
    raw = blocks_of(encoding, extreme=extreme)
    expected = dequantize(raw, encoding)
    actual = unpacked(instructions, encoding, packed(instructions, encoding, raw))
    # A scale times a code, and the least value: two roundings there, one here.
    scale = np.abs(expected).reshape(ROWS, -1, 256).max(-1).repeat(256, axis=1)
    assert (np.abs(actual - expected) <= 2 * EPSILON * scale).all()
    assert encoding in WITH_LEAST or np.array_equal(actual, expected)


@cache
def _matrix(encoding: Encoding, extreme: bool) -> tuple[NDArray[np.uint8], Floats, Floats]:
    raw = blocks_of(encoding, extreme=extreme, seed=5)
    bias = np.random.default_rng(6).normal(size=ROWS).astype(np.float32)
    return raw, bias, dequantize(raw, encoding)


@cache
def _tiles(instructions: str, encoding: Encoding, extreme: bool) -> NDArray[np.uint8]:
    raw, bias, _ = _matrix(encoding, extreme)
    return packed(instructions, encoding, raw, bias)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from(KEPT), st.booleans(), st.integers(1, 20),
    st.integers(1, 3),
)  # fmt: skip
def test_products_are_those_of_ggufs_numbers_on_every_set(
    seed: int, encoding: Encoding, extreme: bool, rows: int, threads: int
) -> None:
    _, bias, matrix = _matrix(encoding, extreme)
    spread = 10.0 ** np.random.default_rng(seed).uniform(-3, 2, (rows, 1))
    numbers_rk = np.random.default_rng(seed).normal(size=(rows, WIDTH)) * spread
    x = rounded(numbers_rk.astype(np.float32))
    exact, wide = x.floats(), matrix.astype(np.float64)
    expected = exact @ wide.T + bias
    # Codes and least values are summed apart, and may be larger than what they make together.
    scale = np.abs(wide).reshape(ROWS, -1, 256).max(-1).repeat(256, axis=1) * 4
    close = (np.abs(exact) @ scale.T + np.abs(bias)) * 64 * EPSILON
    results = [
        product(name, threads, encoding, _tiles(name, encoding, extreme), x)
        for name in all_instructions()
    ]
    assert (np.abs(results[0] - expected) <= close).all()
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    alone = rounded(numbers_rk[-1:].astype(np.float32))
    for name in all_instructions():
        row = product(name, 1, encoding, _tiles(name, encoding, extreme), alone)
        np.testing.assert_array_equal(row[0], results[0][-1])


@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("encoding", KEPT, ids=lambda encoding: encoding.name)
def test_the_greatest_sums_do_not_overflow(encoding: Encoding, byte: int) -> None:
    raw = np.full_like(blocks_of(encoding), byte).reshape(-1, BLOCKS[encoding][1])
    if encoding == Encoding.MXFP4:
        raw[:, 0] = 127
    else:
        put_halves(encoding, raw, np.ones((len(raw), 2), np.float16))
    if encoding == Encoding.INT4_ZERO_POINT:
        raw[:, 2] &= 127
    raw = raw.reshape(ROWS, -1)
    matrix = dequantize(raw, encoding)
    x = rounded(np.full((7, WIDTH), 1, np.float32))
    expected = x.floats() @ matrix.astype(np.float64).T
    for name in all_instructions():
        actual = product(name, 2, encoding, packed(name, encoding, raw), x)
        largest = np.abs(matrix).max() * WIDTH
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6 * largest)


@pytest.mark.parametrize("instructions", all_instructions())
def test_nf4_is_rounded_as_its_table_is(instructions: str) -> None:
    raw = blocks_of(Encoding.NF4)
    raw.reshape(-1, 20)[:, :4] = np.array([127 / 512], "<f4").view(np.uint8)  # a half as it is
    actual = unpacked(instructions, Encoding.NF4, packed(instructions, Encoding.NF4, raw))
    np.testing.assert_array_equal(np.unique(actual), np.unique(np.rint(NF4 * 127)) / 512)
    exact = dequantize(raw, Encoding.NF4)
    assert np.abs(actual - exact).max() <= 0.5 / 512


@pytest.mark.parametrize("instructions", all_instructions())
@pytest.mark.parametrize("scale", [0.75, 2.0**-20])
def test_float8_is_exact_down_to_an_eighth_of_a_groups_greatest(
    scale: float, instructions: str
) -> None:
    raw = blocks_of(Encoding.F8_E4M3).reshape(-1, 36)
    raw[:, :4] = np.array([scale], "<f4").view(np.uint8)
    # Groups with small numbers alone, and with zeros.
    limits = np.arange(len(raw))[:, None] % 127
    raw[:, 4:] = np.where((raw[:, 4:] & 127) > limits, raw[:, 4:] & 128 | limits, raw[:, 4:])
    raw = raw.reshape(ROWS, -1)
    exact = dequantize(raw, Encoding.F8_E4M3)
    actual = unpacked(instructions, Encoding.F8_E4M3, packed(instructions, Encoding.F8_E4M3, raw))
    greatest = np.abs(exact).reshape(-1, 32).max(-1, keepdims=True).repeat(32, 1).reshape(ROWS, -1)
    step = 2.0**-25  # half that of halves that are not normal
    assert (np.abs(actual - exact) <= np.maximum(greatest / 128, 127 * step)).all()
    if scale == 0.75:
        kept = (np.abs(exact) >= greatest / 8) & (greatest >= 240 * 2.0**-14)
        assert kept.any()
        np.testing.assert_array_equal(actual[kept], exact[kept])


@pytest.mark.parametrize("instructions", all_instructions())
@pytest.mark.parametrize("encoding", CODED, ids=lambda encoding: encoding.name)
def test_rows_are_multiplied_by_their_factors(encoding: Encoding, instructions: str) -> None:
    raw, within = blocks_of(encoding), machine(2, instructions)
    factors = np.random.default_rng(1).uniform(0.1, 3, ROWS).astype(np.float32)
    rows = replace(rows_of(raw, encoding), factors=factors).moved(lambda index: index[::-1])
    expected = (dequantize(raw, encoding) * factors[:, None])[::-1]
    exact = unpacked(instructions, encoding, within.pack_rows(Format.F32, rows), Format.F32)
    np.testing.assert_array_equal(exact, expected)
    own = unpacked(instructions, encoding, within.pack_rows(own_format(encoding), rows, own=True))
    # Scales become halves, and so do least values, which may be larger than a sum; or all int8.
    has_sums = encoding in WITH_LEAST
    largest = np.abs(expected).reshape(ROWS, 1 if has_sums else WIDTH // 32, -1).max(-1)
    largest = largest.repeat(WIDTH // largest.shape[1], axis=1)
    allowed = 2.0**-6 if has_sums or encoding in ROUNDED else 2.0**-10
    smallest = 127 * 2.0**-25  # of a scale that is no normal half
    assert (np.abs(own - expected) <= allowed * largest + smallest).all()


def test_rows_without_a_formats_codes_are_refused() -> None:
    raw = blocks_of(Encoding.Q6_K)
    with pytest.raises(KvcastError, match="without the format's codes"):
        machine(1, "plain").pack_rows(Format.INT4_TABLE, rows_of(raw, Encoding.Q6_K), own=True)
    narrow = FileRows.of(raw.reshape(-1), ROWS, WIDTH - 32, Encoding.Q6_K)
    with pytest.raises(KvcastError, match="without whole blocks"):
        machine(1, "plain").pack_rows(Format.INT6_LARGE, narrow, own=True)
