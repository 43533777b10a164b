import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints.folder_checks import assert_same_tensors, rewrite_weights
from kit.random_unilms import MODELS, random_unilm, save_unilm
from kvcast.checkpoints.source import open_checkpoint, read_dimensions
from kvcast.families.unilm import UnilmDimensions
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


def test_bfloat16_and_shards_read_like_float32_in_one_file(name, tmp_path):
    model = random_unilm(name).to(torch.bfloat16)
    folder = save_unilm(model, tmp_path / "model", max_shard_size="8KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    whole = save_unilm(model.float(), tmp_path / "whole")
    assert_same_tensors(open_checkpoint(folder).tensors, open_checkpoint(whole).tensors)


def test_without_a_prefix_a_model_reads_the_same(name, tmp_path):
    model = random_unilm(name)
    folder = save_unilm(model, tmp_path / "model")
    expected = open_checkpoint(folder)
    assert expected.family.name == "unilm"
    assert expected.source == f"Hugging Face folder {folder}"
    assert expected.dimensions.pooled == ("pooled" in name)
    whole = dict(expected.tensors)
    prefix = f"{model.config.model_type}."
    rewrite_weights(folder, lambda t: {n.removeprefix(prefix): v for n, v in t.items()})
    assert_same_tensors(open_checkpoint(folder).tensors, whole)


def saved_with(folder, **tensors):
    rewrite_weights(folder, lambda t: {**t, **{n: change(t) for n, change in tensors.items()}})
    return folder


def test_a_head_stored_beside_what_it_equals_is_read_once(bert):
    expected = dict(open_checkpoint(bert).tensors)
    copies = {
        "cls.predictions.decoder.weight": lambda t: t[
            "bert.embeddings.word_embeddings.weight"
        ].clone(),
        "cls.predictions.decoder.bias": lambda t: t["cls.predictions.bias"].clone(),
    }
    assert_same_tensors(open_checkpoint(saved_with(bert, **copies)).tensors, expected)


def test_the_heads_bias_may_have_its_other_name_alone(bert):
    expected = dict(open_checkpoint(bert).tensors)
    renamed = {"cls.predictions.bias": "cls.predictions.decoder.bias"}
    rewrite_weights(bert, lambda t: {renamed.get(n, n): v for n, v in t.items()})
    assert_same_tensors(open_checkpoint(bert).tensors, expected)


def test_old_names_of_norms_and_stored_position_ids_are_understood(bert):
    """The first published BERTs have them."""
    expected = dict(open_checkpoint(bert).tensors)
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
    expected = dict(open_checkpoint(roformer).tensors)
    rewrite_weights(roformer, lambda t: {n: v for n, v in t.items() if n != name})
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
