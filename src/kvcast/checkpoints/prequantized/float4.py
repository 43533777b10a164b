"""Matrices of e2m1 codes, two in a byte, with scales for runs of a row: MXFP4 and NVFP4."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.gguf.file import GgufTensor
from kvcast.checkpoints.prequantized.float8 import e4m3
from kvcast.checkpoints.prequantized.integer_codes import nibbles, require_finite, rows_of
from kvcast.errors import KvcastError
from kvcast.spec.stored_matrices import (
    BLOCK,
    BLOCKS,
    Encoding,
    FileRows,
    unpack_nibbles,
)

_NV_RUN, _SIGN = 16, 0x80
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1 = np.array([*_MAGNITUDES, *(-number for number in _MAGNITUDES)], np.float32)
_NOT_A_NUMBER = 255
"""In e8m0."""


def of_e2m1(packed: StoredTensor, scales: NDArray[np.float32], label: str) -> StoredTensor:
    """Return the matrices of codes [..., outputs, n], in bytes or words, their low bits first.

    Args:
        packed: of U8, I8 or U32.
        scales: [..., outputs, runs], of runs of equal length.
        label: of messages.

    Raises:
        KvcastError: sizes contradict one another, or a scale is not finite.

    """
    shape = _shape(packed, scales.shape, label)
    require_finite(scales, label)

    def read() -> NDArray[np.float32]:
        runs = _E2M1[_codes(packed)].reshape(*scales.shape, -1)
        runs *= scales[..., None]
        return runs.reshape(shape)

    return replace(packed, shape=shape, read=read, problem="", kinds=frozenset({"codes"}))


def of_mxfp4(packed: StoredTensor, exponents: StoredTensor, label: str) -> StoredTensor:
    """Do so with e8m0 scales of runs of 32, as ggml's blocks, whose codes kernels keep."""
    if _shape(packed, exponents.shape, label)[-1] != exponents.shape[-1] * BLOCK:
        raise _contradiction(packed, exponents.shape, label)
    _require_numbers(exponents.read(), label)
    return mxfp4_blocks(replace(packed, read=lambda: _codes(packed)), exponents, label)


def mxfp4_blocks(codes: StoredTensor, exponents: StoredTensor, label: str) -> StoredTensor:
    """Return matrices in blocks; `codes` reads one a byte, in order."""
    *outer, blocks = exponents.shape
    shape = (*outer, blocks * BLOCK)

    def matrix() -> StoredTensor:
        powers = exponents.read()
        _require_numbers(powers, label)
        packed = nibbles(codes.read().reshape(*powers.shape, BLOCK))
        raw = np.concatenate([powers[..., None], packed], -1).reshape(-1)
        stacked = (int(np.prod(outer)), shape[-1])
        return GgufTensor(label=label, type=Encoding.MXFP4, shape=stacked, raw=raw).stored()

    return StoredTensor(
        shape=shape,
        read=lambda: matrix().read().reshape(shape),
        blocks=lambda: matrix().blocks(),  # type: ignore[misc]
        rows=lambda: matrix().rows(),  # type: ignore[misc]
        kinds=frozenset({Encoding.MXFP4.name}),
        nbytes=codes.nbytes + exponents.nbytes,
    )


def of_nvfp4(
    packed: StoredTensor,
    scales: NDArray[np.uint8],
    label: str,
    *,
    factor: float = 1,
    divisor: float = 1,
) -> StoredTensor:
    """Do so with scales of runs of 16, in e4m3; kernels keep the codes of whole blocks of ggml's.

    All scales are multiplied by `factor`, or divided by `divisor`.
    """
    shape = _shape(packed, scales.shape, label)
    if shape[-1] != scales.shape[-1] * _NV_RUN:
        raise _contradiction(packed, scales.shape, label)
    with np.errstate(all="ignore"):  # what is not finite is refused
        numbers = e4m3(scales) * np.float32(factor) / np.float32(divisor)
    stored = of_e2m1(packed, numbers, label)
    values, _ = BLOCKS[Encoding.NVFP4]
    if shape[-1] % values or (scales & _SIGN).any():
        return stored

    def rows() -> FileRows:
        codes = nibbles(_codes(packed).reshape(-1, _NV_RUN)).reshape(-1, values // 2)
        raw = np.hstack([scales.reshape(len(codes), -1), codes]).reshape(-1)
        whole = np.float32(factor) / np.float32(divisor)
        return rows_of(packed, raw, shape, Encoding.NVFP4, whole)

    return replace(stored, rows=rows, kinds=frozenset({Encoding.NVFP4.name}))


def _require_numbers(powers: NDArray[np.uint8], label: str) -> None:
    if (powers == _NOT_A_NUMBER).any():
        raise KvcastError(f"{label} is damaged: a scale is not finite; fetch the file again")


def _shape(packed: StoredTensor, scales: tuple[int, ...], label: str) -> tuple[int, ...]:
    outer = packed.shape[:-1]
    rows = int(np.prod(outer)) if outer else 0
    inputs = packed.nbytes // rows * 2 if rows else 0
    if not inputs or outer != scales[:-1] or not scales[-1] or inputs % scales[-1]:
        raise _contradiction(packed, scales, label)
    return (*outer, inputs)


def _contradiction(packed: StoredTensor, scales: tuple[int, ...], label: str) -> KvcastError:
    return KvcastError(
        f"{label} has scales of shape {list(scales)} for codes of shape {list(packed.shape)}"
    )


def _codes(packed: StoredTensor) -> NDArray[np.uint8]:
    return unpack_nibbles(np.ascontiguousarray(packed.read()).view(np.uint8))
