"""Blocks on ONNX Runtime: their products and lookups, and codes as files have them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from kit.marks import slow
from kit.tiny_gguf import LAYERS, permuted, sizes, tensors, vocabulary, write
from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.source import open_checkpoint
from kvcast.families.programs import Argument, ProgramSignature
from kvcast.loading.components import programs_of
from kvcast.runtimes.onnx.graph_writer import GraphWriter
from kvcast.runtimes.onnx.matrices import Blocks, Packed, eight_bits, packed
from kvcast.runtimes.target import TARGETS, BuildOptions, LoweringJob
from kvcast.spec.runtimes import BundlePrecision
from kvcast.spec.stored_matrices import BLOCK, CodedMatrix

OUTPUTS, INPUTS = 24, 96


def blocks(kind: str) -> CodedMatrix:
    """Codes with a least value of their own, around 8, or of 8 bits."""
    generator = np.random.default_rng(0)
    scales = generator.normal(0, 0.1, (OUTPUTS, INPUTS // BLOCK)).astype(np.float16)
    if kind == "eight":
        codes = generator.integers(-128, 128, (OUTPUTS, INPUTS)).astype(np.int8)
        return CodedMatrix(codes=codes, scales=scales)
    codes = generator.integers(0, 16, (OUTPUTS, INPUTS)).astype(np.uint8)
    least = (-8 * scales).astype(np.float16)
    if kind == "least":
        least = generator.normal(size=scales.shape).astype(np.float16)
    return CodedMatrix(codes=codes, scales=scales, least=least)


def run(
    x: NDArray[np.generic], own: CodedMatrix, operation: str, path: Path, bias: Any = None
) -> tuple[NDArray[np.float32], set[str]]:
    """Return a product or a lookup of x, [1, s] or [1, s, inputs], and its operators."""
    shape = (1, "s", *x.shape[2:])
    signature = ProgramSignature(
        arguments=(Argument(name="x", shape=shape, dtype=str(x.dtype)),), outputs=("y",)
    )
    write = GraphWriter(signature, {}, {})
    given = [write.inputs["x"]]
    if operation == "product":
        given.append(write.constant("b", bias))
    result = getattr(Blocks("m", packed(own)), operation)(write, *given)
    model = write.model({"y": result})
    ir.save(model, path)
    (numbers,) = ort.InferenceSession(path).run(None, {"x": x})
    return numbers, {node.op_type for node in model.graph}


@pytest.mark.parametrize("kind", ["least", "around 8", "eight"])
def test_a_product_is_that_of_the_numbers(kind: str, tmp_path: Path) -> None:
    own = blocks(kind)
    # The operator rounds a block of inputs to int8: these stay as they are.
    x = np.random.default_rng(1).integers(-127, 128, (1, 5, INPUTS)).astype(np.float32)
    x[..., ::BLOCK] = 127
    bias = np.arange(OUTPUTS, dtype=np.float32)
    actual, operators = run(x, own, "product", tmp_path / "m.onnx", bias)
    np.testing.assert_allclose(actual, x @ own.dequantize().T + bias, rtol=1e-5, atol=1e-2)
    assert ("Add" in operators) == (kind == "least"), "codes around 8 need nothing beside them"


@pytest.mark.parametrize("kind", ["least", "around 8", "eight"])
def test_a_lookup_gives_the_numbers(kind: str, tmp_path: Path) -> None:
    own = blocks(kind)
    rows = np.array([[3, 0, OUTPUTS - 1, 3]], np.int64)
    actual, _ = run(rows, own, "lookup", tmp_path / "m.onnx")
    np.testing.assert_allclose(actual, own.dequantize()[rows], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("inputs", [48, 96, 384])
def test_eight_bits_are_within_a_step(inputs: int) -> None:
    weight = np.random.default_rng(2).normal(size=(7, inputs)).astype(np.float32)
    weight[3] = 0
    blocks = eight_bits(weight)
    assert blocks.inputs == inputs
    assert inputs % blocks.block == 0
    assert blocks.bits == 8
    numbers = (blocks.codes.astype(np.float32) - 128) * blocks.scales[..., None]
    error = np.abs(numbers - weight.reshape(numbers.shape))
    # The largest magnitude may have the sign whose end of the range is a step shorter.
    assert (error <= np.abs(blocks.scales)[..., None] * 1.01).all()
    assert np.square(error).mean() < np.square(blocks.scales).mean() / 10
    assert not numbers[3].any()


def file(kind: str, path: Path) -> Checkpoint:
    """Open a tiny GGUF file with matrices of this type."""
    arrays = {name: permuted(name, array) for name, array in tensors(tied=False).items()}
    kinds = {name: kind for name, array in arrays.items() if array.ndim == 2}
    write(path, "llama", sizes("llama") | vocabulary(), arrays, kinds)
    return open_checkpoint(path)


def graph_of(checkpoint: Checkpoint, quantize: str, folder: Path) -> ir.Graph:
    job = LoweringJob(
        checkpoint=checkpoint,
        programs=lambda: programs_of(checkpoint),
        precision=BundlePrecision(quantize=quantize, dtype="fp32", cache="fp32"),
        build=BuildOptions(),
        special_tokens={},
        blocks_of=checkpoint.tensors.blocks_of,
    )
    folder.mkdir()
    TARGETS["onnx"].lower(job, folder)
    return ir.load(folder / "onnx/decode.onnx").graph


def in_graph(graph: ir.Graph, name: str) -> Packed:
    def read(part: str) -> NDArray[np.generic] | None:
        value = graph.initializers.get(name + part)
        return None if value is None else value.const_value.numpy()

    codes, scales = read(".codes"), read(".scales")
    bits = codes.shape[2] * 8 // BLOCK
    return Packed(codes=codes, scales=scales, bits=bits, rest=read(".rest"))


MATRICES = [
    "decoder.embedding.weight",
    "decoder.head.weight",
    *(
        f"decoder.layers.{layer}.{name}.weight"
        for layer in range(LAYERS)
        for name in ("attention.qkv", "attention.out", "feed_forward.gate_up", "feed_forward.down")
    ),
]


@pytest.mark.parametrize("kind", ["Q4_0", slow("Q4_1"), "Q8_0"])
def test_a_files_own_codes_and_scales_are_in_the_graph_bit_for_bit(
    kind: str, tmp_path: Path
) -> None:
    """Fused matrices and queries in another order included."""
    checkpoint = file(kind, tmp_path / "m.gguf")
    graph = graph_of(checkpoint, "int4", tmp_path / "b")
    for name in MATRICES:
        own, written = checkpoint.tensors.blocks_of(name), in_graph(graph, name)
        codes = written.codes.reshape(len(written.codes), -1)
        if kind == "Q8_0":
            codes = (codes ^ 128).view(np.int8)
        else:
            codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(own.shape)
        np.testing.assert_array_equal(codes, own.codes, err_msg=name)
        np.testing.assert_array_equal(written.scales, own.scales.astype(np.float32), err_msg=name)
        assert (written.rest is not None) == (kind == "Q4_1")
        if written.rest is not None:
            np.testing.assert_allclose(written.rest.T - 8 * written.scales, own.least, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kept"), [("Q8_0", True), ("Q4_0", False)])
def test_int8_keeps_codes_of_8_bits_where_it_has_blocks(
    kind: str, kept: bool, tmp_path: Path
) -> None:
    checkpoint = file(kind, tmp_path / "m.gguf")
    graph = graph_of(checkpoint, "int8", tmp_path / "b")
    for name in (*MATRICES[:2], "decoder.layers.0.feed_forward.down.weight"):
        codes = in_graph(graph, name).codes.reshape(len(checkpoint.tensors[name]), -1)
        own = checkpoint.tensors.blocks_of(name).codes
        same = codes.shape == own.shape and ((codes ^ 128).view(np.int8) == own).all()
        assert same == kept
