"""Calls of single native instructions, with buffers that end where memory ends."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvcast.errors import LibraryMissingError
from kvcast.runtimes.native.interpreter import planned
from kvcast.runtimes.native.library import Format, Machine, aligned, instruction_sets, rounded_bytes
from kvcast.runtimes.native.opcodes import Activation, Operation, bits
from kvcast.spec.program import Constant, Node, ProgramWriter
from kvcast.spec.stored_matrices import FileRows
from runtimes.native.guarded import guarded

Floats = NDArray[np.float32]

BLOCK, GROUP, FINE = 64, 32, 16
BUNDLE_FORMATS = [Format.F32, Format.INT8, Format.INT8_BLOCK, Format.INT4_MIN]
"""The formats that are packed from codes; others are packed from a file's rows."""


@cache
def machine(threads: int, instructions: str) -> Machine:
    return Machine(threads, instructions)


@cache
def all_instructions() -> list[str]:
    try:
        return instruction_sets()
    except LibraryMissingError as error:
        pytest.skip(str(error))


def looked_up(machine: Machine, rows: FileRows) -> Floats:
    """Return the numbers [rows, width] of all rows of a file, as a program's lookup reads them."""
    write = ProgramWriter(["ids"])
    program = write.program(numbers=write.embedding("table", Node("ids"), (len(rows), rows.width)))
    ids, numbers = np.arange(len(rows)), np.empty((len(rows), rows.width), np.float32)
    plan = planned(program, {Constant("table"): rows}, {"ids": ids}, {"numbers": numbers})
    arena = aligned(plan.arena)
    plan.words[plan.in_arena] += arena.ctypes.data
    machine.run(plan.words)
    return numbers


def strided(rows: Floats, stride: int) -> Floats:
    """Return rows `stride` numbers apart in guarded memory that ends with the last of them.

    Between them lie NaN.
    """
    count, width = rows.shape
    flat = np.full((count - 1) * stride + width, np.nan, np.float32)
    flat = guarded(flat)
    view = np.lib.stride_tricks.as_strided(flat, rows.shape, (stride * 4, 4))
    view[...] = rows
    return view


def untouched(rows: Floats) -> bool:
    """Return whether NaN still lies between strided rows."""
    count, width = rows.shape
    stride = rows.strides[0] // 4
    between = np.lib.stride_tricks.as_strided(
        rows[:, width - 1 :], (count - 1, stride - width + 1), rows.strides
    )
    return bool(np.isnan(between[:, 1:]).all())


def address(array: NDArray[Any] | None) -> int:
    return 0 if array is None else int(array.ctypes.data)


def flat(rows: Floats | None) -> list[int]:
    return [0, 0] if rows is None else [address(rows), rows.strides[0] // 4]


def call(runner: Machine, operation: Operation, *words: int | float) -> None:
    """Run one instruction."""
    numbers = [bits(word) if isinstance(word, float) else int(word) for word in words]
    runner.run(np.array([operation, len(numbers), *numbers], np.int64))


class Rounded:
    """Rows of int8 in guarded memory, laid out as gemm.hpp says."""

    def __init__(self, rows: int, inputs: int) -> None:
        self.shape = rows, -(-inputs // BLOCK) * BLOCK
        self.inputs = inputs
        size = rounded_bytes(rows, inputs)
        self.data: NDArray[np.uint8] = guarded(np.full(size, 0x55, np.uint8))
        codes = rows * self.shape[1]
        self.codes = self.data[:codes].view(np.int8).reshape(self.shape)
        begin = -(-codes // 64) * 64
        self.scales = self.data[begin : begin + codes // BLOCK * 4].view(np.float32)
        self.scales = self.scales.reshape(rows, -1)
        begin += -(-self.scales.nbytes // 64) * 64
        self.offsets = self.data[begin : begin + codes // GROUP * 4].view(np.int32)
        self.offsets = self.offsets.reshape(rows, -1)
        begin += -(-self.offsets.nbytes // 64) * 64
        self.fine = self.data[begin : begin + codes // FINE * 4].view(np.int32)
        self.fine = self.fine.reshape(rows, -1)

    def floats(self) -> NDArray[np.float64]:
        """Return what the codes stand for."""
        scales = np.repeat(self.scales.astype(np.float64), BLOCK, axis=1)
        return (self.codes * scales)[:, : self.inputs]

    def equals(self, other: "Rounded") -> bool:
        return all(
            np.array_equal(getattr(self, part), getattr(other, part))
            for part in ("codes", "scales", "offsets", "fine")
        )


def rounded(x: Floats) -> Rounded:
    """Round rows with NumPy, as gemm.hpp says."""
    to = Rounded(*x.shape)
    padded = np.zeros(to.shape, np.float32)
    padded[:, : x.shape[1]] = x
    blocks = padded.reshape(len(x), -1, BLOCK)
    most = np.abs(blocks).max(-1)
    is_zero = most < np.float32(1e-30)
    safe = np.where(is_zero, np.float32(1), most)
    inverse = np.where(is_zero, np.float32(0), np.float32(127) / safe)
    to.codes[...] = np.rint(blocks * inverse[..., None]).reshape(to.shape)
    to.scales[...] = np.where(is_zero, np.float32(0), most / np.float32(127))
    for sums, size in ((to.offsets, GROUP), (to.fine, FINE)):
        sums[...] = -128 * to.codes.reshape(len(x), -1, size).sum(-1, dtype=np.int32)
    return to


class Matrix:
    """A random matrix of a format, and what it stands for."""

    def __init__(
        self, rng: np.random.Generator, format_: Format, outputs: int, inputs: int, *, bias: bool
    ) -> None:
        self.format, self.shape = format_, (outputs, inputs)
        self.scales: Floats | None = None
        self.bias = rng.normal(size=outputs).astype(np.float32) if bias else None
        groups = -(-inputs // GROUP)
        half = np.float16
        if format_ == Format.F32:
            self.codes: NDArray[Any] = rng.normal(size=self.shape).astype(np.float32)
            self.weights = self.codes.astype(np.float64)
        elif format_ == Format.INT8:
            self.codes = rng.integers(-128, 128, self.shape, np.int8)
            self.scales = rng.uniform(1e-3, 1e-2, outputs).astype(np.float32)
            self.weights = self.codes * self.scales[:, None].astype(np.float64)
        elif format_ == Format.INT8_BLOCK:
            self.codes = rng.integers(-128, 128, self.shape, np.int8)
            self.scales = rng.uniform(1e-6, 1e-2, (outputs, groups)).astype(np.float32)
            each = np.repeat(self.scales.astype(half).astype(np.float64), GROUP, axis=1)
            self.weights = self.codes * each[:, :inputs]
        else:
            codes = rng.integers(0, 16, (outputs, -(-inputs // 2) * 2), np.uint8)
            self.codes = codes[:, 0::2] | codes[:, 1::2] << 4
            scale = rng.uniform(1e-6, 1e-2, (outputs, groups))
            least = rng.uniform(-1e-1, 1e-2, (outputs, groups))
            self.scales = np.stack([scale, least]).astype(np.float32)
            each, first = np.repeat(self.scales.astype(half).astype(np.float64), GROUP, axis=2)[
                ..., :inputs
            ]
            self.weights = codes[:, :inputs] * each + first

    def packed(self, runner: Machine) -> NDArray[np.uint8]:
        codes = guarded(self.codes)
        scales, bias = (
            None if array is None else guarded(array) for array in (self.scales, self.bias)
        )
        return guarded(runner.pack(self.format, codes, scales, bias, inputs=self.shape[1]))


def multiply(
    runner: Machine,
    matrix: Matrix,
    tiles: NDArray[np.uint8],
    x: Floats | Rounded,
    *,
    activation: Activation = Activation.NONE,
    gated: bool = False,
    residual: Floats | None = None,
    out: Floats | None = None,
    to: Rounded | None = None,
) -> None:
    floats, codes = (None, x.data) if isinstance(x, Rounded) else (x, None)
    rows = x.shape[0]
    call(
        runner,
        Operation.PRODUCT,
        *(matrix.format, *matrix.shape, address(tiles), rows),
        *(*flat(floats), address(codes), activation, gated),
        *(*flat(residual), *flat(out), address(to.data if to else None)),
    )


def activated(activation: Activation, x: NDArray[np.float64]) -> NDArray[np.float64]:
    erf = np.vectorize(math.erf, otypes=[np.float64])
    cubic = 0.7978845608028654 * (x + 0.044715 * x**3)
    with np.errstate(over="ignore"):
        results: dict[Activation, NDArray[np.float64]] = {
            Activation.NONE: x,
            Activation.GELU: x / 2 * (1 + erf(x / math.sqrt(2))),
            Activation.GELU_TANH: x / 2 * (1 + np.tanh(cubic)),
            Activation.SILU: x / (1 + np.exp(-x)),
            Activation.RELU: np.maximum(x, 0),
            Activation.TANH: np.tanh(x),
            Activation.SIGMOID: 1 / (1 + np.exp(-x)),
        }
    return results[activation]
