"""A decoder-only model's ONNX graph: its operators, and its results after quantisation."""

from collections import Counter
from dataclasses import replace
from operator import attrgetter

import numpy as np
import onnx_ir as ir
import pytest

from kit.dimensions import COHERE2, DECODERS, GEMMA3, LLAMA, MISTRAL, MIXTRAL, NEOX, QWEN2, ROFORMER
from kit.marks import slow
from kit.models import bundle, checkpoint_of, opened, random_programs, write
from kvcast.bundle.manifest import read_bundle
from kvcast.errors import KvcastError
from kvcast.runtimes.eager.quantize import quantize_matrices
from kvcast.runtimes.eager.runtime import EagerDecoderOnly
from kvcast.runtimes.lowering.activations import smooth
from kvcast.runtimes.native.library import PLAIN
from kvcast.runtimes.reference import EagerReference, NativeReference

NAME = attrgetter("architecture")


def graph_of(dimensions, quantize="none"):
    return ir.load(bundle(dimensions, quantize) / "onnx" / "decode.onnx").graph


def test_a_layer_is_ten_operators_and_nothing_touches_a_whole_cache():
    graph = graph_of(LLAMA)
    count = Counter(node.op_type for node in graph)
    layers = LLAMA.layers
    assert count["GroupQueryAttention"] == layers
    assert count["MatMul"] == 4 * layers
    # Only the first norm has no addition before it, and only the last has another reader.
    assert count["SkipSimplifiedLayerNormalization"] >= 2 * layers - 1
    readers = {use.node.op_type for v in graph.inputs if "past" in v.name for use in v.uses()}
    assert readers <= {"GroupQueryAttention", "Shape"}
    writers = {v.producer().op_type for v in graph.outputs if "present" in v.name}
    assert writers == {"GroupQueryAttention"}


def test_attention_takes_the_packed_product():
    for node in graph_of(LLAMA):
        if node.op_type == "GroupQueryAttention":
            assert node.inputs[0].producer().op_type == "MatMul"
            assert node.inputs[1] is None
            assert node.inputs[2] is None


def test_layers_with_a_window_evict_and_the_others_do_not():
    nodes = [n for n in graph_of(GEMMA3) if n.op_type == "GroupQueryAttention"]
    windows = [
        node.attributes["local_window_size"].as_int()
        if "sliding_window_cache" in node.attributes
        else None
        for node in nodes
    ]
    assert windows == list(GEMMA3.windows)


@pytest.mark.parametrize("dimensions", [LLAMA, ROFORMER], ids=NAME)
def test_a_step_writes_its_own_slot_and_no_other(dimensions):
    runtime = opened(dimensions)
    cache = runtime.new_cache(2, 32)
    for cell in cache.memory.cells:
        cell[...] = 7  # fresh memory may hold NaN, which never equals itself
    _, cache = runtime.decode([np.arange(9), np.arange(5)], cache)
    before = [cell.copy() for cell in cache.memory.cells]
    addresses = [cell.ctypes.data for cell in cache.memory.cells]
    _, cache = runtime.decode([np.array([1]), np.array([2])], cache)
    assert [cell.ctypes.data for cell in cache.memory.cells] == addresses
    for old, new in zip(before, cache.memory.cells, strict=True):
        changed = {(row, slot) for row, _, slot, _ in np.argwhere(old != new)}
        assert changed == {(0, 9), (1, 5)}


@pytest.mark.parametrize("dimensions", [LLAMA, MISTRAL, GEMMA3, MIXTRAL, COHERE2, NEOX], ids=NAME)
def test_smoothing_changes_ranges_and_no_result(dimensions):
    programs = random_programs(dimensions)
    # One channel far larger than the others, as trained models have them.
    norm = programs.weights["decoder.layers.0.attention_norm.weight"]
    norm[3] *= 80
    native = NativeReference(checkpoint_of(programs), PLAIN)
    tokens = np.random.default_rng(0).integers(0, dimensions.vocab_size, 30)

    def logits():
        runtime = EagerDecoderOnly(programs)
        return runtime.decode([tokens], runtime.new_cache(1, 30), positions=range(30))[0]

    before = logits()
    spread = float(norm.max() / norm.abs().mean())
    weights = {name: tensor.numpy() for name, tensor in programs.weights.items()}
    decode = programs["decode"].program
    rescaled = dict(smooth(decode, weights, native))
    for name, tensor in smooth(decode, weights, EagerReference(programs)):
        np.testing.assert_allclose(rescaled[name], tensor, rtol=1e-5, err_msg=name)
    for name, tensor in rescaled.items():
        weights[name][...] = tensor
    assert float(norm.max() / norm.abs().mean()) < spread / 2
    np.testing.assert_allclose(logits(), before, atol=2e-4)


def correlation(dimensions, quantize, cache="fp32"):
    """Correlation of a quantised model's logits with those of fp32, prefill and steps."""
    exact = opened(dimensions, runtime="eager")
    candidate = opened(dimensions, quantize, cache=cache)
    assert read_bundle(bundle(dimensions, quantize, cache=cache)).quantize == quantize
    tokens = np.random.default_rng(1).integers(0, dimensions.vocab_size, 60)
    both = []
    for runtime in (exact, candidate):
        held = runtime.new_cache(1, 60)
        logits, held = runtime.decode([tokens[:40]], held, positions=range(40))
        stepped = [logits[0]]
        for token in tokens[40:]:
            logits, held = runtime.decode([token[None]], held)
            stepped.append(logits[0].copy())
        both.append(np.concatenate(stepped))
    return np.corrcoef(both[0].ravel(), both[1].ravel())[0, 1]


@pytest.mark.parametrize("dimensions", [MIXTRAL, slow(GEMMA3), slow(QWEN2)], ids=NAME)
def test_quantised_models_follow_fp32(dimensions):
    assert correlation(dimensions, "int8") > 0.99
    assert correlation(dimensions, "int4") > 0.8


@pytest.mark.parametrize("dimensions", [GEMMA3, slow(LLAMA)], ids=NAME)
def test_int8_caches_follow_fp32_and_take_a_quarter(dimensions):
    assert correlation(dimensions, "none", cache="int8") > 0.995
    runtime = opened(dimensions, cache="int8")
    assert {cell.dtype for cell in runtime.new_cache(1, 64).memory.cells} == {np.dtype(np.int8)}


@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize("dimensions", DECODERS, ids=NAME)
def test_quantised_eager_models_follow_fp32(dimensions, quantize):
    tokens = np.random.default_rng(3).integers(0, dimensions.vocab_size, 30)
    both = []
    for kind in ("none", quantize):
        programs = random_programs(dimensions)
        if kind != "none":
            quantize_matrices(programs["decode"], kind)
        runtime = EagerDecoderOnly(programs)
        logits, _ = runtime.decode([tokens], runtime.new_cache(1, 30), positions=range(30))
        both.append(logits.ravel())
    assert np.corrcoef(*both)[0, 1] > {"int8": 0.98, "int4": 0.8}[quantize]


def test_int8_rows_that_share_a_call_stay_near_what_each_is_alone():
    runtime = opened(LLAMA, "int8")
    prompts = np.random.default_rng(4).integers(0, LLAMA.vocab_size, (6, 12))
    cache = runtime.new_cache(6, 13)
    _, cache = runtime.decode(list(prompts), cache)
    together, _ = runtime.decode([np.array([row]) for row in range(6)], cache)
    together = together.copy()
    alone = []
    for row, prompt in enumerate(prompts):
        own = runtime.new_cache(1, 13)
        _, own = runtime.decode([prompt], own)
        alone.append(runtime.decode([np.array([row])], own)[0][0])
    assert np.corrcoef(together.ravel(), np.ravel(alone))[0, 1] > 0.995


@pytest.mark.parametrize(("quantize", "sizes"), [("int4", {"inner": 80}), ("int8", {"inner": 72})])
def test_sizes_that_blocks_do_not_divide_are_one_line(quantize, sizes, tmp_path):
    with pytest.raises(KvcastError, match="use --quantize none"):
        write(random_programs(replace(LLAMA, windows=(None,), **sizes)), tmp_path / "b", quantize)


def test_a_router_is_not_quantised():
    graph = graph_of(MIXTRAL, "int8")
    routers = [node.inputs[1].producer() for node in graph if node.op_type == "MoE"]
    assert len(routers) == MIXTRAL.layers
    assert {router.op_type for router in routers} == {"Gemm"}
    assert {router.inputs[1].dtype for router in routers} == {ir.DataType.FLOAT}
