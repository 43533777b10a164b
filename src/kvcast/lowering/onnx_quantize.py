"""Quantises the weights of an ONNX graph with ONNX Runtime's own operators.

ONNX Runtime's `quantize_dynamic` is not used: it turns the head's Gemm into a MatMul by
transposing the weight in place, which destroys the embedding that shares it. This module is
smaller than a workaround for that:

- int8 matrices become `DynamicQuantizeMatMul`: symmetric weights with one scale per column,
  activations quantised on the fly. Fast for one token and for many.
- int4 matrices become `MatMulNBits`: blocks of 32 inputs with a scale and a least value each. A
  step reads the fewest bytes. The operator is fast around a fixed zero alone, so what a least value
  is away from that multiplies the sum of its block's inputs, in a small product beside it.
- A tied embedding and head become one table in blocks, read by `GatherBlockQuantized` and
  `MatMulNBits`, so it is stored once.

Knows nothing of models: it sees a graph's constant matrices and its tied table.
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.lowering.block_search import searched
from kvcast.spec.blocks import BLOCK

CONTRIB = "com.microsoft"
# MatMulNBits can compute in int8: level 4 allows it to quantise activations in blocks.
_INT8_ACTIVATIONS = 4
_ZERO = np.float32(8)  # the code that MatMulNBits takes for 0
# Factors that the search for a block's scale tries. With SmolLM2-135M it lowers the perplexity at
# 4 bits from 11.2 to 10.7 (fp32: 9.2); at 8 bits it gains nothing.
_RANGES = {4: (1.0, 0.95, 0.9, 0.85, 0.8, 1.07, 1.14), 8: (1.0,)}


def to_int8_columns(
    weight_io: NDArray[np.float32],
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantise [inputs, outputs] symmetrically with one scale per output."""
    scales = np.abs(weight_io).max(axis=0) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(weight_io / scales).astype(np.int8), scales


def to_blocks(
    weight_oi: NDArray[np.float32], bits: int, block: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Quantise [outputs, inputs] to `MatMulNBits`'s layout.

    A block's value of largest magnitude maps to the longer end of the integer range, as in
    llama.cpp's Q4_0. Of several slightly narrower and wider ranges, the one with the least squared
    error is chosen, and its scale is then fitted.

    Returns uint8 [outputs, inputs / block, block * bits / 8] around the zero point 2^(bits-1),
    low bits first, and fp32 scales [outputs, inputs / block].
    """
    blocks = weight_oi.reshape(len(weight_oi), -1, block)
    zero_point = 2 ** (bits - 1)
    at = np.abs(blocks).argmax(axis=-1, keepdims=True)
    widest = np.take_along_axis(blocks, at, axis=-1) / np.float32(-zero_point)
    widest = np.where(widest == 0, np.float32(1), widest)
    scales, error = widest, np.full_like(widest, np.inf)
    for factor in _RANGES[bits]:
        tried = widest * np.float32(factor)
        steps = _steps(blocks, tried, zero_point)
        tried_error = np.square(steps * tried - blocks).sum(axis=-1, keepdims=True)
        scales = np.where(tried_error < error, tried, scales)
        error = np.minimum(error, tried_error)
    steps = _steps(blocks, scales, zero_point)
    codes = (steps + zero_point).astype(np.uint8)
    # For given steps, the least-squares scale is the best one.
    squares = np.square(steps).sum(axis=-1, keepdims=True)
    products = (steps * blocks).sum(axis=-1, keepdims=True)
    scales = np.where(squares > 0, products / np.maximum(squares, 1), scales)
    if bits == 4:
        codes = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return codes, np.asarray(scales[..., 0], np.float32)


def _steps(
    blocks: NDArray[np.float32], scales: NDArray[np.float32], zero_point: int
) -> NDArray[np.float32]:
    """Round to integers from -zero_point to zero_point - 1."""
    steps: NDArray[np.float32] = np.rint(blocks / scales).clip(-zero_point, zero_point - 1)
    return steps


def table_block(width: int) -> int:
    """Return the largest block of at most 128 inputs that divides `width`; KvcastError if none."""
    for block in (128, 64, 32, 16):
        if width % block == 0:
            return block
    raise _indivisible(width, 16)


def _indivisible(width: int, block: int) -> KvcastError:
    return KvcastError(
        f"a matrix of {width} inputs cannot be quantised in blocks of {block}: use --quantize none"
    )


def quantize_matrices(
    model: ir.Model,
    bits: int,
    in_blocks: Callable[[ir.Node], bool] = lambda _: False,
    only: Callable[[ir.Node], bool] = lambda _: True,
) -> int:
    """Replace every product with a constant matrix, including its bias; return how many there are.

    Args:
        model: changed in place.
        bits: 8 or 4.
        in_blocks: says which products need int8 in blocks, because a single scale does not suit
            their input. Ignored with 4 bits.
        only: says which products are replaced.

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
        bias, end = _following_bias(node)
        weight = node.inputs[1].const_value.numpy()  # type: ignore[union-attr]
        if bits == 4:
            replacement = _int4_product(model.graph, node, weight, bias)
        elif not in_blocks(node):
            replacement = _int8_product(model.graph, node, weight, bias)
        else:
            replacement = _product_in_blocks(model.graph, node, weight, bias)
        put_in_place(model.graph, node, end, replacement)
    model.graph.sort()
    return len(products)


def quantize_table(model: ir.Model, name: str, bits: int) -> None:
    """Quantise the table `name` [vocab, width], read by Gathers and by Gemms with transB."""
    graph = model.graph
    table = graph.initializers[name]
    weight = table.const_value.numpy()  # type: ignore[union-attr]
    vocab, width = weight.shape
    block = table_block(width)
    codes, scales = to_blocks(weight, bits, block)
    code_value = constant(graph, f"{name}_codes", codes)
    scale_value = constant(graph, f"{name}_scales", scales)
    flat_shape = constant(graph, f"{name}_flat_shape", np.array([vocab, -1], np.int64))
    flat = ir.node("Reshape", [code_value, flat_shape])
    for node in [use.node for use in table.uses()]:
        end = node
        if node.op_type == "Gather":
            replacement = ir.node(
                "GatherBlockQuantized",
                [flat.outputs[0], node.inputs[1], scale_value],
                {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1},
                domain=CONTRIB,
            )
            graph.insert_before(node, flat)
        else:
            bias = node.inputs[2] if len(node.inputs) > 2 else None
            replacement = _blocks_product(
                node, code_value, scale_value, (width, vocab), block, bits, bias
            )
            source, end = _unflattened(node)
            replacement.replace_input_with(0, source)
        put_in_place(graph, node, end, replacement)
    del graph.initializers[name]


def _unflattened(node: ir.Node) -> tuple[ir.Value | None, ir.Node]:
    """Return what a product can read, and the last node that it replaces.

    A Gemm takes and gives two axes. Where its input was flattened for that, and its result gets the
    axes back, the product that replaces it leaves them: a result of the size of a vocabulary is
    then not copied.
    """
    flat = node.inputs[0]
    before = flat.producer() if flat is not None else None
    after = next((use.node for use in node.outputs[0].uses()), None)
    if before is None or after is None or not before.op_type == after.op_type == "Reshape":
        return flat, node
    source, given = before.inputs[0], after.outputs[0]
    if source is None or source.shape is None or given.shape is None:
        return flat, node
    same = tuple(source.shape)[:-1] == tuple(given.shape)[:-1]
    return (source, after) if same else (flat, node)


def _int8_product(
    graph: ir.Graph, node: ir.Node, weight: NDArray[np.float32], bias: ir.Value | None
) -> ir.Node:
    codes, scales = to_int8_columns(weight)
    inputs = [
        node.inputs[0],
        constant(graph, f"{node.name}_codes", codes),
        constant(graph, f"{node.name}_scales", scales),
        constant(graph, f"{node.name}_zero", np.zeros(codes.shape[1], np.int8)),
        bias,
    ]
    return ir.node("DynamicQuantizeMatMul", inputs, domain=CONTRIB)


def _product_in_blocks(
    graph: ir.Graph, node: ir.Node, weight: NDArray[np.float32], bias: ir.Value | None
) -> ir.Node:
    block = table_block(len(weight))
    codes, scales = to_blocks(np.ascontiguousarray(weight.T), 8, block)
    code_value = constant(graph, f"{node.name}_codes", codes)
    scale_value = constant(graph, f"{node.name}_scales", scales)
    shape = (weight.shape[0], weight.shape[1])
    return _blocks_product(node, code_value, scale_value, shape, block, 8, bias)


def _int4_product(
    graph: ir.Graph, node: ir.Node, weight: NDArray[np.float32], bias: ir.Value | None
) -> ir.Node:
    """Multiply with scale * (code - 8), and the sums of blocks with least value + 8 * scale."""
    inputs, outputs = weight.shape
    if inputs % BLOCK:
        raise _indivisible(inputs, BLOCK)
    found = searched(np.ascontiguousarray(weight.T))
    scales = found.scales.astype(np.float32)
    if found.least is None:
        raise TypeError("int4 has least values")
    rest_bo = np.ascontiguousarray((found.least.astype(np.float32) + _ZERO * scales).T)
    codes = found.codes.reshape(outputs, -1, BLOCK)
    code_value = constant(graph, f"{node.name}_codes", codes[..., 0::2] | (codes[..., 1::2] << 4))
    scale_value = constant(graph, f"{node.name}_scales", scales)
    shape = (inputs, outputs)
    main = _blocks_product(node, code_value, scale_value, shape, BLOCK, 4, bias)
    sums = ir.node("MatMul", [node.inputs[0], _summing(graph, inputs)])
    rest = constant(graph, f"{node.name}_rest", rest_bo)
    shifted = ir.node("MatMul", [sums.outputs[0], rest])
    for one in (main, sums, shifted):
        graph.insert_before(node, one)
    return ir.node("Add", [main.outputs[0], shifted.outputs[0]])


def _summing(graph: ir.Graph, inputs: int) -> ir.Value:
    """Return the matrix [inputs, inputs / 32] that sums each block: faster than ReduceSum."""
    name = f"sums_of_{inputs}"
    if name in graph.initializers:
        return graph.initializers[name]
    blocks = np.eye(inputs // BLOCK, dtype=np.float32)
    return constant(graph, name, np.repeat(blocks, BLOCK, axis=0))


def _blocks_product(
    node: ir.Node,
    codes: ir.Value,
    scales: ir.Value,
    shape_io: tuple[int, int],
    block: int,
    bits: int,
    bias: ir.Value | None = None,
) -> ir.Node:
    inputs = [node.inputs[0], codes, scales, None, None, bias]
    attributes = {
        "K": shape_io[0],
        "N": shape_io[1],
        "bits": bits,
        "block_size": block,
        "accuracy_level": _INT8_ACTIVATIONS,
    }
    return ir.node("MatMulNBits", inputs, attributes, domain=CONTRIB)


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


def constant(graph: ir.Graph, name: str, array: NDArray[np.generic]) -> ir.Value:
    """Add an initializer."""
    value = ir.Value(
        name=name,
        const_value=ir.tensor(array, name=name),
        shape=ir.Shape(array.shape),
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
    )
    graph.register_initializer(value)
    return value


def put_in_place(graph: ir.Graph, first: ir.Node, last: ir.Node, replacement: ir.Node) -> None:
    """Replace the result of `last` with that of `replacement`; remove `first` and `last`."""
    old, new = last.outputs[0], replacement.outputs[0]
    new.name, new.shape, new.type = old.name, old.shape, old.type
    graph.insert_before(last, replacement)
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name = None
    doomed = [last] if first is last else [last, first]
    graph.remove(doomed, safe=True)
