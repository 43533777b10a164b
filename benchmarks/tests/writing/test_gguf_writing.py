"""GGUF files that are written: read back, they hold the same model, as near as their blocks."""

from dataclasses import replace

import numpy as np
import pytest

from checkpoints.folder_checks import assert_same_tensors
from kit.tiny_gguf import tiny_llama
from kvcast.checkpoints.gguf.file import read_gguf
from kvcast.checkpoints.gguf.reader import read_model
from kvcast_bench.writing.gguf import write_gguf
from tiny_models import TINY, tiny_checkpoint

QWEN2 = replace(TINY, architecture="qwen2", qkv_bias=True)
QWEN3 = replace(TINY, architecture="qwen3", query_key_norm=True, tied=False)


@pytest.mark.parametrize("dimensions", [TINY, QWEN2, QWEN3], ids=lambda model: model.architecture)
def test_a_model_read_back_is_the_same(dimensions, tmp_path):
    checkpoint = tiny_checkpoint(dimensions)
    write_gguf(checkpoint, "F32", tmp_path / "model.gguf")
    read_back, tensors = read_model(read_gguf(tmp_path / "model.gguf"), "it")
    # The file's values are of single precision.
    assert read_back.norm_eps == pytest.approx(dimensions.norm_eps)
    assert replace(read_back, norm_eps=dimensions.norm_eps) == dimensions
    assert_same_tensors(tensors, checkpoint.tensors)


@pytest.mark.parametrize(("kind", "step"), [("Q8_0", 0.05), ("Q4_0", 0.6)])
def test_matrices_are_as_near_as_their_blocks(kind, step, tmp_path):
    checkpoint = tiny_checkpoint()
    write_gguf(checkpoint, kind, tmp_path / "model.gguf")
    file = read_gguf(tmp_path / "model.gguf")
    matrices = [tensor for tensor in file.tensors.values() if len(tensor.shape) > 1]
    assert {tensor.type.name for tensor in matrices} == {kind}
    assert len(file.tensors) == 2 + TINY.layers * 9
    _, tensors = read_model(file, "it")
    for name, tensor in checkpoint.tensors.items():
        np.testing.assert_allclose(tensors[name], tensor, atol=step if tensor.ndim > 1 else 0)


def test_rows_of_queries_and_keys_rotate_neighbours_in_a_llama(tmp_path):
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


def test_a_tokenizer_is_that_of_another_file(tmp_path):
    source = read_gguf(tiny_llama(tmp_path / "source.gguf")).values
    text = {name: value for name, value in source.items() if name.startswith("tokenizer.")}
    write_gguf(tiny_checkpoint(), "F32", tmp_path / "model.gguf", text)
    written = read_gguf(tmp_path / "model.gguf").values
    assert len(text) > 4
    for name, value in text.items():
        assert np.asarray(written[name]).tolist() == np.asarray(value).tolist()
