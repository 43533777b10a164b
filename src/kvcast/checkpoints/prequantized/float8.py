"""FP8 as transformers 5.23 saves it: float8_e4m3fn, with scales for blocks or for a matrix."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.prequantized.integer_codes import require_finite, rows_of
from kvcast.checkpoints.prequantized.parts import MATRIX, Stored, bases, drop
from kvcast.errors import KvcastError
from kvcast.spec.stored_matrices import BLOCK, Encoding, FileRows

E8M0 = frozenset({"F8_E8M0", "U8"})
"""Types of scales that are powers of two."""


def read_fp8(fields: Fields, stored: Stored) -> Stored:
    """Multiply by a scale for each block of 128 by 128, or for the matrix, as transformers does.

    The last blocks of a matrix may be smaller.
    """
    sizes = fields.values.get("weight_block_size")
    block = block_size(fields, sizes) if sizes is not None else None
    for base in bases(stored, "_scale_inv"):
        codes, scale = stored.get(base), stored.pop(f"{base}_scale_inv")
        label = f"{fields.label}: matrix {base}"
        if codes is None:
            raise KvcastError(f"{label} has a scale and no codes: fetch the folder again")
        stored[base] = of_fp8(codes, scale, block, label)
    drop(stored, ("activation_scale", ".input_scale"))
    return stored


def block_size(fields: Fields, sizes: object) -> tuple[int, int]:
    match sizes:
        case [int() as rows, int() as columns] if rows > 0 and columns > 0:
            return rows, columns
    raise fields.error("weight_block_size must be two whole numbers above 0")


def of_fp8(
    codes: StoredTensor, scale: StoredTensor, block: tuple[int, int] | None, label: str
) -> StoredTensor:
    if "F8_E4M3" not in codes.kinds or len(codes.shape) < MATRIX:
        raise KvcastError(f"{label} is no matrix of float8_e4m3fn")
    *stacked, outputs, inputs = codes.shape
    if block is None and stacked and scale.shape == (*stacked, 2, 1):
        block = (outputs // 2, inputs)  # gates, and what they gate
    rows, columns = map(min, block or (outputs, inputs), (outputs, inputs))
    counts = (-(-outputs // rows), -(-inputs // columns))
    accepted = {(*stacked, *counts)} if block else {(), (1,), (*stacked, 1, 1)}
    if scale.shape not in accepted:
        raise KvcastError(f"{label} has scales of shape {list(scale.shape)} for {list(counts)}")
    scales = _powers(scale) if scale.kinds & E8M0 else scale.read().astype(np.float32)
    require_finite(scales, label)
    of_blocks = np.broadcast_to(scales.reshape(*scales.shape[:-2], *counts), (*stacked, *counts))

    def repeated(width: int, count: int) -> NDArray[np.float32]:
        """Return the scale of each of `count` groups of a row, `width` of which a block has."""
        by_row = of_blocks.repeat(rows, axis=-2)[..., :outputs, :]
        return by_row.repeat(width, axis=-1)[..., :count]

    def read() -> NDArray[np.float32]:
        return e4m3(_bits(codes, label)) * repeated(columns, inputs)

    def encoded() -> FileRows:
        groups = repeated(-(-columns // BLOCK), inputs // BLOCK)
        scales = np.ascontiguousarray(groups, "<f4").view(np.uint8).reshape(-1, 4)
        raw = np.hstack([scales, _bits(codes, label).reshape(-1, BLOCK)]).reshape(-1)
        return rows_of(codes, raw, codes.shape, Encoding.F8_E4M3)

    stored = replace(codes, read=read, problem="", nbytes=codes.nbytes + scale.nbytes)
    if inputs % BLOCK or (columns % BLOCK and columns < inputs):
        return stored
    return replace(stored, rows=encoded, kinds=frozenset({Encoding.F8_E4M3.name}))


def _bits(codes: StoredTensor, label: str) -> NDArray[np.uint8]:
    bits = codes.read().view(np.uint8)
    if (bits & 127 == 127).any():
        raise KvcastError(f"{label} is damaged: a code is not a number; fetch the file again")
    return bits


def e4m3(bits: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Float8_e4m3fn: no infinities, and one NaN of each sign."""
    number = np.arange(256)
    exponent, fraction = number >> 3 & 15, number & 7
    values = np.where(
        exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7)
    )
    values[number & 127 == 127] = np.nan
    table = np.where(number < 128, values, -values).astype(np.float32)
    return table[bits]


def _powers(scale: StoredTensor) -> NDArray[np.float32]:
    return np.ldexp(np.float32(1), scale.read().astype(np.int32) - 127)
