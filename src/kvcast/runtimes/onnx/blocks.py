"""Matrices in blocks, in the layout of ONNX Runtime's operators.

`MatMulNBits` multiplies with, and `GatherBlockQuantized` looks up, scale * (code - zero). They are
fast around one fixed zero alone, in the middle of the codes. Where a block's least value is
elsewhere, what it is away is added apart: to a lookup as it is, and to a product times the sum of
the block's inputs, in a small product beside it. So all codes that a checkpoint may bring stay as
they are.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.spec.stored_matrices import BLOCK, CodedMatrix


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A matrix [outputs, inputs] in the operators' layout.

    Attributes:
        codes: uint8 [outputs, blocks, block * bits / 8], low bits first.
        scales: fp32 [outputs, blocks].
        bits: of a code: 4 or 8. The code 2^(bits-1) stands for 0, or for `rest`.
        rest: fp32 [blocks, outputs]; None where it is 0 everywhere.

    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    bits: int
    rest: NDArray[np.float32] | None = None

    @property
    def block(self) -> int:
        """The number of inputs in a block."""
        return int(self.codes.shape[2]) * 8 // self.bits

    @property
    def inputs(self) -> int:
        """The number of inputs of each output."""
        return int(self.codes.shape[1]) * self.block


def packed(blocks: CodedMatrix) -> Packed:
    """Return blocks of 32 with the codes and scales that they have."""
    scales = blocks.scales.astype(np.float32)
    codes = blocks.codes.reshape(*scales.shape, BLOCK)
    if blocks.least is None:
        return Packed(codes=codes.view(np.uint8) ^ np.uint8(128), scales=scales, bits=8)
    with np.errstate(all="ignore"):  # a damaged file's numbers may be anything
        rest = np.ascontiguousarray((blocks.least.astype(np.float32) + 8 * scales).T)
    return Packed(
        codes=codes[..., 0::2] | (codes[..., 1::2] << 4),
        scales=scales,
        bits=4,
        rest=rest if rest.any() else None,
    )


def eight_bits(weight_oi: NDArray[np.float32]) -> Packed:
    """Quantise [outputs, inputs] to 8 bits in blocks as large as the inputs allow, up to 128.

    A block's value of largest magnitude becomes code 0, at the longer end of the range; the scale
    is then fitted to the codes.
    """
    blocks = weight_oi.reshape(len(weight_oi), -1, _block(weight_oi.shape[1]))
    at = np.abs(blocks).argmax(axis=-1, keepdims=True)
    scales = np.take_along_axis(blocks, at, axis=-1) / np.float32(-128)
    steps = np.rint(blocks / np.where(scales == 0, np.float32(1), scales)).clip(-128, 127)
    squares = np.square(steps).sum(axis=-1)
    fitted = (steps * blocks).sum(axis=-1) / np.where(squares == 0, np.float32(1), squares)
    return Packed(codes=(steps + 128).astype(np.uint8), scales=fitted, bits=8)


def _block(inputs: int) -> int:
    """Return the largest block of at most 128 that divides `inputs`; KvcastError if none."""
    for block in (128, 64, 32, 16):
        if inputs % block == 0:
            return block
    raise indivisible(inputs, 16)


def indivisible(inputs: int, block: int) -> KvcastError:
    """Return the error for a matrix whose inputs make no whole number of blocks."""
    return KvcastError(
        f"a matrix of {inputs} inputs cannot be quantised in blocks of {block}: use --quantize none"
    )
