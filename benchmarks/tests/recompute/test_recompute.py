"""The recomputing baseline gives what the cached programs give, on every runtime."""

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from kit.dimensions import SMALL
from kit.models import checkpoint_of, random_programs, speech
from kvcast.bundle.manifest import read_bundle
from kvcast.runtimes.eager.runtime import EagerEncoderDecoder
from kvcast.runtimes.target import TARGETS
from kvcast.spec.runtimes import BundlePrecision
from kvcast_bench.recompute.backend import write_bundle
from kvcast_bench.recompute.programs import STATES, recomputing

FP32 = BundlePrecision(quantize="none")


@pytest.fixture(scope="module")
def programs():
    return random_programs(replace(SMALL, decoder_layers=2, encoder_layers=1, vocab_size=64))


def logits_of(runtime, batch=1):
    tokens_rs = np.arange(8 * batch).reshape(batch, 8) % 64
    cache, rows = runtime.new_cache(batch, 8, batch), range(batch)
    cache = runtime.reset(runtime.encode(cache, rows, *speech(batch, seed=1)), rows, rows)
    first, cache = runtime.decode(list(tokens_rs[:, :4]), cache)
    steps = [first.copy()]  # the runtime's own memory
    for i in range(4, 8):
        logits, cache = runtime.decode(list(tokens_rs[:, i : i + 1]), cache)
        steps.append(logits.copy())
    return np.concatenate(steps, axis=1)


def exported(programs, runtime, numbers, folder):
    write_bundle(checkpoint_of(programs), runtime, numbers, folder)
    return TARGETS[runtime].open("whisper", folder, read_bundle(folder), 1)


@pytest.mark.parametrize("batch", [1, 2])
def test_eager_logits_equal_the_cached_ones(programs, batch):
    logits = logits_of(EagerEncoderDecoder(recomputing(programs, "eager")), batch)
    np.testing.assert_array_equal(logits, logits_of(EagerEncoderDecoder(programs), batch))


# Compiling for AOTInductor would take longer than all the rest.
@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnx", "executorch"])
def test_exported_logits_equal_the_cached_ones(programs, runtime, tmp_path):
    if runtime == "executorch":
        pytest.importorskip("executorch")
    logits = logits_of(exported(programs, runtime, FP32, tmp_path))
    expected = logits_of(EagerEncoderDecoder(programs))
    np.testing.assert_allclose(logits, expected, atol=1e-3)


@pytest.mark.slow
def test_products_of_the_encoders_states_are_int8_as_in_an_int4_bundles_encode(programs, tmp_path):
    write_bundle(checkpoint_of(programs), "onnx", BundlePrecision(quantize="int4"), tmp_path)
    graph = ir.load(tmp_path / "onnx" / "decode.onnx").graph
    (states,) = (value for value in graph.inputs if value.name == STATES)
    assert {use.node.op_type for use in states.uses()} == {"Abs", "Div", "Shape"}
    [scaled] = [use.node.outputs[0] for use in states.uses() if use.node.op_type == "Div"]
    [quantized] = [use.node.outputs[0] for use in scaled.uses()]
    products = [use.node.op_type for use in quantized.uses()]
    assert products == ["MatMulIntegerToFloat"] * programs.dimensions.decoder_layers
    count = Counter(node.op_type for node in graph)
    # A small one adds the least values of blocks to each int4 product, of which the head is none.
    assert count["MatMul"] == count["MatMulNBits"] - 1 > 0
