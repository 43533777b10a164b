"""Files of BART and its relatives: what is read, and what is refused."""

import json
import re
from pathlib import Path

import pytest
import torch

from checkpoints.folder_checks import assert_same_tensors, rewrite_weights
from checkpoints.tiny_whisper import edit_json
from kit.errors import one_line
from kit.random_barts import END, random_bart, save_bart
from kvcast.checkpoints.source import open_checkpoint
from kvcast.errors import KvcastError


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
    assert_same_tensors(again.tensors, expected.tensors)
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
    assert_same_tensors(again.tensors, expected.tensors)
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
    assert "generation_config.json: " in one_line(KvcastError, open_checkpoint, folder)
