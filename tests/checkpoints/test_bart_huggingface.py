"""Configurations and files of BART and its relatives: what is read, and what is refused."""

import json
import re
from pathlib import Path

import pytest
import torch

from checkpoints.folder_checks import rewrite_weights
from checkpoints.tiny_whisper import edit_json
from kit.random_barts import END, KINDS, random_bart, save_bart
from kvcast.checkpoints.source import open_checkpoint
from kvcast.checkpoints.text2text.bart import bart_dimensions
from kvcast.checkpoints.text2text.t5gemma import t5gemma2_dimensions, t5gemma_dimensions
from kvcast.errors import KvcastError

TYPES = sorted({model_type for model_type, _ in KINDS.values()} - {"t5gemma", "t5gemma2"})
LIES = [
    {"d_model": -1},
    {"d_model": 1000001},
    {"encoder_layers": 10**9},
    {"decoder_ffn_dim": 0},
    {"vocab_size": "many"},
    {"activation_function": "tanh"},
    {"max_position_embeddings": 2**40},
    {"decoder_start_token_id": 10**9},
    {"scale_embedding": 3},
    {"share_encoder_decoder_embeddings": "no"},
]


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("lie", LIES, ids=str)
def test_a_configuration_that_lies_is_one_line(model_type: str, lie: dict):
    with pytest.raises(KvcastError, match=r"config\.json: ") as caught:
        bart_dimensions({"model_type": model_type, **lie}, "config.json")
    assert "\n" not in str(caught.value)


GEMMA_LIES = [
    {"hidden_size": -1},
    {"num_hidden_layers": 10**9},
    {"num_key_value_heads": 3},
    {"head_dim": 7},
    {"max_position_embeddings": 2**40},
    {"layer_types": ["full_attention"]},
    {"layer_types": ["conv"] * 26},
    {"sliding_window": 0},
    {"query_pre_attn_scalar": 0},
    {"attn_logit_softcapping": -1.0},
    {"attention_bias": "yes"},
    {"hidden_activation": "tanh"},
    {"rope_parameters": {"rope_type": "odd"}},
    {"rms_norm_eps": 0},
    {"vocab_size": 2**40},
]


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("lie", GEMMA_LIES, ids=str)
def test_a_stack_that_lies_is_one_line(stack: str, lie: dict):
    with pytest.raises(KvcastError, match=r"config\.json: ") as caught:
        t5gemma_dimensions({"model_type": "t5gemma", stack: lie}, "config.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "lie",
    [
        {"decoder_start_token_id": 10**6},
        {"encoder": 3},
        {"decoder": {"final_logit_softcapping": 0}},
    ],
    ids=str,
)
def test_a_pair_of_stacks_that_lies_is_one_line(lie: dict):
    with pytest.raises(KvcastError, match=r"config\.json: "):
        t5gemma_dimensions({"model_type": "t5gemma", **lie}, "config.json")


@pytest.mark.parametrize(
    "lie",
    [
        {"encoder": {"text_config": []}},
        {"encoder": {"eoi_token_index": -1}},
        {"encoder": {"text_config": {"hidden_size": 2048}}},
        {"encoder": {"text_config": {"vocab_size": 300}}},
        {"encoder": {"text_config": {"sliding_window_pattern": 0}}},
        {"decoder": {"rope_parameters": {"sliding_attention": {"rope_theta": 0}}}},
        {"decoder": {"layer_types": ["full_attention"]}},
        {"decoder_start_token_id": 10**6},
    ],
    ids=str,
)
def test_a_t5gemma2_that_lies_is_one_line(lie: dict):
    with pytest.raises(KvcastError, match=r"config\.json: ") as caught:
        t5gemma2_dimensions({"model_type": "t5gemma2", **lie}, "config.json")
    assert "\n" not in str(caught.value)


def test_a_t5gemma2s_tensors_may_have_other_prefixes_and_copies(tmp_path: Path):
    folder = save_bart(random_bart("t5gemma2"), tmp_path / "model")
    expected = open_checkpoint(folder)
    assert expected.dimensions.one_embedding
    assert not expected.tensors.unused
    layers = re.compile(r"^encoder\.(?=layers|norm|embed)")

    def change(tensors):
        named = {
            layers.sub("encoder.text_model.", name.removeprefix("model.")): tensor
            for name, tensor in tensors.items()
        }
        own = "encoder.text_model.embed_tokens.weight"
        copies = ("decoder.embed_tokens.weight", "lm_head.out_proj.weight")
        end = named[own.replace("weight", "eoi_embedding")].clone()
        return {**named, "decoder.embed_tokens.eoi_embedding": end} | {
            name: named[own].clone() for name in copies
        }

    rewrite_weights(folder, change)
    again = open_checkpoint(folder)
    assert again.dimensions == expected.dimensions
    assert again.tensors.keys() == expected.tensors.keys()
    assert all((again.tensors[name] == expected.tensors[name]).all() for name in expected.tensors)
    other = "decoder.embed_tokens.eoi_embedding"
    rewrite_weights(folder, lambda tensors: tensors | {other: tensors[other] + 1})
    apart = open_checkpoint(folder)
    assert not apart.dimensions.one_embedding
    difference = apart.tensors["decoder.eoi_embedding"] - apart.tensors["encoder.eoi_embedding"]
    assert (abs(difference - 1) < 1e-5).all()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_bart(random_bart("bart"), tmp_path / "model")


def test_copies_and_a_prefix_of_names_change_nothing(folder: Path):
    expected = open_checkpoint(folder)
    bare = "shared.weight"

    def change(tensors):
        named = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
        copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
        return named | {name: named[bare].clone() for name in copies}

    rewrite_weights(folder, change)
    again = open_checkpoint(folder)
    assert again.dimensions == expected.dimensions
    assert all((again.tensors[name] == expected.tensors[name]).all() for name in expected.tensors)
    rewrite_weights(
        folder, lambda tensors: tensors | {"decoder.embed_tokens.weight": tensors[bare] + 1}
    )
    with pytest.raises(KvcastError, match="differs from shared"):
        open_checkpoint(folder)


def test_a_bias_of_zeros_is_none_and_one_of_another_shape_is_refused(folder: Path):
    assert open_checkpoint(folder).dimensions.head_bias
    rewrite_weights(folder, lambda t: t | {"final_logits_bias": torch.zeros(1, 96)})
    assert not open_checkpoint(folder).dimensions.head_bias
    rewrite_weights(folder, lambda t: t | {"final_logits_bias": torch.zeros(1, 95)})
    with pytest.raises(KvcastError, match=r"final_logits_bias has shape \[1, 95\]"):
        open_checkpoint(folder)


def recommended(folder: Path) -> dict:
    return json.loads(open_checkpoint(folder).text["text.json"])["generation"]


def test_older_configurations_recommend_what_newer_files_of_their_own_do(folder: Path):
    said = {"num_beams": 4, "max_length": 20, "min_length": 5, "bad_words_ids": [[3]]}
    expected = {"beam": 4, "max_new_tokens": 19, "min_new_tokens": 4, "suppress_tokens": [3]}
    expected["forced_eos_token_id"] = 2  # transformers' own default
    edit_json(folder / "config.json", **said)
    assert recommended(folder) == {}
    (folder / "generation_config.json").unlink()
    assert recommended(folder) == expected
    edit_json(folder / "config.json", do_sample=True, forced_eos_token_id=END)
    del expected["beam"]
    assert recommended(folder) == expected | {"forced_eos_token_id": END}


@pytest.mark.parametrize(
    "said",
    [
        {"bad_words_ids": [[1, "2"]]},
        {"bad_words_ids": [[]]},
        {"suppress_tokens": [-1]},
        {"bad_words_ids": 3},
        {"num_beams": -2},
        {"max_length": "long"},
        {"renormalize_logits": 2, "num_beams": 2},
    ],
    ids=str,
)
def test_a_recommendation_that_cannot_be_followed_is_one_line(folder: Path, said: dict):
    edit_json(folder / "generation_config.json", **said)
    with pytest.raises(KvcastError, match=r"generation_config\.json: ") as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)
