"""Rows of files, read, rounded and packed where they lie."""

from typing import Any

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from kit.coded_gguf import put_halves
from kvcast.checkpoints.gguf.dequantize import read_blocks
from kvcast.runtimes.native.library import Format, Machine, instruction_sets
from kvcast.runtimes.native.matrices import Kind, packed_matrix, searched, store_matrix
from kvcast.spec.stored_matrices import FOUR_BITS, Encoding, FileRows, joined_rows, no_blocks
from runtimes.native.native_calls import looked_up

ROWS, WIDTH = 150, 512  # some rows past the last whole tile
FLOATS = {Encoding.F32: np.float32, Encoding.F16: np.float16}
CODED = [kind for kind in Encoding if kind not in (*FLOATS, Encoding.BF16)]


def coded(encoding: Encoding, seed: int = 0, *, extreme: bool = False) -> NDArray[np.uint8]:
    """Return random blocks [rows, bytes], with scales of any size that halves have."""
    random = np.random.default_rng(seed)
    numbers, size = GGML_QUANT_SIZES[GGMLQuantizationType(encoding)]
    blocks = random.integers(0, 256, (ROWS * WIDTH // numbers, size), dtype=np.uint8)
    if encoding == Encoding.MXFP4:
        blocks[:, 0] = random.integers(10 if extreme else 120, 250 if extreme else 134, len(blocks))
        return blocks.reshape(ROWS, -1)
    spread = 5e4 if extreme else 2.0
    halves = random.uniform(-spread, spread, (len(blocks), 2)).astype(np.float16)
    halves[::7] = [0, 6e-8]  # nothing, and the smallest half
    put_halves(encoding, blocks, halves)
    return blocks.reshape(ROWS, -1)


def rows_of(raw: NDArray[np.uint8], encoding: Encoding) -> FileRows:
    return FileRows.of(raw.reshape(-1), ROWS, WIDTH, encoding)


@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("encoding", CODED, ids=lambda encoding: encoding.name)
def test_numbers_are_those_of_gguf(encoding: Encoding, extreme: bool, instructions: str) -> None:
    raw = coded(encoding, extreme=extreme)
    expected = dequantize(raw, GGMLQuantizationType(encoding))
    actual = looked_up(Machine(2, instructions), rows_of(raw, encoding))
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize("width", [1, 15, 33])
def test_floats_of_any_width_and_place(width: int, instructions: str) -> None:
    machine, random = Machine(1, instructions), np.random.default_rng(1)
    for encoding, dtype in FLOATS.items():
        numbers = random.normal(0, 100, (9, width)).astype(dtype)
        numbers[0, 0], numbers[-1, -1] = np.inf, 6e-8
        raw = np.empty(1 + numbers.nbytes, np.uint8)[1:]  # aligned to nothing
        raw[:] = numbers.view(np.uint8).reshape(-1)
        actual = looked_up(machine, FileRows.of(raw, 9, width, encoding))
        np.testing.assert_array_equal(actual, numbers.astype(np.float32))
    bits = random.integers(0, 0x7F80, (9, width)).astype(np.uint16)
    expected = np.left_shift(bits.astype(np.uint32), 16).view(np.float32)
    actual = looked_up(
        machine, FileRows.of(bits.view(np.uint8).reshape(-1), 9, width, Encoding.BF16)
    )
    np.testing.assert_array_equal(actual, expected)


def tiles_of(machine: Machine, matrix: NDArray[np.float32], kind: Kind, own: Any) -> Any:
    """Return the tiles of a matrix that NumPy quantises."""
    parts = store_matrix("m", matrix, kind, own) | {
        "bias": np.arange(len(matrix), dtype=np.float32)
    }
    return packed_matrix(machine, parts, "m", "bias")


@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize(
    ("kind", "format_"),
    [
        (Kind.EXACT, Format.F32),
        (Kind.INT8, Format.INT8),
        (Kind.INT8_BLOCK, Format.INT8_BLOCK),
        (Kind.INT4, Format.INT4_MIN),
    ],
)
def test_floats_are_rounded_as_numpy_rounds(
    kind: Kind, format_: Format, scale: float, instructions: str
) -> None:
    machine = Machine(2, instructions)
    matrix = np.random.default_rng(2).normal(0, scale, (ROWS, 96)).astype(np.float32)
    matrix[3], matrix[:, 40] = 0, 0
    expected = tiles_of(machine, matrix, kind, no_blocks)
    assert expected.format == format_
    bias = np.arange(ROWS, dtype=np.float32)
    actual = machine.pack_rows(format_, FileRows.of_floats(matrix), bias)
    np.testing.assert_array_equal(actual, expected.tiles)


@pytest.mark.parametrize("encoding", [Encoding.Q8_0, *sorted(FOUR_BITS)])
@pytest.mark.parametrize("instructions", instruction_sets())
def test_a_files_own_codes_are_kept(encoding: Encoding, instructions: str) -> None:
    machine, raw = Machine(2, instructions), coded(encoding)
    matrix = dequantize(raw, GGMLQuantizationType(encoding))
    own = read_blocks(encoding.name, raw.reshape(-1), matrix.shape)
    expected = tiles_of(machine, matrix, Kind.INT4, {"m": own}.get)
    bias = np.arange(ROWS, dtype=np.float32)
    actual = machine.pack_rows(expected.format, rows_of(raw, encoding), bias)
    np.testing.assert_array_equal(actual, expected.tiles)


def test_rows_are_moved_and_joined_without_a_copy() -> None:
    first, second = coded(Encoding.Q4_0), coded(Encoding.Q6_K, 1)
    turned = rows_of(first, Encoding.Q4_0).moved(lambda rows: rows[::-1])
    both = joined_rows([turned, rows_of(second, Encoding.Q6_K)])
    assert both.kinds() == {Encoding.Q4_0, Encoding.Q6_K}
    expected = [
        dequantize(first[::-1], GGMLQuantizationType.Q4_0),
        dequantize(second, GGMLQuantizationType.Q6_K),
    ]
    np.testing.assert_array_equal(looked_up(Machine(1), both), np.concatenate(expected))


def test_the_search_is_numpys() -> None:
    matrix = np.random.default_rng(3).standard_t(3, (70, 640)).astype(np.float32)
    blocks = searched(matrix)
    machine = Machine(2)
    parts = store_matrix("m", matrix, Kind.INT4, {"m": blocks}.get)
    expected = packed_matrix(machine, parts, "m").tiles
    actual = machine.pack_rows(Format.INT4_MIN, FileRows.of_floats(matrix))
    np.testing.assert_array_equal(actual, expected)
