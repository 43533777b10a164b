"""Products of packed matrices: against NumPy, the plain instructions, and themselves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcast.errors import KvcastError
from kvcast.runtimes.native.library import Format
from kvcast.runtimes.native.opcodes import Activation, Operation
from runtimes.native.guarded import guarded
from runtimes.native.native_calls import (
    BUNDLE_FORMATS,
    Floats,
    Matrix,
    Rounded,
    activated,
    address,
    all_instructions,
    call,
    flat,
    machine,
    multiply,
    rounded,
    strided,
    untouched,
)

CODES = [Format.INT8, Format.INT8_BLOCK, Format.INT4_MIN]
EPSILON = 2.0**-24

seeds = st.integers(0, 2**32 - 1)
widths = st.integers(1, 300)
counts = st.integers(1, 20)
formats = st.sampled_from(BUNDLE_FORMATS)

# Outputs that a tile lacks stay zeros.
PRODUCTS = [activation for activation in Activation if activation is not Activation.SIGMOID]


def rows_of(rng: np.random.Generator, rows: int, width: int) -> Floats:
    """Return rows of very different sizes; some blocks are zero."""
    x = rng.normal(size=(rows, width)) * 10 ** rng.uniform(-3, 2, (rows, 1))
    x[:, :64] *= rng.integers(0, 2, (rows, 1))
    return x.astype(np.float32)


def input_of(matrix: Matrix, x: Floats, pad: int = 0) -> Floats | Rounded:
    return strided(x, x.shape[1] + pad) if matrix.format == Format.F32 else rounded(x)


@settings(max_examples=60, deadline=None)
@given(seeds, counts, widths, st.integers(0, 40), st.integers(1, 3))
def test_rounding_is_numpys(seed: int, rows: int, width: int, pad: int, threads: int) -> None:
    x = rows_of(np.random.default_rng(seed), rows, width)
    for name in all_instructions():
        to, apart = Rounded(rows, width), strided(x, width + pad)
        runner = machine(threads, name)
        call(runner, Operation.ROUND, *flat(apart), rows, width, address(to.data))
        assert to.equals(rounded(x))


@settings(max_examples=150, deadline=None)
@given(
    seeds, formats, counts, widths, widths, st.integers(0, 40), st.booleans(),
    st.sampled_from(PRODUCTS), st.sampled_from(["none", "apart", "in place"]), st.integers(1, 3),
)  # fmt: skip
def test_product_is_numpys(
    seed: int, format_: Format, rows: int, outputs: int, inputs: int, pad: int, bias: bool,
    activation: Activation, residual: str, threads: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    matrix = Matrix(rng, format_, outputs, inputs, bias=bias)
    x = rows_of(rng, rows, inputs)
    added = rng.normal(size=(rows, outputs)).astype(np.float32)
    exact = x.astype(np.float64)
    if format_ != Format.F32:
        exact = rounded(x).floats()
    shift = 0 if matrix.bias is None else matrix.bias
    sums = exact @ matrix.weights.T + shift
    bound = np.abs(exact) @ np.abs(matrix.weights).T + np.abs(shift)
    wanted = activated(activation, sums) + (added if residual != "none" else 0)
    close = bound * (inputs + 8) * EPSILON * 1.2 + np.abs(wanted) * 1e-6 + 1e-6

    for name in all_instructions():
        runner = machine(threads, name)
        tiles = matrix.packed(runner)
        out = strided(added if residual == "in place" else np.zeros_like(added), outputs + pad)
        to = Rounded(rows, outputs)
        residuals = {"none": None, "apart": strided(added, outputs + 3), "in place": out}
        multiply(
            runner, matrix, tiles, input_of(matrix, x, pad), activation=activation, out=out, to=to,
            residual=residuals[residual],
        )  # fmt: skip
        assert (np.abs(out - wanted) <= close).all()
        assert untouched(out)
        assert to.equals(rounded(np.ascontiguousarray(out)))


@settings(max_examples=40, deadline=None)
@given(
    seeds, formats, st.integers(1, 300), st.integers(1, 3), widths, st.integers(0, 40),
    st.sampled_from(Activation), st.integers(1, 3),
)  # fmt: skip
def test_a_gate_after_a_product_is_one_of_its_own(
    seed: int, format_: Format, rows: int, tiles: int, inputs: int, pad: int,
    activation: Activation, threads: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    inner = tiles * 64
    matrix = Matrix(rng, format_, 2 * inner, inputs, bias=True)
    x = rows_of(rng, rows, inputs)
    for name in all_instructions():
        runner = machine(threads, name)
        packed, given_x = matrix.packed(runner), input_of(matrix, x)
        both = np.zeros((rows, 2 * inner), np.float32)
        multiply(runner, matrix, packed, given_x, out=both)
        expected, codes = np.zeros((rows, inner), np.float32), Rounded(rows, inner)
        words = [address(both), 2 * inner, address(both) + 4 * inner, 2 * inner, rows, inner]
        call(runner, Operation.GATED, *words, activation, *flat(expected), address(codes.data))
        out, to = strided(np.zeros_like(expected), inner + pad), Rounded(rows, inner)
        multiply(runner, matrix, packed, given_x, activation=activation, gated=True, out=out, to=to)
        assert np.array_equal(out, expected)
        assert untouched(out)
        assert to.equals(codes)


def test_a_gate_is_of_whole_tiles() -> None:
    matrix = Matrix(np.random.default_rng(1), Format.F32, 96, 8, bias=False)
    runner = machine(1, all_instructions()[0])
    x, out = np.zeros((1, 8), np.float32), np.zeros((1, 48), np.float32)
    with pytest.raises(KvcastError, match="whole tiles"):
        multiply(runner, matrix, matrix.packed(runner), x, gated=True, out=out)


@settings(max_examples=60, deadline=None)
@given(seeds, st.sampled_from(CODES), counts, widths, st.integers(1, 700))
def test_instruction_sets_agree_bit_for_bit(
    seed: int, format_: Format, rows: int, outputs: int, inputs: int
) -> None:
    rng = np.random.default_rng(seed)
    matrix = Matrix(rng, format_, outputs, inputs, bias=True)
    x = rounded(rows_of(rng, rows, inputs))
    residual = rng.normal(size=(rows, outputs)).astype(np.float32)
    results = []
    for name in all_instructions():
        runner = machine(2, name)
        out = np.zeros_like(residual)
        multiply(runner, matrix, matrix.packed(runner), x, residual=residual, out=out)
        results.append(out)
    assert all(np.array_equal(results[0], other) for other in results)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("format_", CODES)
def test_the_greatest_sums_do_not_overflow(format_: Format, sign: int) -> None:
    rng = np.random.default_rng(1)
    matrix = Matrix(rng, format_, 70, 256, bias=False)
    largest = 0xFF if format_ == Format.INT4_MIN else 0x80
    matrix.codes.view(np.uint8)[...] = largest  # 15 twice, or -128
    assert matrix.scales is not None
    matrix.scales[...] = 1
    if format_ == Format.INT4_MIN:
        matrix.scales[1] = 0  # what code 0 stands for
    x = rounded(np.full((6, 256), sign, np.float32))
    expected = x.floats().sum(1) * (15 if format_ == Format.INT4_MIN else -128)
    for name in all_instructions():
        runner = machine(1, name)
        out = np.zeros((6, 70), np.float32)
        multiply(runner, matrix, matrix.packed(runner), x, out=out)
        np.testing.assert_allclose(out, np.tile(expected[:, None], 70), rtol=1e-6)


@settings(max_examples=30, deadline=None)
@given(seeds, formats, st.integers(1, 600), widths, st.integers(1, 200))
def test_neither_rows_nor_threads_change_a_row(
    seed: int, format_: Format, rows: int, outputs: int, inputs: int
) -> None:
    rng = np.random.default_rng(seed)
    matrix = Matrix(rng, format_, outputs, inputs, bias=True)
    x = rows_of(rng, rows, inputs)
    chosen = sorted({0, rows // 2, rows - 1})
    for name in all_instructions():
        tiles = matrix.packed(machine(1, name))
        results = []
        for threads in (1, 2, 3):
            out = np.zeros((rows, outputs), np.float32)
            multiply(machine(threads, name), matrix, tiles, input_of(matrix, x), out=out)
            results.append(out)
        for m in chosen:
            alone = np.zeros((1, outputs), np.float32)
            multiply(machine(2, name), matrix, tiles, input_of(matrix, x[m : m + 1]), out=alone)
            assert np.array_equal(alone[0], results[0][m])
        assert all(np.array_equal(results[0], other) for other in results[1:])


@settings(max_examples=20, deadline=None)
@given(seeds, formats, widths, widths)
def test_a_row_of_nan_stays_alone(seed: int, format_: Format, outputs: int, inputs: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = Matrix(rng, format_, outputs, inputs, bias=False)
    x = rows_of(rng, 9, inputs)
    for name in all_instructions():
        runner = machine(2, name)
        tiles = matrix.packed(runner)
        results = []
        for bad in (0.0, np.nan):
            given_x = input_of(matrix, x)
            if isinstance(given_x, Rounded):
                given_x.scales[4] = bad
            else:
                given_x[4] = bad
            out, to = np.zeros((9, outputs), np.float32), Rounded(9, outputs)
            multiply(runner, matrix, tiles, given_x, out=out, to=to)
            results.append((np.delete(out, 4, 0), np.delete(to.codes, 4, 0)))
        for clean, among_nan in zip(*results, strict=True):
            assert np.array_equal(clean, among_nan)


@settings(max_examples=20, deadline=None)
@given(seeds, st.sampled_from(CODES), widths, widths, st.sampled_from([np.nan, np.inf, -np.inf]))
def test_what_is_no_number_is_not_lost(
    seed: int, format_: Format, outputs: int, inputs: int, bad: float
) -> None:
    rng = np.random.default_rng(seed)
    matrix = Matrix(rng, format_, outputs, inputs, bias=False)
    x = rows_of(rng, 3, inputs)
    x[1, rng.integers(inputs)] = bad
    roundings = []
    for name in all_instructions():
        runner = machine(2, name)
        to, out = Rounded(3, inputs), np.zeros((3, outputs), np.float32)
        call(runner, Operation.ROUND, *flat(x), 3, inputs, address(to.data))
        multiply(runner, matrix, matrix.packed(runner), to, out=out)
        assert not np.isfinite(to.scales[1]).all()
        assert not np.isfinite(out[1]).any()
        assert np.isfinite(out[[0, 2]]).all()
        roundings.append(to)
    for other in roundings:
        assert np.array_equal(other.codes, roundings[0].codes)
        assert np.array_equal(other.offsets, roundings[0].offsets)


@settings(max_examples=60, deadline=None)
@given(seeds, formats, widths, widths, st.integers(0, 20))
def test_rows_of_a_table_are_what_was_packed(
    seed: int, format_: Format, outputs: int, inputs: int, pad: int
) -> None:
    rng = np.random.default_rng(seed)
    matrix = Matrix(rng, format_, outputs, inputs, bias=True)
    ids = guarded(rng.integers(0, outputs, 5))
    for name in all_instructions():
        runner = machine(1, name)
        tiles = matrix.packed(runner)
        out = strided(np.zeros((len(ids), inputs), np.float32), inputs + pad)
        call(
            runner, Operation.EMBEDDING, format_, *matrix.shape, address(tiles),
            address(ids), len(ids), *flat(out),
        )  # fmt: skip
        assert np.array_equal(out, matrix.weights[ids].astype(np.float32))
        assert untouched(out)
