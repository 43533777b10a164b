"""Quantises the weights of an ONNX graph with ONNX Runtime's own operators.

ONNX Runtime's `quantize_dynamic` is not used: it turns the head's Gemm into a MatMul by
transposing the weight in place, which destroys the embedding that shares it. This module is
smaller than a workaround for that:

- int8 matrices become `DynamicQuantizeMatMul`: symmetric weights with one scale per column,
  activations quantised on the fly with one scale for all that a call multiplies. Fast for one token
  and for many. Decoder-only models are smoothed first (`runtimes/lowering/smoothing.py`), and the
  product after a gate, whose input has a few huge numbers, keeps int8 blocks.
- int4 matrices become blocks of 32 inputs with a scale and a least value each (`onnx_blocks`). A
  step reads the fewest bytes.
- A tied embedding and head become one table in blocks of 8 bits.
- Matrices in blocks keep the checkpoint's own codes, where it has any.

Knows nothing of models: it sees a graph's constant matrices and its tied table.
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from kvcast.runtimes.lowering.block_search import searched
from kvcast.runtimes.onnx.blocks import (
    CODES,
    SCALES,
    BlockMatrix,
    Packed,
    eight_bits,
    indivisible,
    packed,
)
from kvcast.runtimes.onnx.editing import CONTRIB, constant, put_in_place
from kvcast.runtimes.onnx.lowering import weight_of
from kvcast.spec.blocks import BLOCK, BlocksOf, no_blocks


def to_int8_columns(
    weight_io: NDArray[np.float32],
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantise [inputs, outputs] symmetrically with one scale per output."""
    scales = np.abs(weight_io).max(axis=0) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(weight_io / scales).astype(np.int8), scales


def quantize_matrices(
    model: ir.Model,
    bits: int,
    in_blocks: Callable[[ir.Node], bool] = lambda _: False,
    only: Callable[[ir.Node], bool] = lambda _: True,
    blocks_of: BlocksOf = no_blocks,
) -> int:
    """Replace every product with a constant matrix, including its bias; return how many there are.

    Args:
        model: changed in place.
        bits: 8 or 4.
        in_blocks: selects products that need int8 in blocks, because a single scale does not suit
            their input. Ignored with 4 bits.
        only: selects the products to replace.
        blocks_of: the codes of matrices that are kept, where these become blocks.

    """
    products = [
        node
        for node in model.graph
        if node.op_type == "MatMul"
        and node.inputs[1] is not None
        and node.inputs[1].const_value is not None
        and only(node)
    ]
    for node in products:
        x, weight = _inputs(node)
        weight_io = weight.const_value.numpy()  # type: ignore[union-attr]
        name = weight_of(weight)
        bias, end = _following_bias(node)
        if bits == 8 and not in_blocks(node):
            nodes = [_int8_product(model.graph, name, x, weight_io, bias)]
        else:
            content = _in_blocks(name, np.ascontiguousarray(weight_io.T), bits, blocks_of)
            nodes = BlockMatrix(model.graph, name, content).product(x, bias)
        put_in_place(model.graph, node, end, *nodes)
    model.graph.sort()
    return len(products)


def quantize_table(model: ir.Model, name: str, blocks_of: BlocksOf = no_blocks) -> None:
    """Quantise the table `name` [vocab, width], read by Gathers and by Gemms with transB.

    It has 8 bits unless `blocks_of` has codes for it. Every token depends on it, in the lookup and
    in the last product: with 4 bits SmolLM2-135M's perplexity was 13.6 instead of 10.7.
    """
    graph = model.graph
    table = graph.initializers[name]
    weight = table.const_value.numpy()  # type: ignore[union-attr]
    matrix = BlockMatrix(graph, name, _in_blocks(name, weight, 8, blocks_of))
    for node in [use.node for use in table.uses()]:
        end = node
        if node.op_type == "Gather":
            nodes = matrix.lookup(_inputs(node)[1])
        else:
            bias = node.inputs[2] if len(node.inputs) > 2 else None
            source, end = _unflattened(node)
            nodes = matrix.product(source, bias)
        put_in_place(graph, node, end, *nodes)
    del graph.initializers[name]


def _inputs(node: ir.Node) -> tuple[ir.Value, ir.Value]:
    first, second = node.inputs[:2]
    if first is None or second is None:
        raise TypeError(f"{node.name} lacks an input")
    return first, second


def _in_blocks(name: str, weight_oi: NDArray[np.float32], bits: int, blocks_of: BlocksOf) -> Packed:
    """Return a matrix [outputs, inputs] with its own codes, or with so many bits.

    Raises AssertionError if the codes are not of this matrix.
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


def _unflattened(node: ir.Node) -> tuple[ir.Value, ir.Node]:
    """Return an input for a product, and the last node that the product replaces.

    A Gemm takes and gives two axes. Where its input was flattened for that, and its result gets the
    axes back, the product that replaces it leaves them: a result of the size of a vocabulary is
    then not copied.
    """
    flat, _ = _inputs(node)
    before = flat.producer()
    after = next((use.node for use in node.outputs[0].uses()), None)
    if before is None or after is None or not before.op_type == after.op_type == "Reshape":
        return flat, node
    source, given = before.inputs[0], after.outputs[0]
    if source is None or source.shape is None or given.shape is None:
        return flat, node
    same = tuple(source.shape)[:-1] == tuple(given.shape)[:-1]
    return (source, after) if same else (flat, node)


def _int8_product(
    graph: ir.Graph,
    name: str,
    x: ir.Value,
    weight_io: NDArray[np.float32],
    bias: ir.Value | None,
) -> ir.Node:
    codes, scales = to_int8_columns(weight_io)
    inputs = [
        x,
        constant(graph, name + CODES, codes),
        constant(graph, name + SCALES, scales),
        constant(graph, f"{name}.zero", np.zeros(codes.shape[1], np.int8)),
        bias,
    ]
    return ir.node("DynamicQuantizeMatMul", inputs, domain=CONTRIB)


def _following_bias(node: ir.Node) -> tuple[ir.Value | None, ir.Node]:
    """Return the bias that the product's only reader adds, and the last node of the pattern."""
    uses = list(node.outputs[0].uses())
    if len(uses) == 1 and uses[0].node.op_type == "Add":
        other = uses[0].node.inputs[1 - uses[0].idx]
        if (
            other is not None
            and other.const_value is not None
            and len(other.const_value.shape) == 1
        ):
            return other, uses[0].node
    return None, node
