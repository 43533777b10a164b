"""Files that peers are fed: read back, they hold the weights that were written."""

from dataclasses import replace

import numpy as np
import pytest

from bench_models import TINY, tiny_checkpoint
from kvcast.bench.files.gguf import write_gguf
from kvcast.bench.files.hugging_face import is_common, model_type, write_hugging_face
from kvcast.bench.peers.kvcast import windowed
from kvcast.checkpoints.gguf_file import read_gguf
from kvcast.checkpoints.source import open_checkpoint
from kvcast.spec.rotary import Rotary

QWEN2 = replace(TINY, architecture="qwen2", qkv_bias=True)
QWEN3 = replace(TINY, architecture="qwen3", query_key_norm=True, tied=False)
MISTRAL = replace(TINY, architecture="mistral", windows=(7, 7))


@pytest.mark.parametrize("dimensions", [TINY, QWEN2, QWEN3, MISTRAL], ids=model_type)
def test_a_hugging_face_folder_holds_the_same_model(dimensions, tmp_path):
    checkpoint = tiny_checkpoint(dimensions)
    write_hugging_face(checkpoint, tmp_path / "model")
    found = open_checkpoint(tmp_path / "model")
    assert found.dimensions == dimensions
    assert found.tensors.keys() == checkpoint.tensors.keys()
    for name, tensor in checkpoint.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], tensor)


def test_transformers_computes_the_same_from_it(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    from kvcast.programs.decoder import DecoderPrograms
    from kvcast.runtimes.eager_decoder import EagerDecoderOnly

    checkpoint = tiny_checkpoint()
    write_hugging_face(checkpoint, tmp_path / "model")
    tokens = np.arange(2, 9)
    with torch.inference_mode():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model")(
            torch.from_numpy(tokens[None])
        )
    runtime = EagerDecoderOnly(
        DecoderPrograms.from_tensors(checkpoint.dimensions, checkpoint.tensors)
    )
    ours, _ = runtime.decode([tokens], runtime.new_cache(1, 8))
    np.testing.assert_allclose(ours[0, 0], theirs.logits[0, -1], atol=1e-3)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_gguf_file_is_as_near_as_its_blocks(kind, tmp_path):
    checkpoint = tiny_checkpoint()
    write_gguf(checkpoint, kind, tmp_path / "model.gguf")
    file = read_gguf(tmp_path / "model.gguf")
    assert file.values["general.architecture"] == "llama"
    assert file.values["llama.attention.head_count_kv"] == TINY.kv_heads
    matrices = [tensor for tensor in file.tensors.values() if len(tensor.shape) > 1]
    assert {tensor.type.name for tensor in matrices} == {kind}
    assert len(file.tensors) == 2 + TINY.layers * 9
    found = file.tensors["token_embd.weight"].stored().read()
    step = {"Q8_0": 0.05, "Q4_0": 0.6}[kind]
    np.testing.assert_allclose(found, checkpoint.tensors["decoder.embedding.weight"], atol=step)


def test_rows_of_queries_and_keys_rotate_neighbours_in_a_llama_gguf(tmp_path):
    checkpoint = tiny_checkpoint()
    name = "decoder.layers.0.attention.qkv.weight"
    rows = TINY.heads * TINY.head_dim + 2 * TINY.kv_heads * TINY.head_dim
    numbered = np.repeat(np.arange(rows, dtype=np.float32)[:, None], TINY.width, axis=1)
    checkpoint = replace(checkpoint, tensors={**checkpoint.tensors, name: numbered})
    write_gguf(checkpoint, "Q8_0", tmp_path / "model.gguf")
    tensors = read_gguf(tmp_path / "model.gguf").tensors

    def order(part):
        return tensors[f"blk.0.attn_{part}.weight"].stored().read()[:, 0].round().tolist()

    assert order("q")[:6] == [0, 8, 1, 9, 2, 10]
    assert order("q")[16:20] == [16, 24, 17, 25]
    assert order("k")[:4] == [64, 72, 65, 73]
    assert order("v")[:4] == [96, 97, 98, 99]


def test_models_that_the_names_do_not_describe_are_told_apart():
    assert all(map(is_common, (TINY, QWEN2, QWEN3, MISTRAL)))
    peculiar = (
        replace(TINY, experts=4, experts_per_token=2),
        replace(TINY, windows=(7, None)),
        replace(TINY, post_norms=True),
        replace(TINY, activation="gelu_tanh"),
        replace(TINY, rotary=Rotary(base=1e4, scaling="linear", factor=2.0)),
        replace(QWEN3, windows=(7, 7)),
    )
    assert not any(map(is_common, peculiar))


def test_the_windowed_variant_has_the_same_sizes_and_other_weights():
    checkpoint = tiny_checkpoint(QWEN2)
    ring = windowed(checkpoint, 5)
    assert ring.dimensions == replace(MISTRAL, windows=(5, 5))
    assert (ring.tensors["decoder.norm.weight"] == 1).all()
    embedding = ring.tensors["decoder.embedding.weight"]
    assert embedding.shape == (TINY.vocab_size, TINY.width)
    assert 0.015 < embedding.std() < 0.025
