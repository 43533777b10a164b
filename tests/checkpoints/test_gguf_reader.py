import math
import re
import sys
from types import MappingProxyType

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from kit.errors import one_line
from kit.tiny_gguf import (
    EXPERTS,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    VOCAB,
    WIDTH,
    add_value,
    finish,
    packaged,
    permuted,
    sizes,
    tensors,
    tiny_llama,
    vocabulary,
    write,
)
from kvcast.checkpoints.gguf.file import read_gguf
from kvcast.checkpoints.source import fingerprint, locate, open_checkpoint
from kvcast.errors import KvcastError, UsageError
from kvcast.spec.position_encodings import Rotary
from kvcast.spec.stored_matrices import Encoding


def test_head_dim_and_kv_heads_follow_from_the_others_where_the_file_has_none(tmp_path):
    arrays = tensors()
    half = slice(0, HEADS * 8)
    for i in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v"):
            array = arrays[f"blk.{i}.{name}.weight"]
            arrays[f"blk.{i}.{name}.weight"] = array[half]
        arrays[f"blk.{i}.attn_output.weight"] = arrays[f"blk.{i}.attn_output.weight"][:, half]
    values = sizes(
        "qwen2",
        attention__key_length=None,
        attention__value_length=None,
        attention__head_count_kv=None,
        rope__freq_base=None,
    )
    path = write(tmp_path / "m.gguf", "qwen2", values | vocabulary(), arrays)
    dimensions = open_checkpoint(path).dimensions
    assert (dimensions.kv_heads, dimensions.head_dim) == (HEADS, WIDTH // HEADS)
    assert dimensions.rotary.base == 10_000.0


def test_a_mistral_has_its_window_in_every_layer(tmp_path):
    path = tiny_llama(tmp_path / "m.gguf", attention__sliding_window=7)
    assert open_checkpoint(path).dimensions.windows == (7, 7)


def test_a_quantised_mixtral_is_cut_between_experts(tmp_path):
    arrays = tensors(experts=EXPERTS)
    values = sizes("llama", expert_count=EXPERTS, expert_used_count=2) | vocabulary()
    path = write(tmp_path / "m.gguf", "llama", values, arrays, {"_exps.weight": "Q8_0"})
    checkpoint = open_checkpoint(path)
    got = checkpoint.tensors["decoder.layers.1.feed_forward.down"]
    want = arrays["blk.1.ffn_down_exps.weight"]
    assert np.abs(got - want).max() < np.abs(want).max() / 127
    for name in ("down", "gate_up"):
        name = f"decoder.layers.1.feed_forward.{name}"
        blocks, values = checkpoint.tensors.blocks_of(name), checkpoint.tensors[name]
        np.testing.assert_array_equal(blocks.dequantize(), values.reshape(-1, values.shape[-1]))


def gemma(path, layers=LAYERS, **more):
    """A tiny Gemma 3; layers beyond the first two repeat them."""
    arrays = tensors(head_norms=True, post_norms=True)
    for name, array in list(arrays.items()):
        if name.startswith("blk.0."):
            for i in range(LAYERS, layers):
                arrays[name.replace("blk.0.", f"blk.{i}.")] = array
    values = sizes(
        "gemma3", block_count=layers, attention__sliding_window=5, rope__freq_base=1e6, **more
    )
    return write(path, "gemma3", values | vocabulary(), arrays)


def test_every_sixth_layer_of_a_gemma3_sees_everything_or_what_its_pattern_says(tmp_path):
    path = gemma(tmp_path / "m.gguf", layers=7)
    assert open_checkpoint(path).dimensions.windows == (5, 5, 5, 5, 5, None, 5)
    path = gemma(tmp_path / "n.gguf", layers=4, attention__sliding_window_pattern=2)
    assert open_checkpoint(path).dimensions.windows == (5, None, 5, None)
    pattern = [False, True, True]
    path = gemma(tmp_path / "a.gguf", layers=3, attention__sliding_window_pattern=pattern)
    assert open_checkpoint(path).dimensions.windows == (None, 5, 5)


def test_the_gemma3_of_62_layers_scales_attention_by_its_width(tmp_path):
    path = gemma(tmp_path / "m.gguf", layers=62)
    assert open_checkpoint(path).dimensions.attention_scale == (WIDTH // HEADS) ** -0.5


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_transformers_reads_the_same_model(tmp_path, architecture):
    pytest.importorskip("accelerate")  # transformers wants it for GGUF files
    from transformers import AutoModelForCausalLM

    is_gemma = architecture == "gemma3"
    arrays = tensors(head_norms=is_gemma, post_norms=is_gemma)
    values = sizes(architecture, attention__sliding_window=5, rope__dimension_count=HEAD_DIM)
    values |= vocabulary() | {f"{architecture}.vocab_size": VOCAB}
    write(tmp_path / "m.gguf", architecture, values, arrays)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf").state_dict()
    ours = open_checkpoint(tmp_path).tensors
    split = (HEADS * HEAD_DIM, (HEADS + KV_HEADS) * HEAD_DIM)
    for i in range(LAYERS):
        attention = f"model.layers.{i}.self_attn"
        got = np.split(ours[f"decoder.layers.{i}.attention.qkv.weight"], split)
        for name, part in zip("qkv", got, strict=True):
            np.testing.assert_array_equal(part, theirs[f"{attention}.{name}_proj.weight"].numpy())
        norm = theirs[f"model.layers.{i}.input_layernorm.weight"].numpy()
        # transformers stores Gemma's minus one.
        np.testing.assert_allclose(
            ours[f"decoder.layers.{i}.attention_norm.weight"], norm + is_gemma, atol=1e-6
        )
    np.testing.assert_array_equal(
        ours["decoder.embedding.weight"], theirs["model.embed_tokens.weight"].numpy()
    )


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_values_are_those_that_the_gguf_library_reads(tmp_path, kind):
    arrays = {name: permuted(name, array) for name, array in tensors().items()}
    values = sizes("llama") | vocabulary()
    path = write(tmp_path / "m.gguf", "llama", values, arrays, {"ffn_down.weight": kind})
    got = open_checkpoint(path).tensors["decoder.layers.1.feed_forward.down.weight"]
    (tensor,) = (t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_down.weight")
    assert tensor.tensor_type.name == kind
    np.testing.assert_array_equal(got, dequantize(tensor.data, tensor.tensor_type))
    step = {"Q4": 2 / 15, "Q5": 2 / 31, "Q8": 1 / 127}.get(kind[:2], 2**-8)
    want = arrays["blk.1.ffn_down.weight"]
    assert np.abs(got - want).max() <= np.abs(want).max() * step
    assert got.dtype == (np.float16 if kind == "F16" else np.float32)


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_are_those_that_the_gguf_library_reads(tmp_path, kind):
    number = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[number]
    # Bytes below 60: no half-precision scale is infinite.
    raw = np.random.default_rng(0).integers(0, 60, (3, 2 * size), np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("t", raw, raw_dtype=number)
    finish(writer)
    stored = read_gguf(tmp_path / "m.gguf").tensors["t"].stored()
    assert stored.shape == (3, 2 * block)
    np.testing.assert_array_equal(stored.read(), dequantize(raw, number))
    assert np.isfinite(stored.read()).all()


def in_parts(folder, arrays):
    """Write a Llama in files of up to five tensors, as llama-gguf-split does."""
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=5)
    for name, value in (sizes("llama") | vocabulary()).items():
        add_value(writer, name, value)
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    finish(writer)
    return sorted(folder.glob("*.gguf"))


def test_a_model_in_several_files_is_opened_by_any_of_them_or_their_folder(tmp_path):
    arrays = {name: permuted(name, array) for name, array in tensors().items()}
    parts = in_parts(tmp_path, arrays)
    assert len(parts) > 2
    whole = open_checkpoint(
        write(tmp_path.parent / "whole.gguf", "llama", sizes("llama") | vocabulary(), arrays)
    )
    for source in (parts[0], parts[1], tmp_path):
        checkpoint = open_checkpoint(source)
        assert checkpoint.dimensions == whole.dimensions
        assert checkpoint.tensors.keys() == whole.tensors.keys()
        for name, array in whole.tensors.items():
            np.testing.assert_array_equal(checkpoint.tensors[name], array)
    before = fingerprint(parts[0])
    content = bytearray(parts[1].read_bytes())
    content[-1] ^= 1
    parts[1].write_bytes(content)
    assert fingerprint(parts[0]) != before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda parts: parts[1].unlink(), "is one of its parts"),
        (lambda parts: parts[1].write_bytes(parts[2].read_bytes()), "must all be there"),
        (lambda parts: parts[0].rename(parts[0].with_name("m.gguf")), "is one of its parts"),
    ],
)
def test_parts_that_are_not_of_one_model_are_one_line(tmp_path, change, message):
    parts = in_parts(tmp_path, tensors())
    change(parts)
    assert message in one_line(KvcastError, open_checkpoint, parts[2])
    if (tmp_path / "m.gguf").exists():
        line = one_line(KvcastError, open_checkpoint, tmp_path / "m.gguf")
        assert re.search(r"one of \d parts, which must all be there, named", line)


def test_the_packaged_model_is_read_as_the_gguf_library_reads_it():
    path = packaged()
    file, reader = read_gguf(path), gguf.GGUFReader(path)
    assert set(file.tensors) == {tensor.name for tensor in reader.tensors}
    for tensor in reader.tensors:
        if tensor.name.startswith(("blk.0.", "output_norm")):
            want = dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(file.tensors[tensor.name].stored().read(), want)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF."):
            assert list(np.ravel(file.values[name])) == list(np.ravel(field.contents()))
    checkpoint = open_checkpoint(path)
    assert (checkpoint.dimensions.layers, checkpoint.dimensions.width) == (30, 576)
    assert checkpoint.dimensions.rotary == Rotary(base=100_000.0)
    assert checkpoint.dimensions.tied


def llama3_divisors(factor, trained=8192, low=1.0, high=4.0, base=10_000.0):
    """The divisors that llama.cpp's conversion computes."""
    divisors = []
    for pair in range(0, HEAD_DIM, 2):
        wavelength = 2 * math.pi * base ** (pair / HEAD_DIM)
        if wavelength < trained / high:
            divisors.append(1.0)
        elif wavelength > trained / low:
            divisors.append(factor)
        else:
            smooth = (trained / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def with_divisors(path, divisors, more=MappingProxyType({})):
    base = {"rope__freq_base": 500_000.0}
    arrays = tensors() | {"rope_freqs.weight": divisors}
    return write(path, "llama", sizes("llama", **base | dict(more)) | vocabulary(), arrays)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3s_scaling_is_found_in_its_divisors(tmp_path, factor):
    divisors = llama3_divisors(factor, base=500_000.0)
    assert len(set(divisors.tolist())) > 2
    dimensions = open_checkpoint(with_divisors(tmp_path / "m.gguf", divisors)).dimensions
    assert dimensions.rotary == Rotary(
        base=500_000.0, scaling="llama3", factor=factor, trained_positions=8192
    )
    other = llama3_divisors(factor, trained=4096, base=500_000.0)
    rotary = open_checkpoint(with_divisors(tmp_path / "o.gguf", other)).dimensions.rotary
    assert rotary.divisors == rotary.long_divisors == tuple(other.tolist())
    plain = Rotary(base=500_000.0)
    expected = plain.frequencies(HEAD_DIM) / other
    np.testing.assert_allclose(rotary.frequencies(HEAD_DIM), expected, rtol=1e-6)
    cosines, sines = rotary.tables(8, HEAD_DIM)
    np.testing.assert_allclose(cosines**2 + sines**2, 1, atol=1e-6)
    ones = np.ones(HEAD_DIM // 2, np.float32)
    dimensions = open_checkpoint(with_divisors(tmp_path / "n.gguf", ones)).dimensions
    assert dimensions.rotary == Rotary(base=500_000.0)


@pytest.mark.parametrize(
    ("more", "factor"),
    [
        ({"rope__scaling__factor": 4.0}, 4.0),
        ({"rope__scale_linear": 4.0}, 4.0),
        ({"rope__scaling__factor": 2.0, "rope__scale_linear": 4.0}, 2.0),
        ({"rope__scaling__type": "linear", "rope__scale_linear": 4.0}, 4.0),
        ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, None),
        ({"rope__scaling__factor": 0.0}, None),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 0.0}, None),
    ],
)
def test_a_rotary_factor_is_linear_and_has_an_old_name_as_in_llama_cpp(tmp_path, more, factor):
    plain, linear = Rotary(base=10_000.0), {"scaling": "linear", "factor": factor}
    rotary = open_checkpoint(tiny_llama(tmp_path / "m.gguf", **more)).dimensions.rotary
    assert rotary == (plain if factor is None else Rotary(base=10_000.0, **linear))


def test_a_size_of_each_layer_may_be_one_for_all(tmp_path):
    names = ("attention__head_count", "attention__head_count_kv", "feed_forward_length")
    each = {name: [number] * LAYERS for name, number in zip(names, (4, 2, 64), strict=True)}
    listed = open_checkpoint(tiny_llama(tmp_path / "listed.gguf", **each)).dimensions
    assert listed == open_checkpoint(tiny_llama(tmp_path / "plain.gguf")).dimensions


def test_linear_and_yarn_scaling(tmp_path):
    linear = {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}
    path = tiny_llama(tmp_path / "linear.gguf", **linear)
    want = Rotary(base=10_000.0, scaling="linear", factor=4.0)
    assert open_checkpoint(path).dimensions.rotary == want
    path = gemma(tmp_path / "gemma.gguf", **linear)
    dimensions = open_checkpoint(path).dimensions
    assert dimensions.rotary == Rotary(base=1e6, scaling="linear", factor=4.0)
    assert dimensions.window_rotary == Rotary(base=10_000.0)
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    trained = {"rope__scaling__original_context_length": 32}
    path = tiny_llama(tmp_path / "yarn.gguf", **yarn, **trained)
    want = Rotary(
        base=10_000.0,
        scaling="yarn",
        factor=4.0,
        low_frequency=1.0,
        high_frequency=32.0,
        trained_positions=32,
    )
    assert open_checkpoint(path).dimensions.rotary == want
    path = tiny_llama(tmp_path / "default.gguf", **yarn)
    assert open_checkpoint(path).dimensions.rotary.trained_positions == 64
    path = tiny_llama(tmp_path / "factor.gguf", **yarn, rope__scaling__attn_factor=2.0)
    factor = open_checkpoint(path).dimensions.rotary.attention_factor
    assert factor == pytest.approx(2 * (0.1 * math.log(4) + 1))


def test_a_folder_with_one_file_is_that_file_and_with_two_is_none(tmp_path):
    path = tiny_llama(tmp_path / "A.GGUF")
    assert locate(str(path)) == path
    assert fingerprint(tmp_path) == fingerprint(path)
    assert open_checkpoint(tmp_path).dimensions == open_checkpoint(path).dimensions
    tiny_llama(tmp_path / "b.gguf")
    for function in (fingerprint, open_checkpoint):
        with pytest.raises(UsageError, match="holds 2 GGUF files: give one of them"):
            function(tmp_path)


def test_a_file_is_read_without_the_gguf_library(tmp_path, monkeypatch):
    arrays = {name: permuted(name, array) for name, array in tensors().items()}
    kinds = {name: "Q8_0" for name, array in arrays.items() if array.ndim == 2}
    path = write(tmp_path / "m.gguf", "llama", sizes("llama") | vocabulary(), arrays, kinds)
    monkeypatch.setitem(sys.modules, "gguf", None)
    checkpoint = open_checkpoint(path)
    name = "decoder.layers.0.feed_forward.down.weight"
    assert checkpoint.tensors.rows_of(name).kinds() == {Encoding.Q8_0}
