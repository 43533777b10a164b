"""Firefox's translation models: logits that equal a computation in NumPy, codes that are kept."""

import numpy as np
import pytest

import kvcast
from kit.marian_files import (
    HEADS,
    MODEL,
    NumpyMarian,
    pieces,
    read_arrays,
    vocabulary_size,
    write_bergamot,
)
from kit.models import encoded
from kvcast.checkpoints.source import open_checkpoint
from kvcast.errors import UsageError
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerEncoderDecoder
from kvcast.runtimes.native.bundles import open_checkpoint as open_native
from kvcast.runtimes.native.library import Format
from kvcast.runtimes.native.plan_builder import Matrix
from kvcast.runtimes.native.weights import inventory
from kvcast.spec.runtimes import BundlePrecision


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_bergamot(tmp_path_factory.mktemp("bergamot"))


def logits_of(runtime, source, target):
    """Logits [1 + target, vocab], whatever the first token."""
    cache = encoded(runtime, (np.array([source]), np.array([len(source)], np.int32)))
    given = np.array([7, *target])
    logits, _ = runtime.decode([given], cache, positions=range(len(given)))
    return logits[0].copy()


@pytest.mark.parametrize("coded", [True, False], ids=["intgemm8", "float32"])
@pytest.mark.parametrize("runtime", ["eager", "native"])
def test_logits_are_those_of_numpy(tmp_path, runtime, coded):
    folder = write_bergamot(tmp_path, coded=coded)
    theirs = NumpyMarian(read_arrays(folder / MODEL), HEADS)
    checkpoint = open_checkpoint(folder)
    if runtime == "eager":
        programs = TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors)
        opened = EagerEncoderDecoder(programs)
    else:
        opened = kvcast.load(folder, runtime="native", quantize="none", threads=1).runtime
    source, target = np.split(np.random.default_rng(0).integers(0, vocabulary_size(), 30), [11])
    expected = theirs.logits(source, target)
    np.testing.assert_allclose(logits_of(opened, source, target), expected, atol=2e-4)


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_codes_are_kept_with_their_scales(folder, quantize):
    checkpoint = open_checkpoint(folder)
    shapes = checkpoint.family.tensor_shapes(checkpoint.dimensions)
    _, interpreter = open_native(checkpoint, BundlePrecision(quantize=quantize), 1)
    packed = {
        constant.name: matrix
        for constant, matrix in interpreter.constants.items()
        if isinstance(matrix, Matrix)
    }
    assert packed.keys() == {name for name, shape in shapes.items() if len(shape) > 1} - {
        "encoder.positions",
        "decoder.positions",
    }
    assert {matrix.format for matrix in packed.values()} == {Format.INT8}
    held = inventory(interpreter.constants, checkpoint.tensors.parts_of)
    assert [part.kept for part in held if part.stored == "intgemm8"] == [True]
    stored = checkpoint.tensors.blocks_of("decoder.layers.1.cross_attention.key_value.weight")
    arrays = read_arrays(folder / MODEL)
    for part, name in zip(np.split(stored.dequantize(), 2), "kv", strict=True):
        np.testing.assert_allclose(part, arrays[f"decoder_l2_context_W{name}"].T, rtol=1e-6)


def test_a_bundle_holds_the_codes_of_the_file(folder, tmp_path):
    kvcast.export_bundle(folder, tmp_path / "bundle", runtime="native")
    sources = [[20, 30, 40, 0], [9, 8, 7, 6, 5, 0]]
    texts = [
        [text.tokens for text in kvcast.load(path, threads=1).generate(sources, max_new_tokens=9)]
        for path in (folder, tmp_path / "bundle")
    ]
    assert texts[0] == texts[1]


def test_a_vocabulary_splits_as_sentencepiece_does(folder):
    import sentencepiece

    model = kvcast.load(folder, runtime="native", threads=1)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=pieces())
    for text in ("the house is on the hill", "Call me Ishmael.", "  two  spaces "):
        tokens = model.tokenizer.encode(text)
        assert tokens == [*theirs.encode(text), theirs.eos_id()]
        assert model.tokenizer.decode(tokens) == theirs.decode(theirs.encode(text))
    assert model.tokenizer.encode("\u2603")[-2:] == [theirs.unk_id(), theirs.eos_id()]
    assert model.tokenizer.source_language == "xx"
    assert model.tokenizer.translates


def test_the_unknown_token_is_not_generated(folder, tmp_path):
    arrays = dict(read_arrays(folder / MODEL))
    arrays["decoder_ff_logit_out_b"] = arrays["decoder_ff_logit_out_b"].copy()
    arrays["decoder_ff_logit_out_b"][0, 1] = 1e4
    unknown = write_bergamot(tmp_path, arrays)
    for options, is_there in (({}, False), ({"generation_config": False}, True)):
        model = kvcast.load(unknown, runtime="native", threads=1, **options)
        assert (1 in model.generate([30, 40, 0], max_new_tokens=4).tokens) == is_there


@pytest.mark.parametrize("runtime", ["onnx", "aoti", "executorch"])
def test_other_runtimes_refuse_its_states_in_one_line(folder, runtime):
    with pytest.raises(UsageError, match="a model with other layers than attention"):
        kvcast.load(folder, runtime=runtime)
