"""Quantized matrices in checkpoints: int8 or int4 codes, in blocks of 32 inputs; encoded rows.

Int8 codes may instead have a scale for each output.

A `FileRows` row is an address and an encoding, so kernels read rows in place from the mapped file;
reordering rows, or joining several tensors', copies nothing.
"""

import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

BLOCK = 32


@dataclass(frozen=True, kw_only=True)
class CodedMatrix:
    """A matrix [outputs, inputs]; a value is code * scale, plus its block's minimum."""

    codes: NDArray[Any]  # int8, or 0 .. 15 as uint8 with minimums, [outputs, inputs]
    scales: NDArray[np.floating[Any]]  # float16 [outputs, inputs / 32], or float32 [outputs]
    least: NDArray[np.float16] | None = None  # the value of code 0, likewise; None for int8

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    def dequantize(self) -> NDArray[np.float32]:
        inside = self.codes.reshape(*self.scales.shape, -1).astype(np.float32)
        values = inside * self.scales[..., None].astype(np.float32)
        if self.least is not None:
            values += self.least[..., None].astype(np.float32)
        return values.reshape(self.shape)

    def moved(self, move: Callable[[NDArray[Any]], NDArray[Any]]) -> "CodedMatrix":
        """With its outputs in the order that `move` gives to rows."""
        least = None if self.least is None else move(self.least)
        return CodedMatrix(codes=move(self.codes), scales=move(self.scales), least=least)


def unpack_nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the codes [..., 2 * n] of bytes [..., n] with two of 4 bits each, low bits first."""
    return np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)


BlocksOf = Callable[[str], CodedMatrix | None]
"""The blocks of a checkpoint's matrix, by its canonical name; None where it has none."""


def no_blocks(_: str) -> None:
    """Return None: `blocks_of` of a checkpoint without quantized matrices."""


def of_eight_bits(blocks_of: BlocksOf) -> BlocksOf:
    """Without codes of 4 bits."""

    def blocks(name: str) -> CodedMatrix | None:
        own = blocks_of(name)
        return own if own is None or own.least is None else None

    return blocks


def joined(parts: Sequence[CodedMatrix]) -> CodedMatrix:
    """Concatenate outputs; parts of mixed kinds all become int8."""
    least = [part.least for part in parts]
    given = [part_least for part_least in least if part_least is not None]
    if 0 < len(given) < len(parts):
        parts = [part if part.least is None else rounded(part.dequantize()) for part in parts]
        given = []
    return CodedMatrix(
        codes=np.concatenate([part.codes for part in parts]),
        scales=np.concatenate([part.scales for part in parts]),
        least=np.concatenate(given) if given else None,
    )


def rounded(matrix: NDArray[np.float32]) -> CodedMatrix:
    """Return the nearest int8 blocks; inputs are a multiple of 32."""
    blocks = matrix.reshape(len(matrix), -1, BLOCK)
    most = np.finfo(np.float16).max
    with np.errstate(all="ignore"):  # a damaged file may hold any values
        scales = (np.abs(blocks).max(axis=-1) / np.float32(127)).clip(0, most).astype(np.float16)
        divisors = scales.astype(np.float32)[..., None]
        codes = np.divide(blocks, divisors, out=np.zeros_like(blocks), where=divisors > 0)
        codes = np.rint(np.nan_to_num(codes)).clip(-127, 127)
    return CodedMatrix(codes=codes.astype(np.int8).reshape(matrix.shape), scales=scales)


class Encoding(IntEnum):
    """The encoding of a row of values; ggml's types have their GGUF ids.

    Those from 128 on are made of the tensors of pre-quantized folders.
    """

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    INT4_ZERO_POINT = 128  # float16 scale, uint8 zero point, nibbles as in Q4_0
    NF4 = 129  # float32 scale, nibbles
    F8_E4M3 = 130  # float32 scale, bytes


BLOCKS: Mapping[Encoding, tuple[int, int]] = {
    **{Encoding.F32: (1, 4), Encoding.F16: (1, 2), Encoding.BF16: (1, 2)},
    **{Encoding.Q4_0: (32, 18), Encoding.Q4_1: (32, 20), Encoding.Q5_0: (32, 22)},
    **{Encoding.Q5_1: (32, 24), Encoding.Q8_0: (32, 34), Encoding.IQ4_NL: (32, 18)},
    **{Encoding.MXFP4: (32, 17), Encoding.Q2_K: (256, 84), Encoding.Q3_K: (256, 110)},
    **{Encoding.Q4_K: (256, 144), Encoding.Q5_K: (256, 176), Encoding.Q6_K: (256, 210)},
    **{Encoding.IQ4_XS: (256, 136), Encoding.IQ3_S: (256, 110), Encoding.IQ3_XXS: (256, 98)},
    **{Encoding.IQ2_S: (256, 82), Encoding.IQ2_XS: (256, 74), Encoding.IQ2_XXS: (256, 66)},
    **{Encoding.IQ1_M: (256, 56), Encoding.IQ1_S: (256, 50), Encoding.NVFP4: (64, 36)},
    **{Encoding.TQ1_0: (256, 54), Encoding.TQ2_0: (256, 66)},
    **{Encoding.INT4_ZERO_POINT: (32, 19), Encoding.NF4: (32, 20), Encoding.F8_E4M3: (32, 36)},
}
"""Numbers and bytes of a block, ggml's from ggml-common.h."""

PREQUANTIZED = frozenset(kind for kind in Encoding if kind >= Encoding.INT4_ZERO_POINT)
"""Encodings that no file has."""

FLOATS = frozenset({Encoding.F32, Encoding.F16, Encoding.BF16})
FOUR_BITS = frozenset(
    {
        *(Encoding.Q4_0, Encoding.Q4_1, Encoding.Q4_K, Encoding.TQ1_0, Encoding.TQ2_0),
        Encoding.INT4_ZERO_POINT,
    }
)
"""Codes of 0 .. 15 with a scale and a least value for 32 of them."""


def release(array: NDArray[Any], first: int = 0, end: int | None = None) -> None:
    """Release whole pages of a mapped file that hold bytes first .. end of an array, if any do."""
    mapped: Any = array
    while isinstance(mapped, np.ndarray):
        mapped = mapped.base
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    begin = array.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    end = array.nbytes if end is None else min(end, array.nbytes)
    first = -(-(begin + first) // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (begin + end - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if size > 0:
        mapped.madvise(mmap.MADV_DONTNEED, first, size)


@dataclass(frozen=True, kw_only=True)
class FileRows:
    addresses: NDArray[np.int64]  # int64 [rows]
    encodings: NDArray[np.int32]  # int32 [rows], of `Encoding`
    width: int
    owners: Sequence[Any]  # the arrays that hold the rows, kept alive by this
    factors: NDArray[np.float32] | None = None  # of rows' values, float32 [rows]; None: ones

    def __len__(self) -> int:
        return len(self.addresses)

    @property
    def nbytes(self) -> int:
        counts = np.bincount(self.encodings).tolist()
        sizes = [BLOCKS[Encoding(i)] if count else (1, 0) for i, count in enumerate(counts)]
        return sum(
            count * self.width // values * size
            for count, (values, size) in zip(counts, sizes, strict=True)
        )

    @classmethod
    def of(
        cls,
        raw: NDArray[np.uint8],
        rows: int,
        width: int,
        encoding: Encoding,
        factor: np.float32 | None = None,
    ) -> Self:
        first, each = raw.ctypes.data, raw.nbytes // rows
        return cls(
            addresses=first + each * np.arange(rows, dtype=np.int64),
            encodings=np.full(rows, encoding, np.int32),
            width=width,
            owners=(raw,),
            factors=None if factor is None else np.full(rows, factor),
        )

    @classmethod
    def of_floats(cls, matrix: NDArray[Any]) -> Self:
        """From an array [rows, width]."""
        floats = np.ascontiguousarray(matrix, np.float32)
        return cls.of(floats.view(np.uint8).reshape(-1), len(floats), floats.shape[1], Encoding.F32)

    def moved(self, move: Callable[[NDArray[Any]], NDArray[Any]]) -> Self:
        return self.part(move(np.arange(len(self))))

    def part(self, index: Any) -> Self:
        return type(self)(
            addresses=np.ascontiguousarray(self.addresses[index]),
            encodings=np.ascontiguousarray(self.encodings[index]),
            width=self.width,
            owners=self.owners,
            factors=None if self.factors is None else np.ascontiguousarray(self.factors[index]),
        )

    def release(self) -> None:
        """Release mapped files' read pages, which count as this process's memory."""
        for owner in self.owners:
            begin = owner.ctypes.data
            places = self.addresses[
                (self.addresses >= begin) & (self.addresses < begin + owner.nbytes)
            ]
            if len(places) == 0:
                continue
            # As many bytes after the last row as rows lie apart, of those that lie here.
            first, last = int(places.min()) - begin, int(places.max()) - begin
            release(owner, first, last + (last - first) // max(1, len(places) - 1))

    def runs(self) -> list[slice]:
        ends = [*(np.flatnonzero(np.diff(self.encodings)) + 1).tolist(), len(self)]
        return [slice(first, end) for first, end in zip([0, *ends], ends, strict=False)]

    def kinds(self) -> set[Encoding]:
        # `np.unique` imports masked arrays.
        return set(map(Encoding, np.flatnonzero(np.bincount(self.encodings)).tolist()))


def joined_rows(parts: Sequence[FileRows]) -> FileRows:
    has_factors = any(part.factors is not None for part in parts)
    factors = [
        np.ones(len(part), np.float32) if part.factors is None else part.factors for part in parts
    ]
    return FileRows(
        addresses=np.concatenate([part.addresses for part in parts]),
        encodings=np.concatenate([part.encodings for part in parts]),
        width=parts[0].width,
        owners=[owner for part in parts for owner in part.owners],
        factors=np.concatenate(factors) if has_factors else None,
    )


RowsOf = Callable[[str], FileRows | None]
"""The rows of a checkpoint's matrix, by its canonical name; None where they lie nowhere."""
