"""Matrices in blocks, as ONNX Runtime's operators read them, stored once for all that read them.

`MatMulNBits` multiplies with, and `GatherBlockQuantized` looks up, scale * (code - zero). They are
fast around one fixed zero alone, in the middle of the codes. Where a block's least value is
elsewhere, what it is away is added apart: to a lookup as it is, and to a product times the sum of
the block's inputs, in a small product beside it. So all codes that a checkpoint may bring stay as
they are.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.runtimes.onnx.editing import CONTRIB, constant
from kvcast.spec.blocks import BLOCK, CodedMatrix

CODES, SCALES, REST = ".codes", ".scales", ".rest"
# MatMulNBits can compute in int8: level 4 allows it to quantise activations in blocks.
_INT8_ACTIVATIONS = 4


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


class BlockMatrix:
    """A matrix among a graph's constants, under its name."""

    def __init__(self, graph: ir.Graph, name: str, content: Packed) -> None:
        self._graph = graph
        self._name = name
        self._content = content
        self._codes = constant(graph, name + CODES, content.codes)
        self._scales = constant(graph, name + SCALES, content.scales)
        self._rest = None
        if content.rest is not None:
            self._rest = constant(graph, name + REST, content.rest)

    def product(self, x: ir.Value, bias: ir.Value | None) -> list[ir.Node]:
        """Return nodes that multiply with it; the last one has the result [..., outputs]."""
        content = self._content
        attributes = {
            "K": content.inputs,
            "N": len(content.codes),
            "bits": content.bits,
            "block_size": content.block,
            "accuracy_level": _INT8_ACTIVATIONS,
        }
        given = [x, self._codes, self._scales, None, None, bias]
        main = ir.node("MatMulNBits", given, attributes, domain=CONTRIB)
        if self._rest is None:
            return [main]
        if x.shape is None:
            raise TypeError(f"the axes of {x.name} are not known")
        blocks = self._in_blocks(x, len(x.shape))
        last = constant(self._graph, "last_axis", np.array([-1], np.int64))
        sums = ir.node("ReduceSum", [blocks.outputs[0], last], {"keepdims": 0})
        shifted = ir.node("MatMul", [sums.outputs[0], self._rest])
        whole = ir.node("Add", [main.outputs[0], shifted.outputs[0]])
        return [main, blocks, sums, shifted, whole]

    def lookup(self, rows: ir.Value) -> list[ir.Node]:
        """Return nodes that look up rows [n, s]; the last one has the result [n, s, inputs]."""
        content = self._content
        flat = self._reshaped(self._codes, (len(content.codes), -1))
        attributes = {
            "bits": content.bits,
            "block_size": content.block,
            "gather_axis": 0,
            "quantize_axis": 1,
        }
        given = [flat.outputs[0], rows, self._scales]
        main = ir.node("GatherBlockQuantized", given, attributes, domain=CONTRIB)
        if self._rest is None:
            return [flat, main]
        blocks = self._in_blocks(main.outputs[0], 3)
        rest_bns = ir.node("Gather", [self._rest, rows], {"axis": 1})
        rest_nsb = ir.node("Transpose", [rest_bns.outputs[0]], {"perm": [1, 2, 0]})
        last = constant(self._graph, "last_axis", np.array([-1], np.int64))
        rest_nsb1 = ir.node("Unsqueeze", [rest_nsb.outputs[0], last])
        whole = ir.node("Add", [blocks.outputs[0], rest_nsb1.outputs[0]])
        result = self._reshaped(whole.outputs[0], (0, 0, content.inputs))
        return [flat, main, blocks, rest_bns, rest_nsb, rest_nsb1, whole, result]

    def _in_blocks(self, x: ir.Value, axes: int) -> ir.Node:
        """Return the node that gives x [..., inputs] as [..., blocks, 32]."""
        return self._reshaped(x, (*[0] * (axes - 1), self._content.codes.shape[1], BLOCK))

    def _reshaped(self, x: ir.Value, shape: tuple[int, ...]) -> ir.Node:
        name = "shape_" + "_".join(map(str, shape))
        return ir.node("Reshape", [x, constant(self._graph, name, np.array(shape, np.int64))])
