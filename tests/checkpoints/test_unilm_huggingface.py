import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints.folder_checks import assert_same_tensors, one_line, rewrite_weights
from checkpoints.tiny_unilms import MODELS, random_unilm, save_unilm, tensors_by_our_names
from checkpoints.tiny_whisper import edit_json
from kvcast.checkpoints.source import fingerprint, open_checkpoint, read_dimensions
from kvcast.families.unilm import UnilmDimensions, tensor_shapes
from kvcast.spec.rotary import Rotary

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
    assert checkpoint.family == "unilm"
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
    assert open_checkpoint(bert).content_hash == fingerprint(bert)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hidden_size": "24"}, "hidden_size must be a whole number"),
        ({"num_attention_heads": 5}, "width 24 is not a multiple of 5 heads"),
        ({"num_attention_heads": 8}, "rotary positions need an even head_dim, not 3"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers must be a whole number from 1 to 10000"),
        ({"type_vocab_size": 1}, "a UniLM has 2 segments, source and target: this model has 1"),
        ({"max_position_embeddings": 10**9}, "max_positions 1000000000 is more than any model has"),
        ({"layer_norm_eps": -1}, "layer_norm_eps must be a number above 0"),
        ({"hidden_act": "swish"}, "hidden_act 'swish' is not supported (supported: gelu"),
        ({"rotary_value": True}, "rotary_value is not supported: only queries and keys"),
        ({"rotary_value": "no"}, "rotary_value must be true or false"),
        ({"embedding_size": 0}, "embedding_size must be a whole number from 1"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type must be 'absolute'"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_one_line(roformer, fields, words):
    edit_json(roformer / "config.json", **fields)
    message = one_line(roformer)
    assert words in message
    assert "config.json" in message


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vocab_size": 20}, "word_embeddings.weight has shape [19, 24]"),
        ({"embedding_size": 12}, "word_embeddings.weight has shape [19, 24]"),
        ({"type_vocab_size": 3}, "token_type_embeddings.weight has shape [2, 24]"),
        ({"intermediate_size": 21}, "intermediate.dense.weight has shape [20, 24]"),
        ({"max_position_embeddings": 8}, "embed_positions.weight has shape [16, 12]"),
        ({"num_attention_heads": 3}, "embed_positions.weight has shape [16, 12]"),
        ({"num_hidden_layers": 10_000}, "no tensor encoder.layer.3."),
        ({"num_hidden_layers": 2}, "has no place in a roformer model of 2 layers"),
    ],
)
def test_weights_that_the_configuration_does_not_fit_are_one_line(roformer, fields, words):
    edit_json(roformer / "config.json", **fields)
    assert words in one_line(roformer)


def test_learned_positions_of_another_length_are_one_line(bert):
    edit_json(bert / "config.json", max_position_embeddings=17)
    assert "position_embeddings.weight has shape [16, 24]" in one_line(bert)


@pytest.mark.parametrize(("name", "kind"), [("roformer", "RoFormer"), ("bert, pooled", "Bert")])
def test_a_model_without_its_masked_lm_head_says_what_to_save(tmp_path, name, kind):
    folder = save_unilm(random_unilm(name).base_model, tmp_path / "model")
    message = one_line(folder)
    assert "has no masked-LM head (cls.predictions.*)" in message
    assert f"save the model from {kind}ForMaskedLM" in message


@pytest.mark.parametrize("name", ["roformer", "bert, pooled"])
def test_a_missing_tensor_is_named_whichever_it_is(tmp_path, name):
    model = random_unilm(name, num_hidden_layers=1)
    prefix = f"{model.config.model_type}."
    folder = save_unilm(model, tmp_path / "model")
    whole = load_file(folder / "model.safetensors")
    optional = ("embed_positions.weight", "pooler.dense.weight")
    for missing in whole:
        if missing.endswith(optional) or "seq_relationship" in missing:
            continue
        rewrite_weights(folder, lambda _, m=missing: {n: t for n, t in whole.items() if n != m})
        assert f"has no tensor {missing.removeprefix(prefix)}" in one_line(folder)


def test_half_a_pooler_is_one_line(bert):
    rewrite_weights(bert, lambda t: {n: v for n, v in t.items() if n != "bert.pooler.dense.weight"})
    assert "pooler.dense.bias has no place in a bert model" in one_line(bert)


def test_a_foreign_tensor_is_named_rather_than_left_out(roformer):
    saved_with(roformer, **{"roformer.encoder.layer.0.crossattention.x": lambda _: torch.ones(2)})
    assert "encoder.layer.0.crossattention.x has no place in a roformer" in one_line(roformer)


@pytest.mark.parametrize(
    ("name", "original"),
    [
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ],
)
def test_a_head_of_its_own_is_one_line(bert, name, original):
    saved_with(bert, **{name: lambda t: t[original] + 1})
    message = one_line(bert)
    assert f"{name} differs from {original.removeprefix('bert.')}: not a UniLM" in message


def test_numbers_that_are_not_position_ids_must_be_weights(bert):
    saved_with(bert, **{"bert.embeddings.other_ids": lambda _: torch.arange(4)})
    assert "other_ids is I64" in one_line(bert)
