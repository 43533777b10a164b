"""A T5's ONNX graphs: their operators, and their results after quantisation."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from kit import models
from kit.dimensions import CROSS_BIASED_T5, SMALL_T5
from kit.marks import slow
from kit.models import encoded, open_folder, stepped, text, write
from kit.rounding import assert_logits_equal
from kvcast.families.t5 import T5
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.quantize import quantize_matrices
from kvcast.runtimes.eager.runtime import EagerEncoderDecoder

VOCAB = SMALL_T5.vocab_size
DEEP = replace(SMALL_T5, vocab_size=300, inner=96, encoder_layers=2, decoder_layers=3)


def programs_of(dimensions, part, size):
    """Random programs; weights of matrices with `part` in their names have this magnitude."""
    generator = np.random.default_rng(0)
    tensors = {
        name: generator.normal("norm" in name, size if part in name else 0.2, shape)
        for name, shape in T5.tensor_shapes(dimensions).items()
    }
    return TorchModel.from_tensors(dimensions, tensors)


def milder(dimensions):
    """Programs with small attention weights.

    Attention is not scaled: with larger values, rounding would change the attended positions.
    """
    return programs_of(dimensions, "attention", 0.05)


def quantised(dimensions, quantize):
    """The bundle of `milder`'s programs, written once a run."""

    def make(folder):
        write(milder(dimensions), folder, quantize)

    return models.once(f"milder-t5-{quantize}-{dimensions.architecture}-{dimensions.tied}", make)


@pytest.fixture(
    scope="module",
    params=[
        (SMALL_T5, "none"),
        (CROSS_BIASED_T5, "int8"),
        slow((CROSS_BIASED_T5, "none")),
        slow((SMALL_T5, "int8")),
    ],
    ids=str,
)
def bundle(request):
    """Dimensions, and the graphs of `encode` and `decode`."""
    dimensions, quantize = request.param
    folder = models.bundle(dimensions) if quantize == "none" else quantised(dimensions, quantize)
    graphs = (ir.load(folder / "onnx" / f"{name}.onnx").graph for name in ("encode", "decode"))
    return dimensions, *graphs


def test_one_bias_serves_all_layers_and_nothing_touches_a_whole_cache(bundle):
    dimensions, _, graph = bundle
    nodes = [node for node in graph if node.op_type == "GroupQueryAttention"]
    assert len(nodes) == dimensions.decoder_layers
    assert len({node.inputs[10].producer().inputs[0].name for node in nodes}) == 1
    crossing = [node for node in graph if node.op_type == "MultiHeadAttention"]
    assert len(crossing) == dimensions.decoder_layers
    assert {len(node.inputs) > 5 for node in crossing} == {dimensions.cross_bias}
    for kind, readers in (
        ("past", {"GroupQueryAttention", "Shape"}),
        ("cross", {"MultiHeadAttention", "Shape"}),
    ):
        caches = [value for value in graph.inputs if value.name.startswith(kind)]
        assert len(caches) == 2 * dimensions.decoder_layers
        assert {use.node.op_type for value in caches for use in value.uses()} <= readers
    writers = {value.producer().op_type for value in graph.outputs if "present" in value.name}
    assert writers == {"GroupQueryAttention"}


def test_the_embedding_lies_once_on_disk_for_both_graphs(bundle):
    dimensions, *graphs = bundle
    encoding, decoding = (
        {
            (value.const_value.location, value.const_value.offset)
            for value in graph.initializers.values()
            if VOCAB in value.shape and value.const_value.nbytes >= VOCAB * dimensions.width
        }
        for graph in graphs
    )
    assert len(encoding) == 1
    assert len(decoding) == (1 if dimensions.tied else 2)
    assert encoding <= decoding
    assert {location for location, _ in decoding} == {"decode.onnx.data"}


def logits_of(runtime):
    """Logits of sources of different lengths, step by step."""
    tokens_rs = np.random.default_rng(5).integers(0, VOCAB, (12, 3)).T
    logits, _ = stepped(runtime, encoded(runtime, text(3, 4)), tokens_rs)
    return logits.ravel()


@pytest.mark.parametrize(
    ("dimensions", "quantize", "least"),
    [
        (CROSS_BIASED_T5, "int8", 0.98),
        slow(CROSS_BIASED_T5, "int4", 0.8),
        slow(SMALL_T5, "int8", 0.98),
        slow(SMALL_T5, "int4", 0.8),
    ],
)
def test_quantised_models_follow_fp32(dimensions, quantize, least):
    programs = milder(dimensions)
    exact = logits_of(EagerEncoderDecoder(programs))
    bundled = logits_of(open_folder(quantised(dimensions, quantize)))
    quantize_matrices(programs["decode"], quantize)
    for candidate in (bundled, logits_of(EagerEncoderDecoder(programs))):
        assert not np.array_equal(exact, candidate)
        assert np.corrcoef(exact, candidate)[0, 1] > least


@pytest.mark.slow
@pytest.mark.parametrize("part", ["cross_attention.query", "encoder.layers.0.self_attention.qkv"])
def test_padding_is_not_seen_however_large_products_are(part, tmp_path):
    programs = programs_of(DEEP, part, 200)
    lengths = np.array([5, 38], np.int32)
    source_bt = np.random.default_rng(0).integers(0, DEEP.vocab_size, (2, 38))
    tokens_rs = np.zeros((2, 1), np.int64)
    write(programs, tmp_path / "bundle")
    for runtime in (EagerEncoderDecoder(programs), open_folder(tmp_path / "bundle")):
        padded = encoded(runtime, (source_bt, lengths))
        alone = encoded(runtime, (source_bt[:1, :5], lengths[:1]))
        together, _ = runtime.decode(list(tokens_rs), padded)
        expected, _ = runtime.decode(list(tokens_rs[:1]), alone)
        assert_logits_equal(together[0], expected[0], DEEP)
