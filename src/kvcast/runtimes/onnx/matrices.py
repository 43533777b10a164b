"""Products with the matrices of a program, and lookups in them: fp32, or quantized in blocks.

- int8 matrices have a scale per output; activations are quantized on the fly, each row with its own
  scale, so a result depends on no other row, chunk or input: Whisper's first token has outlier
  channels, with which one scale for the whole call (`DynamicQuantizeMatMul`) was 8 times too coarse
  for the other rows. docs/onnx.md has the figures. Decoder-only models are smoothed first
  (`runtimes/lowering/activations.py`), and the product after a gate, whose input has outlier
  channels, keeps int8 blocks.
- int4 matrices become blocks of 32 inputs with a scale and a minimum each. A step reads the fewest
  bytes.
- A tied embedding and head become one table in blocks of 8 bits: every token depends on it, in the
  lookup and in the last product. With 4 bits SmolLM2-135M's perplexity was 13.6 instead of 10.7.
- Matrices in blocks keep the checkpoint's codes, if it has any.

`MatMulNBits` multiplies with, and `GatherBlockQuantized` looks up, scale * (code - zero). They are
fast only with one fixed zero point in the middle of the codes. Where a block's minimum differs, the
difference is added separately: to a lookup directly, and to a product times the sum of the block's
inputs, in a small GEMM.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.runtimes.native.matrices import roles_of, searched
from kvcast.runtimes.onnx.graph_writer import CONTRIB, GraphWriter, Matrix, dims
from kvcast.runtimes.target import StoredValues
from kvcast.spec.program import Program
from kvcast.spec.stored_matrices import (
    BLOCK,
    BlocksOf,
    CodedMatrix,
    no_blocks,
    of_eight_bits,
    unpack_nibbles,
)

CODES, SCALES, ZERO, REST = ".codes", ".scales", ".zero", ".rest"
# MatMulNBits can compute in int8: level 4 allows it to quantize activations in blocks.
_INT8_ACTIVATIONS = 4


class Exact(Matrix):
    """In fp32."""

    def __init__(self, name: str) -> None:
        self._name = name

    @override
    def product(self, write: GraphWriter, x: ir.Value, bias: ir.Value | None) -> ir.Value:
        *axes, _ = dims(x)
        shape = [*axes, len(write.array(self._name))]
        if len(axes) == 1:  # in stored form: the head may be an embedding table
            given = [x, write.constant(self._name), bias]
            return write.node("Gemm", given, ir.DataType.FLOAT, shape, transB=1)
        weight_io = write.transposed(self._name)
        product = write.node("MatMul", [x, weight_io], ir.DataType.FLOAT, shape)
        if bias is None:
            return product
        return write.node("Add", [product, bias], ir.DataType.FLOAT, shape)

    @override
    def lookup(self, write: GraphWriter, ids: ir.Value) -> ir.Value:
        shape = [*dims(ids), write.array(self._name).shape[1]]
        given = [write.constant(self._name), ids]
        return write.node("Gather", given, ir.DataType.FLOAT, shape, axis=0)


class Int8Columns(Matrix):
    """int8, with a scale per output, and one per row of activations."""

    def __init__(self, name: str) -> None:
        self._name = name

    @override
    def product(self, write: GraphWriter, x: ir.Value, bias: ir.Value | None) -> ir.Value:
        codes, scales = to_int8_columns(write.array(self._name).T)
        zero = np.zeros(codes.shape[1], np.int8)
        parts: dict[str, NDArray[Any]] = {CODES: codes, SCALES: scales, ZERO: zero}
        given = [write.constant(self._name + part, array) for part, array in parts.items()]
        shape = [*dims(x)[:-1], codes.shape[1]]
        float_, domain = ir.DataType.FLOAT, CONTRIB
        # Rows are divided by their largest magnitude, after which one scale fits all of them. A row
        # of zeros becomes NaN, some finite product, and zeros again.
        sizes = write.node("Abs", [x], float_, dims(x))
        one_each = [*dims(x)[:-1], 1]
        largest = write.node("ReduceMax", [sizes, write.integers(-1)], float_, one_each, keepdims=1)
        even = write.node("Div", [x, largest], float_, dims(x))
        step = write.constant("rows.scale", np.array(1 / 127, np.float32))
        middle = write.constant("rows.zero", np.array(128, np.uint8))
        row = write.node("QuantizeLinear", [even, step, middle], ir.DataType.UINT8, dims(x))
        matrix, scale, zeros = given
        factors = [row, matrix, step, scale, middle, zeros]
        product = write.node("MatMulIntegerToFloat", factors, float_, shape, domain)
        product = write.node("Mul", [product, largest], float_, shape)
        return product if bias is None else write.node("Add", [product, bias], float_, shape)

    @override
    def lookup(self, write: GraphWriter, ids: ir.Value) -> ir.Value:
        raise TypeError(f"{self._name} is no table")


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A matrix [outputs, inputs] in the operators' layout."""

    codes: NDArray[np.uint8]  # [outputs, blocks, block * bits / 8], low bits first
    scales: NDArray[np.float32]  # [outputs, blocks]
    bits: int  # 4 or 8; the zero point 2^(bits-1) dequantizes to 0, or to `rest`
    rest: NDArray[np.float32] | None = None  # [blocks, outputs]; None where it is 0 everywhere

    @property
    def block(self) -> int:
        return int(self.codes.shape[2]) * 8 // self.bits

    @property
    def inputs(self) -> int:
        return int(self.codes.shape[1]) * self.block


class Blocks(Matrix):
    """In blocks, stored once for a lookup and a product."""

    def __init__(self, name: str, content: Packed) -> None:
        self._name = name
        self._content = content

    @override
    def product(self, write: GraphWriter, x: ir.Value, bias: ir.Value | None) -> ir.Value:
        # A flattened x is taken as it was before, and the result has those axes: one of the size of
        # a vocabulary is then not copied.
        x, content = _unflattened(x), self._content
        shape = [*dims(x)[:-1], len(content.codes)]
        main = write.node(
            "MatMulNBits",
            [x, self._codes(write), self._scales(write), None, None, bias],
            ir.DataType.FLOAT,
            shape,
            CONTRIB,
            K=content.inputs,
            N=len(content.codes),
            bits=content.bits,
            block_size=content.block,
            accuracy_level=_INT8_ACTIVATIONS,
        )
        if (rest := self._rest(write)) is None:
            return main
        blocks = self._in_blocks(write, x)
        given = [blocks, write.integers(-1)]
        sums = write.node("ReduceSum", given, ir.DataType.FLOAT, dims(blocks)[:-1], keepdims=0)
        shifted = write.node("MatMul", [sums, rest], ir.DataType.FLOAT, shape)
        return write.node("Add", [main, shifted], ir.DataType.FLOAT, shape)

    @override
    def lookup(self, write: GraphWriter, ids: ir.Value) -> ir.Value:
        content = self._content
        shape = [*dims(ids), content.inputs]
        flat = write.reshaped(self._codes(write), [len(content.codes), -1])
        main = write.node(
            "GatherBlockQuantized",
            [flat, ids, self._scales(write)],
            ir.DataType.FLOAT,
            shape,
            CONTRIB,
            bits=content.bits,
            block_size=content.block,
            gather_axis=0,
            quantize_axis=1,
        )
        if (rest := self._rest(write)) is None:
            return main
        blocks = self._in_blocks(write, main)
        count = dims(blocks)[-2]
        rest_bns = write.node("Gather", [rest, ids], ir.DataType.FLOAT, [count, *dims(ids)], axis=1)
        order = [*range(1, len(shape)), 0]
        by_row = [*dims(ids), count]
        rest_nsb = write.node("Transpose", [rest_bns], ir.DataType.FLOAT, by_row, perm=order)
        rest_nsb1 = write.unsqueezed(rest_nsb, len(by_row))
        whole = write.node("Add", [blocks, rest_nsb1], ir.DataType.FLOAT, dims(blocks))
        return write.reshaped(whole, [*[0] * len(dims(ids)), content.inputs])

    def _codes(self, write: GraphWriter) -> ir.Value:
        return write.constant(self._name + CODES, self._content.codes)

    def _scales(self, write: GraphWriter) -> ir.Value:
        return write.constant(self._name + SCALES, self._content.scales)

    def _rest(self, write: GraphWriter) -> ir.Value | None:
        rest = self._content.rest
        return None if rest is None else write.constant(self._name + REST, rest)

    def _in_blocks(self, write: GraphWriter, x: ir.Value) -> ir.Value:
        """[..., inputs] to [..., blocks, 32]."""
        return write.reshaped(x, [*[0] * (len(dims(x)) - 1), self._content.codes.shape[1], BLOCK])


def _unflattened(x: ir.Value) -> ir.Value:
    before = x.producer()
    if len(dims(x)) != 2 or before is None or before.op_type != "Reshape":
        return x
    source = before.inputs[0]
    return source if source is not None and dims(source)[-1] == dims(x)[-1] else x


def to_int8_columns(
    weight_io: NDArray[Any],
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantize [inputs, outputs] symmetrically with one scale per output."""
    scales = np.abs(weight_io).max(axis=0) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(weight_io / scales).astype(np.int8), scales


def exact(programs: Mapping[str, Program]) -> dict[str, Matrix]:
    operations = ("linear", "embedding")
    every = [program.matrices(name) for program in programs.values() for name in operations]
    return {name: Exact(name) for names in every for name in names}


def quantized(
    programs: Mapping[str, Program],
    outliers: Collection[str],
    weights: Mapping[str, NDArray[Any]],
    quantize: str,
    blocks_of: BlocksOf,
) -> dict[str, Matrix]:
    """Return the matrices that become "int8" or "int4", by name.

    With int4, matrices of `encode` are int8, as its GEMMs have many tokens, and so is the output of
    cross-attention. Programs other than `encode` and `decode` stay in fp32, since they run once per
    source, and so do a mixture's experts. int4 keeps the checkpoint's codes; int8 keeps 8-bit codes
    in blocks, which take more time than a scale per output. `outliers`: the epilogues of products
    whose results are multiplied in blocks.
    """
    kept = blocks_of if quantize == "int4" else of_eight_bits(blocks_of)
    bits = {"encode": (8, no_blocks), "decode": ({"int8": 8, "int4": 4}[quantize], kept)}
    matrices: dict[str, Matrix] = {}
    for program, (size, codes) in bits.items():
        for name, source, is_outlier in _products(programs.get(program), outliers):
            if (size == 8 or source.startswith("cross_")) and not is_outlier:
                matrices[name] = Int8Columns(name)
            else:
                matrices[name] = Blocks(name, in_blocks(name, weights[name], size, codes))
    return matrices | {
        name: Blocks(name, in_blocks(name, weights[name], 8, kept))
        for program in programs.values()
        for name in _tables(program)
    }


def _products(
    program: Program | None, outliers: Collection[str]
) -> Iterator[tuple[str, str, bool]]:
    """Yield matrices of the layers' products, their inputs and whether these have outliers."""
    if program is None:
        return
    by_name = {step.name: step for step in program.steps}
    others = _tables(program) | roles_of(program).routers
    for step in program.steps:
        if step.operation == "linear" and (name := step.arguments[1].name) not in others:
            x: str = step.arguments[0].name
            epilogue = by_name[x].keywords.keys() if x in by_name else ()
            yield name, x, not set(outliers).isdisjoint(epilogue)


def _tables(program: Program) -> set[str]:
    return set(roles_of(program).heads) | {
        step.arguments[0].name
        for step in program.steps
        if step.operation == "embedding" and step.arguments[1].name in program.inputs
    }


def in_blocks(
    name: str, weight_oi: NDArray[np.float32], bits: int, blocks_of: BlocksOf = no_blocks
) -> Packed:
    """Return a matrix [outputs, inputs] with its own codes, or quantized to `bits`.

    Raises AssertionError if the codes have another shape.
    """
    own = blocks_of(name)
    if own is not None:
        if own.shape != weight_oi.shape:
            raise AssertionError(f"the checkpoint's codes of {name} are {own.shape}")
        return packed(own)
    if bits == 8:
        return eight_bits(weight_oi)
    if weight_oi.shape[1] % BLOCK:
        raise indivisible(weight_oi.shape[1], BLOCK)
    return packed(searched(weight_oi))


def packed(blocks: CodedMatrix) -> Packed:
    """Return blocks of 32 with their own codes and scales."""
    scales = blocks.scales.astype(np.float32)
    codes = blocks.codes.reshape(*scales.shape, BLOCK)
    if blocks.least is None:
        return Packed(codes=codes.view(np.uint8) ^ np.uint8(128), scales=scales, bits=8)
    with np.errstate(all="ignore"):  # a damaged file may hold any values
        rest = np.ascontiguousarray((blocks.least.astype(np.float32) + 8 * scales).T)
    return Packed(
        codes=codes[..., 0::2] | (codes[..., 1::2] << 4),
        scales=scales,
        bits=4,
        rest=rest if rest.any() else None,
    )


def eight_bits(weight_oi: NDArray[np.float32]) -> Packed:
    """Quantize [outputs, inputs] to 8 bits in blocks as large as the inputs allow, up to 128.

    A block's value of largest magnitude becomes code 0; then the scale is fitted to the codes.
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


def dequantize(
    codes: NDArray[Any],
    scales: NDArray[np.float32],
    rest: NDArray[np.float32] | None,
    shape: tuple[int, ...] | None,
) -> StoredValues:
    """Return a matrix [outputs, inputs] that `Int8Columns` or `Blocks` stored.

    `shape`, the checkpoint's, has the inputs, which codes of fewer than 8 bits need.
    """
    if scales.ndim == 1:
        return StoredValues((codes * scales).T, scales[:, None], 8)
    bits = 8 if shape is None else 8 * codes.size // prod(shape)
    if bits < 8:
        codes = unpack_nibbles(codes)
    blocks = (codes.astype(np.float32) - 2 ** (bits - 1)) * scales[..., None]
    if rest is not None:
        blocks += rest.T[..., None]
    # `eight_bits` clips one value by up to a step, and then fits the scale.
    clipped = 1.25 if bits == 8 else 0.0
    return StoredValues(blocks.reshape(len(codes), -1), scales, bits, clipped)


def indivisible(inputs: int, block: int) -> KvcastError:
    return KvcastError(
        f"a matrix of {inputs} inputs cannot be quantized in blocks of {block}: use --quantize none"
    )
