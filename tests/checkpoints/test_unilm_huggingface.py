import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints.folder_checks import assert_same_tensors, rewrite_weights
from checkpoints.tiny_unilms import MODELS, random_unilm, save_unilm, tensors_by_our_names
from kvcast.checkpoints.source import fingerprint, open_checkpoint, read_dimensions
from kvcast.families.unilm import UnilmDimensions, tensor_shapes
from kvcast.spec.position_encodings import Rotary

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
BASE = {
    "segments": 2,
    "width": 768,
    "embedding_width": 768,
    "inner": 3072,
    "heads": 12,
    "layers": 12,
    "max_positions": 512,
}
PUBLISHED = {
    "roformer-chinese-sim-char-ft-base": UnilmDimensions(
        architecture="roformer", **BASE, vocab_size=12_000, rotary=Rotary(base=10_000.0)
    ),
    "bert-base-uncased": UnilmDimensions(
        architecture="bert", **BASE, vocab_size=30_522, rotary=None
    ),
}
TINY = {
    "vocab_size": 19,
    "segments": 2,
    "width": 24,
    "inner": 20,
    "heads": 2,
    "layers": 3,
    "max_positions": 16,
}
ROFORMER = {**TINY, "architecture": "roformer", "rotary": Rotary(base=10_000.0)}
BERT = {**TINY, "architecture": "bert", "rotary": None, "embedding_width": 24}
DIMENSIONS = {
    "roformer": UnilmDimensions(**ROFORMER, embedding_width=24),
    "roformer, narrow embedding": UnilmDimensions(
        **ROFORMER, embedding_width=10, activation="relu"
    ),
    "bert": UnilmDimensions(**BERT),
    "bert, pooled": UnilmDimensions(**BERT, pooled=True),
}


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


@pytest.fixture
def roformer(tmp_path):
    return save_unilm(random_unilm("roformer"), tmp_path / "roformer")


@pytest.fixture
def bert(tmp_path):
    return save_unilm(random_unilm("bert, pooled"), tmp_path / "bert")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_give_the_sizes_that_are_known(name):
    assert read_dimensions(CONFIGS / name) == PUBLISHED[name]


def test_every_tensor_and_dimension_is_what_transformers_saved(name, tmp_path):
    model = random_unilm(name)
    checkpoint = open_checkpoint(save_unilm(model, tmp_path / "model"))
    assert checkpoint.family.name == "unilm"
    assert checkpoint.source == f"Hugging Face folder {tmp_path / 'model'}"
    assert checkpoint.dimensions == DIMENSIONS[name]
    assert_same_tensors(checkpoint.tensors, tensors_by_our_names(model))
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    assert shapes == tensor_shapes(checkpoint.dimensions)


def test_bfloat16_and_shards_read_like_float32_in_one_file(name, tmp_path):
    model = random_unilm(name).to(torch.bfloat16)
    folder = save_unilm(model, tmp_path / "model", max_shard_size="8KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert_same_tensors(open_checkpoint(folder).tensors, tensors_by_our_names(model))


def test_without_a_prefix_a_model_reads_the_same(name, tmp_path):
    model = random_unilm(name)
    folder = save_unilm(model, tmp_path / "model")
    prefix = f"{model.config.model_type}."
    rewrite_weights(folder, lambda t: {n.removeprefix(prefix): v for n, v in t.items()})
    assert_same_tensors(open_checkpoint(folder).tensors, tensors_by_our_names(model))


def test_rotated_halves_give_the_products_of_rotated_neighbours(roformer):
    """Compares scores by transformers' own rotation with those by halves of the tensors read."""
    from transformers.models.roformer.modeling_roformer import RoFormerSelfAttention

    heads, size, positions = 2, 12, 16
    model = random_unilm("roformer")
    attention = model.roformer.encoder.layer[1].attention.self
    hidden_tx = torch.randn(positions, 24)
    angles = load_file(roformer / "model.safetensors")["roformer.encoder.embed_positions.weight"]
    with torch.no_grad():
        query, key = (
            part(hidden_tx).view(1, positions, heads, size).transpose(1, 2)
            for part in (attention.query, attention.key)
        )
        query, key = RoFormerSelfAttention.apply_rotary_position_embeddings(
            angles[None, None], query, key
        )
    expected_htt = (query @ key.transpose(2, 3))[0].numpy()

    checkpoint = open_checkpoint(roformer)
    weight = checkpoint.tensors["layers.1.attention.qkv.weight"]
    bias = checkpoint.tensors["layers.1.attention.qkv.bias"]
    cosines, sines = checkpoint.dimensions.rotary.tables(positions, size)

    def rotated(part):
        rows = slice(24 * part, 24 * (part + 1))
        plain = (hidden_tx.numpy() @ weight[rows].T + bias[rows]).reshape(positions, heads, size)
        first, second = np.split(plain.transpose(1, 0, 2), 2, axis=2)
        return np.concatenate(
            [first * cosines - second * sines, second * cosines + first * sines], axis=2
        )

    ours_htt = rotated(0) @ rotated(1).transpose(0, 2, 1)
    np.testing.assert_allclose(ours_htt, expected_htt, atol=1e-3)


def saved_with(folder, **tensors):
    rewrite_weights(folder, lambda t: {**t, **{n: change(t) for n, change in tensors.items()}})
    return folder


def test_a_head_stored_beside_what_it_equals_is_read_once(bert):
    expected = tensors_by_our_names(random_unilm("bert, pooled"))
    copies = {
        "cls.predictions.decoder.weight": lambda t: t[
            "bert.embeddings.word_embeddings.weight"
        ].clone(),
        "cls.predictions.decoder.bias": lambda t: t["cls.predictions.bias"].clone(),
    }
    assert_same_tensors(open_checkpoint(saved_with(bert, **copies)).tensors, expected)


def test_the_heads_bias_may_have_its_other_name_alone(bert):
    expected = tensors_by_our_names(random_unilm("bert, pooled"))
    renamed = {"cls.predictions.bias": "cls.predictions.decoder.bias"}
    rewrite_weights(bert, lambda t: {renamed.get(n, n): v for n, v in t.items()})
    assert_same_tensors(open_checkpoint(bert).tensors, expected)


def test_old_names_of_norms_and_stored_position_ids_are_understood(bert):
    """The first published BERTs have them."""
    expected = tensors_by_our_names(random_unilm("bert, pooled"))
    path = bert / "model.safetensors"
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(path).items()
    }
    assert sum(name.endswith("LayerNorm.gamma") for name in tensors) == 8
    save_file({**tensors, "bert.embeddings.position_ids": torch.arange(16)[None]}, path)
    assert_same_tensors(open_checkpoint(bert).tensors, expected)


def test_without_its_sinusoids_a_roformer_reads_the_same(roformer):
    name = "roformer.encoder.embed_positions.weight"
    rewrite_weights(roformer, lambda t: {n: v for n, v in t.items() if n != name})
    expected = tensors_by_our_names(random_unilm("roformer"))
    assert_same_tensors(open_checkpoint(roformer).tensors, expected)


@pytest.mark.parametrize("kind", ["roformer", "bert"])
def test_what_a_configuration_leaves_out_is_transformers_default(tmp_path, kind):
    from transformers import AutoConfig

    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    dimensions, config = read_dimensions(tmp_path), AutoConfig.for_model(kind)
    assert dimensions == UnilmDimensions(
        architecture=kind,
        vocab_size=config.vocab_size,
        segments=config.type_vocab_size,
        width=config.hidden_size,
        embedding_width=config.hidden_size,
        inner=config.intermediate_size,
        heads=config.num_attention_heads,
        layers=config.num_hidden_layers,
        max_positions=config.max_position_embeddings,
        rotary=Rotary(base=10_000.0) if kind == "roformer" else None,
        activation=config.hidden_act,
        norm_eps=config.layer_norm_eps,
    )


def test_the_fingerprint_follows_every_file_that_matters(bert):
    seen = {fingerprint(bert)}
    for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
        (bert / name).write_bytes((bert / name).read_bytes() + b"\n")
        seen.add(fingerprint(bert))
    assert len(seen) == 4
