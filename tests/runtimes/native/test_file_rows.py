"""Rows of files, read, rounded and packed where they lie."""

from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as dequantized_by_gguf
from numpy.typing import NDArray

from kit.coded_gguf import put_halves
from kvcast.checkpoints.gguf.dequantize import read_blocks
from kvcast.runtimes.native.library import Format, Machine, instruction_sets
from kvcast.runtimes.native.matrices import Kind, packed_matrix, searched, store_matrix
from kvcast.spec.stored_matrices import (
    BLOCKS,
    FOUR_BITS,
    PREQUANTIZED,
    CodedMatrix,
    Encoding,
    FileRows,
    joined_rows,
    no_blocks,
)
from runtimes.native.native_calls import looked_up

ROWS, WIDTH = 150, 512  # some rows past the last whole tile
FLOATS = {Encoding.F32: np.float32, Encoding.F16: np.float16}
CODED = [kind for kind in Encoding if kind not in (*FLOATS, Encoding.BF16)]


NF4 = np.array(  # bitsandbytes' create_normal_map
    [
        *[-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453],
        *[-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0],
        *[0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224],
        *[0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0],
    ],
    np.float32,
)


def dequantize(raw: NDArray[np.uint8], encoding: Encoding) -> NDArray[np.float32]:
    """Dequantize rows of blocks, as gguf-py or the library of the format does."""
    if encoding not in PREQUANTIZED:
        matrix: NDArray[np.float32] = dequantized_by_gguf(raw, GGMLQuantizationType(encoding))
        return matrix
    blocks = raw.reshape(-1, BLOCKS[encoding][1])
    if encoding == Encoding.F8_E4M3:
        codes = torch.from_numpy(blocks[:, 4:].copy()).view(torch.float8_e4m3fn).float().numpy()
        return (codes * blocks[:, :4].copy().view("<f4")).reshape(len(raw), -1)
    packed = blocks[:, -16:]
    nibbles = np.concatenate([packed & 15, packed >> 4], axis=1)
    if encoding == Encoding.NF4:
        numbers = NF4[nibbles] * blocks[:, :4].copy().view("<f4")
    else:
        signed = nibbles.astype(np.float32) - blocks[:, 2:3]
        numbers = signed * blocks[:, :2].copy().view("<f2").astype(np.float32)
    return numbers.reshape(len(raw), -1)


def coded(encoding: Encoding, seed: int = 0, *, extreme: bool = False) -> NDArray[np.uint8]:
    """Return random blocks [rows, bytes], with scales of any size that halves have."""
    random = np.random.default_rng(seed)
    numbers, size = BLOCKS[encoding]
    blocks = random.integers(0, 256, (ROWS * WIDTH // numbers, size), dtype=np.uint8)
    if encoding == Encoding.MXFP4:
        blocks[:, 0] = random.integers(10 if extreme else 120, 250 if extreme else 134, len(blocks))
        return blocks.reshape(ROWS, -1)
    if encoding in (Encoding.NF4, Encoding.F8_E4M3):
        spread = 1e30 if extreme else 2.0
        scales = random.uniform(-spread, spread, (len(blocks), 1)).astype("<f4")
        blocks[:, :4] = scales.view(np.uint8)
        if encoding == Encoding.F8_E4M3 and not extreme:
            blocks[:, 4:][blocks[:, 4:] & 127 == 127] = 0  # NaN
        return blocks.reshape(ROWS, -1)
    if encoding == Encoding.INT4_ZERO_POINT:
        blocks[:, 2] &= 127
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
    expected = dequantize(raw, encoding)
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


def with_least(raw: NDArray[np.uint8]) -> CodedMatrix:
    blocks = raw.reshape(ROWS, -1, 19)
    scales = blocks[..., :2].copy().view("<f2")[..., 0]
    with np.errstate(over="ignore"):
        least = (scales.astype(np.float32) * -blocks[..., 2].astype(np.float32)).astype(np.float16)
    codes = np.concatenate([blocks[..., 3:] & 15, blocks[..., 3:] >> 4], axis=-1)
    return CodedMatrix(codes=codes.reshape(ROWS, -1), scales=scales, least=least)


@pytest.mark.parametrize("encoding", [Encoding.Q8_0, *sorted(FOUR_BITS)], ids=lambda own: own.name)
@pytest.mark.parametrize("instructions", instruction_sets())
def test_a_files_own_codes_are_kept(encoding: Encoding, instructions: str) -> None:
    machine, raw = Machine(2, instructions), coded(encoding)
    matrix = dequantize(raw, encoding)
    if encoding == Encoding.INT4_ZERO_POINT:
        own = with_least(raw)
    else:
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
        dequantize(first[::-1], Encoding.Q4_0),
        dequantize(second, Encoding.Q6_K),
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
