"""A UniLM's ONNX graphs: their operators, and their results after quantisation."""

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from kit.dimensions import ROFORMER, SIMBERT, SMALL_ROFORMER, UNILMS
from kit.marks import slow
from kit.models import bundle, open_folder, opened, random_programs, random_tensors, write
from kvcast.bundle.manifest import read_bundle
from kvcast.errors import KvcastError
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.quantize import quantize_matrices
from kvcast.runtimes.eager.runtime import EagerPrefix

VOCAB = ROFORMER.vocab_size


def architecture(dimensions):
    return dimensions.architecture


def graph_of(dimensions, quantize="none", name="decode"):
    return ir.load(bundle(dimensions, quantize) / "onnx" / f"{name}.onnx").graph


def attentions(graph):
    return [node for node in graph if node.op_type == "GroupQueryAttention"]


@pytest.mark.parametrize("dimensions", UNILMS, ids=architecture)
def test_one_mask_serves_all_layers_and_nothing_touches_a_whole_cache(dimensions):
    graph = graph_of(dimensions)
    nodes = attentions(graph)
    assert len(nodes) == dimensions.layers
    assert len({node.inputs[10].producer().inputs[0].name for node in nodes}) == 1
    assert Counter(node.op_type for node in graph)["Slice"] == 1
    for node in nodes:
        assert node.attributes["causal"].as_int() == 0
        assert ("do_rotary" in node.attributes) == (dimensions.rotary is not None)
        assert node.inputs[1] is node.inputs[2] is None, "query, key and value are one product"
    readers = {use.node.op_type for v in graph.inputs if "past" in v.name for use in v.uses()}
    assert readers <= {"GroupQueryAttention", "Shape"}
    writers = {v.producer().op_type for v in graph.outputs if "present" in v.name}
    assert writers == {"GroupQueryAttention"}


def test_only_a_pooled_model_has_a_graph_for_it_and_no_step_holds_it():
    graph = graph_of(ROFORMER, name="pool")
    assert [node.op_type for node in graph] == ["Gemm"]
    assert set(graph.initializers) == {"pooler.weight", "pooler.bias"}
    assert not [name for name in graph_of(ROFORMER).initializers if "pooler" in name]
    assert set(read_bundle(bundle(SMALL_ROFORMER)).graphs) == {"decode"}


@pytest.mark.parametrize("quantize", ["int8", slow("int4")])
def test_the_embedding_is_stored_once_and_in_blocks(quantize):
    graph = graph_of(ROFORMER, quantize)
    tables = [
        value.const_value
        for value in graph.initializers.values()
        if VOCAB in value.shape and value.const_value.nbytes > VOCAB * ROFORMER.width / 2
    ]
    assert [table.dtype for table in tables] == [ir.DataType.UINT8]
    count = Counter(node.op_type for node in graph)
    assert count["Gemm"] == 0
    # A small one adds the least values of blocks to each int4 product, of which the head is none.
    assert count["MatMul"] == (count["MatMulNBits"] - 1 if quantize == "int4" else 0)
    assert count["GatherBlockQuantized"] == 1


def stepped(runtime, source, target):
    """Logits of every position, the source in one call and the target token by token."""
    count = len(source)
    logits, cache = runtime.decode([source], runtime.new_cache(1, 96), positions=range(count))
    steps = [logits[0]]
    for token in target:
        logits, cache = runtime.decode([token[None]], cache)
        steps.append(logits[0].copy())
    return np.concatenate(steps)


def correlations(programs, candidate):
    """Correlations of logits and of embeddings with those of `programs` in eager fp32."""
    generator = np.random.default_rng(1)
    source, target = (generator.integers(0, VOCAB, count) for count in (40, 20))
    exact = EagerPrefix(programs)
    logits = [stepped(runtime, source, target).ravel() for runtime in (exact, candidate)]
    sources = [source, target]
    vectors = [runtime.embed(sources).ravel() for runtime in (exact, candidate)]
    return np.corrcoef(*logits)[0, 1], np.corrcoef(*vectors)[0, 1]


@pytest.mark.parametrize(
    "dimensions", [ROFORMER, *(slow(model) for model in UNILMS[1:])], ids=architecture
)
@pytest.mark.parametrize(
    ("quantize", "cache", "least"),
    [("int8", "fp32", 0.99), slow("int4", "fp32", 0.8), slow("none", "int8", 0.99)],
)
def test_quantised_models_follow_fp32(dimensions, quantize, cache, least):
    candidate = opened(dimensions, quantize, cache=cache)
    assert min(correlations(random_programs(dimensions), candidate)) > least


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_quantised_eager_models_follow_fp32(quantize):
    quantized = random_programs(SIMBERT)
    quantize_matrices(quantized["decode"], quantize)
    least = {"int8": 0.98, "int4": 0.8}[quantize]
    assert min(correlations(random_programs(SIMBERT), EagerPrefix(quantized))) > least


@pytest.mark.slow
def test_a_quantised_head_keeps_its_bias(tmp_path):
    tensors = random_tensors(SIMBERT)
    tensors["head.bias"] = np.linspace(-100, 100, VOCAB, dtype=np.float32)
    programs = TorchModel.from_tensors(SIMBERT, tensors)
    write(programs, tmp_path / "b", "int8")
    runtime = open_folder(tmp_path / "b")
    logits, _ = runtime.decode([np.arange(4)], runtime.new_cache(1, 8))
    assert np.corrcoef(logits.ravel(), tensors["head.bias"])[0, 1] > 0.95


def test_heads_that_onnx_runtime_does_not_take_are_one_line(tmp_path):
    programs = random_programs(replace(ROFORMER, heads=16))
    with pytest.raises(KvcastError, match=r"heads of 4 numbers cannot run .*: use --runtime eager"):
        write(programs, tmp_path / "b")
