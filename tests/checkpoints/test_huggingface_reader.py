import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open

from checkpoints.folder_checks import assert_same_tensors, rewrite_weights, without
from checkpoints.tiny_whisper import edit_json, random_model, save
from kvcast.checkpoints.source import fingerprint, open_checkpoint
from kvcast.errors import KvcastError


@pytest.fixture(scope="module")
def model():
    return random_model()


@pytest.fixture
def folder(model, tmp_path):
    return save(model, tmp_path / "model")


def test_dimensions_and_generation_come_from_the_configuration_files(folder):
    edit_json(
        folder / "generation_config.json",
        begin_suppress_tokens=[7, 8],
        alignment_heads=[[0, 1], [2, 3]],
        lang_to_id={"<|en|>": 9, "<|de|>": 10},
    )
    checkpoint = open_checkpoint(folder)
    d = checkpoint.dimensions
    assert (d.n_mels, d.vocab_size, d.d_model) == (5, 13, 8)
    assert (d.encoder_layers, d.encoder_heads, d.source_positions) == (2, 2, 6)
    assert (d.decoder_layers, d.decoder_heads, d.target_positions) == (3, 4, 7)
    assert checkpoint.generation == {
        "suppress_tokens": [4, 5],
        "begin_suppress_tokens": [7, 8],
        "language_tokens": [9, 10],
        "alignment_heads": [[0, 1], [2, 3]],
    }
    assert checkpoint.text["tokenizer.json"] == b"{}"
    assert checkpoint.family.name == "whisper"


def test_a_sharded_checkpoint_reads_like_a_single_file(model, folder, tmp_path):
    sharded = save(model, tmp_path / "sharded", max_shard_size="10KB")
    assert not (sharded / "model.safetensors").exists()
    assert len(list(sharded.glob("model-*.safetensors"))) > 2
    assert_same_tensors(open_checkpoint(sharded).tensors, open_checkpoint(folder).tensors)


def test_half_precision_stays_and_bfloat16_widens_exactly(model, tmp_path):
    for dtype, stays in ((torch.float16, np.float16), (torch.bfloat16, np.float32)):
        cast = random_model().to(dtype)
        tensors = open_checkpoint(save(cast, tmp_path / stays.__name__)).tensors
        assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(stays)}
        embedding = cast.model.decoder.embed_tokens.weight.detach().float().numpy()
        np.testing.assert_array_equal(tensors["decoder.embedding.weight"], embedding)


def test_names_without_the_prefix_of_the_generation_class_are_understood(model, folder, tmp_path):
    bare = save(model.model, tmp_path / "bare")
    with safe_open(bare / "model.safetensors", framework="numpy") as file:
        assert not any(name.startswith("model.") for name in file.keys())  # noqa: SIM118
    assert_same_tensors(open_checkpoint(bare).tensors, open_checkpoint(folder).tensors)


def test_missing_encoder_positions_are_the_sinusoids_of_openai(tmp_path):
    from whisper.model import sinusoids

    folder = save(random_model(max_source_positions=1500), tmp_path / "model")
    rewrite_weights(folder, without("model.encoder.embed_positions.weight"))
    positions = open_checkpoint(folder).tensors["encoder.positions"]
    np.testing.assert_allclose(positions, sinusoids(1500, 8).numpy(), atol=1e-4)


def test_a_written_out_head_may_be_the_embedding(folder):
    embedding = "model.decoder.embed_tokens.weight"
    rewrite_weights(folder, lambda t: {**t, "proj_out.weight": t[embedding].clone()})
    assert "decoder.embedding.weight" in open_checkpoint(folder).tensors


def test_truncated_and_altered_weights_never_give_anything_but_one_line(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    random = np.random.default_rng(0)
    cuts = [0, 1, 7, 8, 9, header - 1, header, header + 1, len(whole) - 1]
    damaged = [whole[:cut] for cut in cuts]
    for position in [*range(16), *random.integers(0, header, 150)]:
        altered = bytearray(whole)
        altered[position] ^= 1 << int(random.integers(8))
        damaged.append(bytes(altered))
    messages = []
    for contents in damaged:
        path.write_bytes(contents)
        try:
            dict(open_checkpoint(folder).tensors)
        except KvcastError as error:
            messages.append(str(error))
    assert len(messages) >= len(cuts)
    assert not any("\n" in message for message in messages)


def test_the_fingerprint_needs_no_valid_weights(folder):
    (folder / "model.safetensors").write_bytes(b"no weights")
    assert len(fingerprint(folder)) == 64


def test_reading_imports_no_torch(folder):
    script = (
        "import sys; from pathlib import Path\n"
        "from kvcast.checkpoints.source import open_checkpoint\n"
        f"dict(open_checkpoint(Path({str(folder)!r})).tensors)\n"
        "assert 'torch' not in sys.modules and 'huggingface_hub' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
