"""Matrices of integer codes with scales and zero points, as pre-quantized folders hold them.

Where an encoding's blocks hold them exactly, kernels multiply with the codes as they are.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.gguf.dequantize import read_blocks
from kvcast.errors import KvcastError
from kvcast.spec.stored_matrices import (
    BLOCK,
    CodedMatrix,
    Encoding,
    FileRows,
    release,
)

WORD = 32
# The least and the greatest code of blocks of a scale and codes; smallest blocks first.
_RANGES: Mapping[Encoding, tuple[int, int]] = {
    Encoding.Q4_0: (-8, 7),
    Encoding.Q5_0: (-16, 15),
    Encoding.Q8_0: (-128, 127),
}


def stream(words: NDArray[np.uint32], bits: int, count: int) -> NDArray[np.uint8]:
    """Return `count` codes of words [..., n] of 32 bits, lowest bits first, across words' ends."""
    period = math.lcm(8, bits)  # after which codes begin with a byte again
    *rows, width = words.shape
    each = np.zeros((*rows, -(-width * WORD // period) * period // 8), np.uint8)
    each[..., : width * 4] = np.ascontiguousarray(words).view(np.uint8)
    each = each.reshape(*rows, -1, period // 8)
    codes = np.empty((*each.shape[:-1], period // bits), np.uint8)
    for place in range(period // bits):  # a few long runs are faster than many short ones
        first, shift = divmod(place * bits, 8)
        code = each[..., first] >> np.uint8(shift)
        if shift + bits > 8:
            code |= each[..., first + 1] << np.uint8(8 - shift)
        codes[..., place] = code & np.uint8((1 << bits) - 1)
    return codes.reshape(*rows, -1)[..., :count]


@dataclass(frozen=True, kw_only=True)
class IntegerCodes:
    """A matrix of integer codes: (code - zero) * scale, plus the least value where there is one.

    `codes` reads [outputs, inputs]; scales, zeros (or one for all) and least values are [outputs,
    groups]; `group` of each input, or how many inputs have the same, which follow one another.
    """

    label: str
    shape: tuple[int, int]
    codes: Callable[[], NDArray[Any]]
    range: tuple[int, int]  # of codes
    scales: NDArray[np.floating[Any]]
    group: NDArray[np.int64] | int
    packed: StoredTensor  # of the file, which `codes` reads
    zeros: NDArray[np.integer[Any]] | int = 0
    least: NDArray[np.floating[Any]] | None = None

    def stored(self) -> StoredTensor:
        require_finite(self.scales, self.label)
        if self.least is not None:
            require_finite(self.least, self.label)
        encoding = self._encoding()
        stored = StoredTensor(
            shape=self.shape,
            read=self._dequantized,
            kinds=frozenset({"codes"}),
            nbytes=self.packed.nbytes,
        )
        if encoding is None:
            return stored

        def blocks() -> CodedMatrix:
            if encoding == Encoding.INT4_ZERO_POINT:
                return self._with_least()
            return read_blocks(encoding.name, self._blocks(encoding), self.shape)

        def rows() -> FileRows:
            return rows_of(self.packed, self._blocks(encoding), self.shape, encoding)

        return replace(stored, blocks=blocks, rows=rows, kinds=frozenset({encoding.name}))

    def _encoding(self) -> Encoding | None:
        """Return the encoding of the smallest blocks that hold all exactly; None if none do."""
        in_blocks = isinstance(self.group, int) and self.group % BLOCK == 0
        if not in_blocks or self.shape[1] % BLOCK or not _are_halves(self.scales):
            return None
        least = self.range[0] - int(np.max(self.zeros))
        most = self.range[1] - int(np.min(self.zeros))
        if self.least is not None:
            fits = least >= 0 and most < 1 << 4 and _are_halves(self.least)
            return Encoding.Q4_1 if fits else None
        fitting = (kind for kind, (low, high) in _RANGES.items() if low <= least and most <= high)
        encoding = next(fitting, None)
        zeros = np.asarray(self.zeros, np.int64) - self.range[0]
        has_four_bits = self.range[1] - self.range[0] < 1 << 4
        if encoding != Encoding.Q4_0 and has_four_bits and 0 <= zeros.min() <= zeros.max() < 1 << 7:
            return Encoding.INT4_ZERO_POINT
        return encoding

    def _signed(self) -> NDArray[np.int16]:
        zeros = self.zeros
        codes = self.codes().astype(np.int16)
        return codes - (zeros if isinstance(zeros, int) else self._of_inputs(zeros))

    def _of_inputs(self, groups: NDArray[Any]) -> NDArray[Any]:
        if isinstance(self.group, int):
            return groups.repeat(self.group, axis=1)[:, : self.shape[1]]
        return groups[:, self.group]

    def _dequantized(self) -> NDArray[np.float32]:
        scales = self._of_inputs(self.scales.astype(np.float32))
        values: NDArray[np.float32] = self._signed() * scales
        return values if self.least is None else values + self._of_inputs(self.least)

    def _with_least(self) -> CodedMatrix:
        """Return codes whose least values are rounded to float16."""
        least = self.scales.astype(np.float32) * (self.range[0] - np.int64(1) * self.zeros)
        halves = [self._of_blocks(x).astype(np.float16) for x in (self.scales, least)]
        codes = (self.codes() - self.range[0]).astype(np.uint8)
        return CodedMatrix(codes=codes, scales=halves[0], least=halves[1])

    def _blocks(self, encoding: Encoding) -> NDArray[np.uint8]:
        has_zeros = encoding == Encoding.INT4_ZERO_POINT
        codes: NDArray[Any] = self.codes() - self.range[0] if has_zeros else self._signed()
        codes = codes.reshape(self.shape[0], -1, BLOCK)
        parts = [self._halves(self.scales)]
        if self.least is not None:
            parts.append(self._halves(self.least))
        if has_zeros:
            zeros = np.broadcast_to(self.zeros - np.int64(self.range[0]), self.scales.shape)
            parts.append(self._of_blocks(zeros.astype(np.uint8))[..., None])
        if encoding == Encoding.Q8_0:
            parts.append(codes.astype(np.int8).view(np.uint8))
        else:
            raised = (codes - _RANGES.get(encoding, (0, 0))[0]).astype(np.uint8)
            if encoding == Encoding.Q5_0:
                parts.append(np.packbits(raised >> 4, axis=-1, bitorder="little"))
            parts.append(nibbles(raised & 15))
        return np.concatenate(parts, axis=-1).reshape(-1)

    def _halves(self, groups: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
        """Return a float16 for each block, as bytes [outputs, blocks, 2]."""
        return self._of_blocks(groups)[..., None].astype("<f2").view(np.uint8)

    def _of_blocks(self, groups: NDArray[Any]) -> NDArray[Any]:
        assert isinstance(self.group, int)
        return groups.repeat(self.group // BLOCK, axis=1)[:, : self.shape[1] // BLOCK]


def nibbles(codes: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
    """Pack codes of 4 bits [..., 2 * n] as ggml has them: the first half in the low nibbles."""
    low, high = np.split(codes.astype(np.uint8, copy=False), 2, axis=-1)
    return low | high << np.uint8(4)


def rows_of(
    packed: StoredTensor,
    raw: NDArray[np.uint8],
    shape: tuple[int, ...],
    encoding: Encoding,
    factor: np.float32 | None = None,
) -> FileRows:
    """Return the rows of blocks made of a mapped tensor, whose pages are released."""
    release(packed.read())
    return FileRows.of(raw, math.prod(shape[:-1]), shape[-1], encoding, factor)


def of_int8(
    label: str,
    codes: StoredTensor,
    scales: NDArray[np.floating[Any]],
    zeros: NDArray[np.int8] | None = None,
) -> StoredTensor:
    """Return a matrix of int8 codes with scales, and perhaps zero points, [outputs, groups]."""
    outputs, inputs = codes.shape
    if zeros is not None and zeros.shape != scales.shape:
        raise KvcastError(
            f"{label} has zero points of shape {list(zeros.shape)} for scales of shape "
            f"{list(scales.shape)}"
        )
    return IntegerCodes(
        label=label,
        shape=(outputs, inputs),
        codes=codes.read,
        range=(-128, 127),
        scales=scales,
        zeros=0 if zeros is None else zeros,
        group=-(-inputs // scales.shape[1]),
        packed=codes,
    ).stored()


def _are_halves(numbers: NDArray[np.floating[Any]]) -> bool:
    with np.errstate(over="ignore"):
        return bool((numbers.astype(np.float16) == numbers).all())


def require_finite(scales: NDArray[np.floating[Any]], label: str) -> None:
    if not np.isfinite(scales).all():
        raise KvcastError(f"{label} is damaged: a scale is not finite; fetch the file again")
