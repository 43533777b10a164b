import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints.folder_checks import assert_same_tensors
from checkpoints.tiny_decoders import random_decoder, save_decoder
from checkpoints.tiny_whisper import edit_json
from kit.errors import one_line
from kvcast.checkpoints.decoder.mistral import READER
from kvcast.checkpoints.source import open_checkpoint
from kvcast.checkpoints.tensor_names import halves_from_pairs
from kvcast.errors import InputMissingError, KvcastError
from kvcast.spec.position_encodings import Rotary

PARAMS = {
    "dim": 24,
    "n_layers": 4,
    "head_dim": 8,
    "hidden_dim": 20,
    "n_heads": 4,
    "n_kv_heads": 2,
    "norm_eps": 1e-5,
    "vocab_size": 19,
}
NAMES = {
    "model.embed_tokens.": "tok_embeddings.",
    "model.norm.": "norm.",
    "lm_head.": "output.",
    "model.layers.": "layers.",
    "input_layernorm.": "attention_norm.",
    "post_attention_layernorm.": "ffn_norm.",
    "self_attn.q_proj.": "attention.wq.",
    "self_attn.k_proj.": "attention.wk.",
    "self_attn.v_proj.": "attention.wv.",
    "self_attn.o_proj.": "attention.wo.",
    "mlp.gate_proj.": "feed_forward.w1.",
    "mlp.down_proj.": "feed_forward.w2.",
    "mlp.up_proj.": "feed_forward.w3.",
    "mlp.gate.": "feed_forward.gate.",
}


def pairs_from_halves(weight):
    """Row p of a head's first half and row p of its second become neighbours."""
    heads = weight.reshape(-1, 8, weight.shape[1])
    return torch.stack([heads[:, :4], heads[:, 4:]], dim=2).reshape(weight.shape)


def mistral_tensors(model):
    tensors = {}
    for name, tensor in model.state_dict().items():
        for theirs, own in NAMES.items():
            name = name.replace(theirs, own)
        if name.endswith(("wq.weight", "wk.weight")):
            tensor = pairs_from_halves(tensor)
        if name.endswith("experts.gate_up_proj"):
            stem = name.replace("mlp.experts.gate_up_proj", "feed_forward.experts")
            for e, (gate, up) in enumerate(expert.chunk(2) for expert in tensor):
                tensors[f"{stem}.{e}.w1.weight"] = gate.contiguous()
                tensors[f"{stem}.{e}.w3.weight"] = up.contiguous()
        elif name.endswith("experts.down_proj"):
            stem = name.replace("mlp.experts.down_proj", "feed_forward.experts")
            for e, down in enumerate(tensor):
                tensors[f"{stem}.{e}.w2.weight"] = down.contiguous()
        else:
            tensors[name] = tensor.contiguous()
    return tensors


@pytest.fixture(scope="module")
def model():
    return random_decoder("mistral")


@pytest.fixture
def folder(model, tmp_path):
    return write(model, tmp_path)


def write(model, folder, **params):
    save_file(mistral_tensors(model), folder / "consolidated.safetensors")
    (folder / "params.json").write_text(json.dumps({**PARAMS, **params}))
    (folder / "tekken.json").write_text("{}")
    return folder


def in_other_layout(model):
    with TemporaryDirectory() as folder:  # its files stay mapped
        return open_checkpoint(save_decoder(model, Path(folder)))


def read(folder):
    assert READER.detect(folder)
    return READER.read(folder)


def test_every_tensor_is_the_one_of_the_same_model_in_the_other_layout(model, folder):
    checkpoint, other = read(folder), in_other_layout(model)
    assert_same_tensors(checkpoint.tensors, other.tensors)
    assert checkpoint.dimensions == replace(
        other.dimensions,
        windows=(None,) * 4,
        max_positions=128_000,
        rotary=Rotary(base=1_000_000.0),
        norm_eps=1e-5,
    )


def test_experts_are_stacked(tmp_path):
    model = random_decoder("mixtral")
    write(model, tmp_path, moe={"num_experts": 3, "num_experts_per_tok": 2})
    checkpoint = read(tmp_path)
    assert_same_tensors(checkpoint.tensors, in_other_layout(model).tensors)
    dimensions = checkpoint.dimensions
    assert dimensions.architecture == "mixtral"
    assert (dimensions.experts, dimensions.experts_per_token) == (3, 2)


def test_rotated_halves_of_the_reordered_rows_give_the_products_of_rotated_neighbours():
    """Neighbours are rotated as complex numbers, as in mistral-inference's rope.py."""
    random = np.random.default_rng(0)
    query, key = random.normal(size=(2, 16, 24))
    hidden = random.normal(size=(6, 24))
    angles = np.arange(6)[:, None] * Rotary(base=100.0).frequencies(8)

    def neighbours(weight):
        heads = (hidden @ weight.T).reshape(6, 2, 4, 2)
        turned = (heads[..., 0] + 1j * heads[..., 1]) * np.exp(1j * angles)[:, None]
        return np.stack([turned.real, turned.imag], axis=-1).reshape(6, 2, 8)

    def halves(weight):
        first, second = (hidden @ halves_from_pairs(weight, 8).T).reshape(6, 2, 2, 4).swapaxes(0, 2)
        cos, sin = np.cos(angles), np.sin(angles)
        turned = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
        return turned.swapaxes(0, 1)

    def scores(rotate):
        return np.einsum("qhd,khd->hqk", rotate(query), rotate(key))

    np.testing.assert_allclose(scores(halves), scores(neighbours), atol=1e-9)


@pytest.mark.parametrize("index", [True, False])
def test_several_files_read_like_one_with_and_without_an_index(model, folder, index):
    tensors = load_file(folder / "consolidated.safetensors")
    (folder / "consolidated.safetensors").unlink()
    names = sorted(tensors)
    parts = {f"consolidated-{i + 1:05}-of-00003.safetensors": names[i::3] for i in range(3)}
    for file, some in parts.items():
        save_file({name: tensors[name] for name in some}, folder / file)
    if index:
        weight_map = {name: file for file, some in parts.items() for name in some}
        path = folder / "consolidated.safetensors.index.json"
        path.write_text(json.dumps({"weight_map": weight_map}))
    assert_same_tensors(read(folder).tensors, in_other_layout(model).tensors)
    (folder / "consolidated-00002-of-00003.safetensors").unlink()
    kind, words = (
        (InputMissingError, "no consolidated-00002") if index else (KvcastError, "has no tensor")
    )
    assert words in one_line(kind, open_checkpoint, folder)


@pytest.mark.parametrize(
    ("params", "windows", "base"),
    [
        ({}, (None,) * 4, 1_000_000.0),
        ({"sliding_window": 4096}, (4096,) * 4, 10_000.0),
        ({"sliding_window": None}, (None,) * 4, 1_000_000.0),
        ({"sliding_window": [None, 5]}, (None, 5, None, 5), 10_000.0),
        ({"sliding_window": 5, "rope_theta": 7.0}, (5,) * 4, 7.0),
    ],
)
def test_windows_and_the_base_that_goes_with_them(folder, params, windows, base):
    (folder / "params.json").write_text(json.dumps({**PARAMS, **params}))
    dimensions = read(folder).dimensions
    assert dimensions.windows == windows
    assert dimensions.rotary == Rotary(base=base)


@pytest.mark.parametrize(("scaled", "attention_factor"), [(True, None), (False, 1.0)])
def test_yarn_is_read_by_its_names_here(folder, scaled, attention_factor):
    yarn = {
        "original_max_position_embeddings": 16,
        "factor": 4,
        "alpha": 2,
        "beta": 8,
        "apply_scale": scaled,
    }
    edit_json(folder / "params.json", yarn=yarn, max_position_embeddings=64)
    dimensions = read(folder).dimensions
    assert dimensions.max_positions == 64
    assert dimensions.rotary == Rotary(
        base=1_000_000.0,
        scaling="yarn",
        factor=4.0,
        low_frequency=2.0,
        high_frequency=8.0,
        trained_positions=16,
        attention_factor=attention_factor,
    )


def test_a_tied_head_and_an_image_tower_are_left_out(model, folder):
    tensors = load_file(folder / "consolidated.safetensors")
    del tensors["output.weight"]
    tensors["vision_encoder.conv.weight"] = torch.ones(3)
    save_file(tensors, folder / "consolidated.safetensors")
    edit_json(folder / "params.json", tied_embeddings=True)
    checkpoint = read(folder)
    assert checkpoint.dimensions.tied
    expected = dict(in_other_layout(model).tensors)
    del expected["decoder.head.weight"]
    assert_same_tensors(checkpoint.tensors, expected)


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (("tekken.json", "tokenizer.model.v3"), "tekken.json"),
        (("tokenizer.model", "tokenizer.model.v3"), "tokenizer.model.v3"),
        (("tokenizer.model.v3", "tokenizer.model.v11"), "tokenizer.model.v11"),
        (("tokenizer.model",), "tokenizer.model"),
        (("tokenizer.json", "tokenizer.model.v1"), "tokenizer.model.v1"),
    ],
)
def test_the_tokenizers_file_goes_along_under_its_own_name(folder, files, chosen):
    (folder / "tekken.json").unlink()
    for file in files:
        (folder / file).write_text(file)
    text = read(folder).text
    assert set(text) == {chosen, "text.json"}
    assert text[chosen] == chosen.encode()
    assert json.loads(text["text.json"]) == {"end_tokens": [], "bos_token": "", "eos_token": ""}


def test_the_other_layout_comes_first_where_both_are(folder):
    assert READER.detect(folder)
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"")
    assert not READER.detect(folder)


@pytest.mark.parametrize("missing", ["params.json", "consolidated.safetensors"])
def test_half_a_model_is_not_taken_for_one(folder, missing):
    (folder / missing).unlink()
    assert not READER.detect(folder)
