"""GGUF files for llama.cpp: read back, they hold the weights that were written."""

from dataclasses import replace

import numpy as np
import pytest

from bench_models import TINY, tiny_checkpoint
from kvcast.bench.peers.llamacpp import write_gguf
from kvcast.checkpoints.gguf_file import read_gguf


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
