import json
import types
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoints.folder_checks import outcome
from checkpoints.tiny_whisper import (
    TIED,
    ct2_bytes,
    ct2_folder,
    ct2_variables,
    quantised_variables,
    random_model,
    save,
)
from kit.in_transformers import demo_in_transformers
from kvcast.checkpoints.source import fingerprint, locate, open_checkpoint
from kvcast.errors import KvcastError
from kvcast.families.whisper import WHISPER

WHOLE = ct2_bytes(ct2_variables(), TIED)


QUANTISED = ct2_bytes(quantised_variables(), TIED)


def convert(folder, output, quantization):
    ctranslate2 = pytest.importorskip("ctranslate2")
    converter = ctranslate2.converters.TransformersConverter(str(folder))
    tokenizer = types.SimpleNamespace(get_vocab=lambda: {f"t{i}": i for i in range(13)})
    converter.load_tokenizer = lambda *_, **__: tokenizer
    converter.convert(str(output), quantization=quantization)
    (output / "tokenizer.json").write_text("{}")
    return output


@pytest.mark.parametrize("quantization", ["float32", "float16", "bfloat16", "int8", "int16"])
def test_a_converted_model_reads_like_the_one_it_was_converted_from(tmp_path, quantization):
    original = save(random_model(), tmp_path / "huggingface")
    expected = open_checkpoint(original)
    got = open_checkpoint(convert(original, tmp_path / "ctranslate2", quantization))
    assert got.dimensions == expected.dimensions
    assert got.generation["suppress_tokens"] == [4, 5]
    assert got.generation["begin_suppress_tokens"] == [6]
    assert set(got.tensors) == set(expected.tensors)
    # Half a step of the coarsest number: the stored one, or the row's largest over its levels.
    relative = {"float32": 0, "float16": 2**-11, "bfloat16": 2**-8, "int8": 0, "int16": 0}
    levels = {"int8": 127, "int16": 1024}.get(quantization)
    for name, tensor in got.tensors.items():
        want = expected.tensors[name]
        coarse = np.abs(want).max() / levels / 2 * 1.001 if levels and want.ndim > 1 else 0
        limit = np.abs(want) * relative[quantization] + coarse
        assert np.all(np.abs(tensor.astype(np.float32) - want) <= limit), name
        stays = np.float16 if quantization == "float16" else np.float32
        assert tensor.dtype == stays


def test_int8_and_int16_are_divided_by_their_scales(tmp_path):
    variables = ct2_variables()
    linear = "encoder/layer_0/ffn/linear_1"
    variables[f"{linear}/weight"] = np.arange(-32, 32, dtype=np.int8).reshape(4, 16)
    variables[f"{linear}/weight_scale"] = np.array([1, 2, 4, 8], np.float32)
    variables["encoder/conv2/weight"] = np.arange(48, dtype=np.int8).reshape(4, 4, 3)
    variables["encoder/conv2/weight_scale"] = np.array([1, 2, 4, 8], np.float16)
    variables["decoder/embeddings/weight"] = np.arange(20, dtype=np.int16).reshape(5, 4)
    variables["decoder/embeddings/weight_scale"] = np.array(4, np.float32)
    tensors = open_checkpoint(ct2_folder(tmp_path / "ct2", ct2_bytes(variables, TIED))).tensors
    scale = np.array([1, 2, 4, 8], np.float32)
    np.testing.assert_array_equal(
        tensors["encoder.layers.0.feed_forward.down.weight"],
        np.arange(-32, 32, dtype=np.float32).reshape(4, 16) / scale[:, None],
    )
    (part,) = tensors.parts_of("encoder.layers.0.feed_forward.down.weight")
    assert (part.kinds, part.nbytes, part.rows) == ({"int8"}, 64, None)
    np.testing.assert_array_equal(
        tensors["encoder.conv2.weight"],
        np.arange(48, dtype=np.float32).reshape(4, 4, 3) / scale[:, None, None],
    )
    np.testing.assert_array_equal(
        tensors["decoder.embedding.weight"], np.arange(20, dtype=np.float32).reshape(5, 4) / 4
    )


def test_aliases_stand_for_the_variables_they_name(tmp_path):
    variables = ct2_variables()
    gamma = variables.pop("encoder/layer_norm/gamma")
    variables["decoder/layer_norm/gamma"] = gamma
    aliases = [*TIED, ("encoder/layer_norm/gamma", "decoder/layer_norm/gamma")]
    tensors = open_checkpoint(ct2_folder(tmp_path / "ct2", ct2_bytes(variables, aliases))).tensors
    np.testing.assert_array_equal(tensors["encoder.norm.weight"], gamma)
    np.testing.assert_array_equal(tensors["decoder.norm.weight"], gamma)


def test_left_out_source_positions_are_sinusoids_of_1500(tmp_path):
    variables = ct2_variables()
    del variables["encoder/position_encodings/encodings"]
    checkpoint = open_checkpoint(ct2_folder(tmp_path / "ct2", ct2_bytes(variables, TIED)))
    assert checkpoint.dimensions.source_positions == 1500
    positions = checkpoint.tensors["encoder.positions"]
    np.testing.assert_allclose(positions[2], np.sin([2, 2e-4, np.pi / 2 + 2, np.pi / 2 + 2e-4]))


def test_configuration_is_optional_and_renamed(tmp_path):
    folder = ct2_folder(tmp_path / "ct2", WHOLE)
    assert open_checkpoint(folder).generation == {
        "suppress_tokens": [1, 2],
        "language_tokens": [3],
        "alignment_heads": [[0, 1]],
    }
    before = fingerprint(folder)
    (folder / "config.json").unlink()
    assert open_checkpoint(folder).generation == {}
    assert fingerprint(folder) != before


@pytest.mark.parametrize("revision", [1, 2, 3])
def test_all_revisions_of_the_specification_read_alike(tmp_path, revision):
    contents = ct2_bytes(ct2_variables(), TIED, revision=revision)
    checkpoint = open_checkpoint(ct2_folder(tmp_path / "ct2", contents))
    np.testing.assert_array_equal(
        checkpoint.tensors["decoder.embedding.weight"], ct2_variables()["decoder/embeddings/weight"]
    )


def test_a_head_of_its_own_may_equal_the_embedding(tmp_path):
    variables = ct2_variables()
    variables["decoder/projection/weight"] = variables["decoder/embeddings/weight"].copy()
    open_checkpoint(ct2_folder(tmp_path / "ct2", ct2_bytes(variables)))


def test_every_truncation_is_one_line(tmp_path):
    folder = ct2_folder(tmp_path / "ct2", QUANTISED)
    for length in range(0, len(QUANTISED), 17):
        (folder / "model.bin").write_bytes(QUANTISED[:length])
        assert outcome(partial(open_checkpoint, folder)), length


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return ct2_folder(tmp_path_factory.mktemp("flips") / "ct2", QUANTISED)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    flips=st.lists(
        st.tuples(st.integers(0, len(QUANTISED) - 1), st.integers(0, 255)), min_size=1, max_size=4
    )
)
def test_altered_bytes_give_one_line_or_a_whole_model(scratch, flips):
    contents = bytearray(QUANTISED)
    for position, value in flips:
        contents[position] = value
    (scratch / "model.bin").write_bytes(contents)
    shapes = expected = message = ""
    try:
        checkpoint = open_checkpoint(scratch)
        shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
        expected = WHISPER.tensor_shapes(checkpoint.dimensions)
    except KvcastError as error:
        message = str(error)
    assert "\n" not in message
    assert shapes == expected


def test_the_packaged_model_survives_the_way_through_transformers_unchanged(tmp_path):
    original = open_checkpoint(locate("demo"))
    sizes = asdict(original.dimensions)
    assert sizes == {
        "n_mels": 80,
        "vocab_size": 51864,
        "d_model": 384,
        "encoder_layers": 4,
        "encoder_heads": 6,
        "decoder_layers": 4,
        "decoder_heads": 6,
        "source_positions": 1500,
        "target_positions": 448,
        "alignment_heads": tuple(map(tuple, original.generation["alignment_heads"])),
    }
    folder = save(demo_in_transformers(original), tmp_path / "huggingface", max_shard_size="30MB")
    (folder / "tokenizer.json").write_bytes(original.text["tokenizer.json"])
    again = open_checkpoint(folder)
    assert again.dimensions == original.dimensions
    assert set(again.tensors) == set(original.tensors)
    for name, tensor in original.tensors.items():
        assert tensor.dtype == again.tensors[name].dtype == np.float16
        np.testing.assert_array_equal(tensor, again.tensors[name])
    assert len(json.loads(original.text["tokenizer.json"])["model"]["vocab"]) > 50_000
    assert original.generation["alignment_heads"][0] == [1, 0]
