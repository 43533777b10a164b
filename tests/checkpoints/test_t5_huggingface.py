import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from checkpoints.folder_checks import assert_same_tensors, rewrite_weights
from checkpoints.tiny_whisper import edit_json
from kit.dimensions import T5_SMALL
from kit.in_transformers import SETTINGS, random_t5, read_t5, save_t5
from kvcast.checkpoints.source import open_checkpoint, read_dimensions

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
FLAN_T5_SMALL = replace(
    T5_SMALL,
    inner=1024,
    heads=6,
    encoder_layers=8,
    decoder_layers=8,
    activation="gelu_tanh",
    gated=True,
    tied=False,
    logit_scale=1.0,
)
MT5_SMALL = replace(FLAN_T5_SMALL, architecture="mt5", vocab_size=250112)
BYT5_SMALL = replace(
    FLAN_T5_SMALL, vocab_size=384, width=1472, inner=3584, encoder_layers=12, decoder_layers=4
)
PUBLISHED = {
    "t5-small": T5_SMALL,
    "flan-t5-small": FLAN_T5_SMALL,
    "mt5-small": MT5_SMALL,
    "byt5-small": BYT5_SMALL,
}


@pytest.fixture(params=SETTINGS)
def name(request):
    return request.param


@pytest.fixture
def t5(tmp_path):
    return save_t5(random_t5("T5_10"), tmp_path / "t5")


@pytest.fixture
def flan(tmp_path):
    return save_t5(random_t5("T5_11"), tmp_path / "flan")


def test_tensors_without_use_are_listed(t5):
    read = open_checkpoint(t5).tensors
    bias = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"
    unused = {bias: torch.ones(32, 4), "classifier.weight": torch.ones(2, 32)}
    rewrite_weights(t5, lambda tensors: tensors | unused)
    checkpoint = open_checkpoint(t5)
    assert_same_tensors(checkpoint.tensors, dict(read))
    assert set(checkpoint.tensors.unused) == set(unused)
    edit_json(t5 / "config.json", num_layers=1)
    surplus = set(open_checkpoint(t5).tensors.unused) - set(unused)
    assert surplus
    assert all(name.startswith("encoder.block.1.") for name in surplus)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_give_the_sizes_that_the_papers_say(name):
    assert read_dimensions(CONFIGS / name) == PUBLISHED[name]


def test_bfloat16_and_shards_read_like_float32_in_one_file(name, tmp_path):
    model = random_t5(name).to(torch.bfloat16)
    folder = save_t5(model, tmp_path / "model", max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert_same_tensors(open_checkpoint(folder).tensors, read_t5(model.float()).tensors)


def test_the_configuration_alone_gives_the_same_dimensions(name, tmp_path):
    folder = save_t5(random_t5(name), tmp_path / "model")
    checkpoint = open_checkpoint(folder)
    assert read_dimensions(folder) == checkpoint.dimensions
    assert checkpoint.family.name == "t5"
    assert checkpoint.source == f"Hugging Face folder {folder}"


def with_copies(tensors, *names):
    return {**tensors, **{name: tensors["shared.weight"].clone() for name in names}}


COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


@pytest.mark.parametrize(
    "names", [COPIES, ("lm_head.weight",), (*COPIES, "lm_head.weight")], ids=" and ".join
)
@pytest.mark.parametrize("original", [True, False])
def test_copies_of_the_embedding_are_read_once(t5, names, original):
    """Files have it under any of four names, with or without the usual one."""
    expected = dict(open_checkpoint(t5).tensors)

    def change(tensors):
        changed = with_copies(tensors, *names)
        return changed if original else {n: t for n, t in changed.items() if n != "shared.weight"}

    rewrite_weights(t5, change)
    checkpoint = open_checkpoint(t5)
    assert checkpoint.dimensions.tied
    assert_same_tensors(checkpoint.tensors, expected)


@pytest.mark.parametrize("tied", [True, False, None])
def test_a_head_counts_if_it_differs_whatever_the_configuration_says(flan, tied):
    expected = dict(open_checkpoint(flan).tensors)
    rewrite_weights(flan, lambda tensors: with_copies(tensors, *COPIES))
    edit_json(flan / "config.json", tie_word_embeddings=tied)
    checkpoint = open_checkpoint(flan)
    assert not checkpoint.dimensions.tied
    assert_same_tensors(checkpoint.tensors, expected)


@pytest.mark.parametrize(
    ("fields", "scaled"),
    [
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": True}, True),
        ({"tie_word_embeddings": False, "scale_decoder_outputs": None}, False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": None}, True),
        ({"tie_word_embeddings": None, "scale_decoder_outputs": None}, True),
    ],
)
def test_logits_are_scaled_where_transformers_scales_them(t5, fields, scaled):
    from transformers import T5Config

    edit_json(t5 / "config.json", **fields)
    assert T5Config.from_pretrained(t5).scale_decoder_outputs == scaled
    assert open_checkpoint(t5).dimensions.logit_scale == (32**-0.5 if scaled else 1.0)


def test_an_mt5_never_scales(tmp_path):
    folder = save_t5(random_t5("MT5"), tmp_path / "mt5")
    for tied in (True, False):
        edit_json(folder / "config.json", tie_word_embeddings=tied)
        assert open_checkpoint(folder).dimensions.logit_scale == 1.0


@pytest.mark.parametrize(
    "fields",
    [
        {"feed_forward_proj": "relu"},
        {"feed_forward_proj": "gelu"},
        {"feed_forward_proj": "gated-gelu"},
        {"feed_forward_proj": "gated-silu"},
        {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True},
        {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"},
        {"feed_forward_proj": "gated-relu", "is_gated_act": False},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_the_feed_forward_is_understood_as_by_transformers(tmp_path, fields):
    from transformers import T5Config

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", **fields}))
    config = T5Config.from_pretrained(tmp_path)
    names = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "silu": "silu"}
    dimensions = read_dimensions(tmp_path)
    assert dimensions.activation == names[config.dense_act_fn]
    assert dimensions.gated == config.is_gated_act


@pytest.mark.parametrize("kind", ["t5", "mt5"])
def test_what_a_configuration_leaves_out_is_transformers_default(tmp_path, kind):
    from transformers import AutoConfig

    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    dimensions, config = read_dimensions(tmp_path), AutoConfig.for_model(kind)
    assert (dimensions.vocab_size, dimensions.width, dimensions.inner) == (
        config.vocab_size,
        config.d_model,
        config.d_ff,
    )
    assert (dimensions.heads, dimensions.head_dim) == (config.num_heads, config.d_kv)
    assert dimensions.encoder_layers == dimensions.decoder_layers == config.num_layers
    assert dimensions.buckets == config.relative_attention_num_buckets
    assert dimensions.max_distance == config.relative_attention_max_distance
    assert dimensions.gated == config.is_gated_act
    assert dimensions.norm_eps == config.layer_norm_epsilon
    assert dimensions.start_token == config.pad_token_id


def test_the_length_of_training_is_no_limit(t5):
    edit_json(t5 / "config.json", n_positions=16)
    dimensions = open_checkpoint(t5).dimensions
    assert dimensions.source_positions == dimensions.target_positions == 4096


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"decoder_start_token_id": 5}, {"decoder_start_token_id": 4}, 5),
        ({}, {"decoder_start_token_id": 4, "pad_token_id": 2}, 4),
        (None, {"decoder_start_token_id": None, "pad_token_id": 2}, 2),
        (None, {"decoder_start_token_id": None, "pad_token_id": None}, 0),
    ],
)
def test_a_target_begins_as_the_first_file_says_that_does(t5, generation, config, expected):
    path = t5 / "generation_config.json"
    path.unlink() if generation is None else path.write_text(json.dumps(generation))
    edit_json(t5 / "config.json", **config)
    assert open_checkpoint(t5).dimensions.start_token == expected


def test_the_matrix_that_nothing_uses_is_no_foreign_tensor(t5):
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    expected = dict(open_checkpoint(t5).tensors)
    rewrite_weights(t5, lambda tensors: {**tensors, name: torch.ones(32, 4)})
    assert_same_tensors(open_checkpoint(t5).tensors, expected)


def text_of(folder):
    text = dict(open_checkpoint(folder).text)
    return json.loads(text.pop("text.json")), text


ABOUT = {"end_tokens": [1], "bos_token": None, "eos_token": "</s>"}


def test_the_tokenizers_files_go_along(t5):
    content = (t5 / "tokenizer.json").read_bytes()
    (t5 / "spiece.model").write_bytes(b"pieces")
    assert text_of(t5) == (ABOUT, {"tokenizer.json": content})
    (t5 / "tokenizer.json").unlink()
    assert text_of(t5) == ({**ABOUT, "extra_ids": 2}, {"spiece.model": b"pieces"})
    (t5 / "tokenizer_config.json").unlink()
    assert text_of(t5) == (ABOUT, {"spiece.model": b"pieces"})


def test_a_byt5_needs_no_tokenizer_but_its_name(tmp_path):
    folder = save_t5(random_t5("BYT5"), tmp_path / "byt5")
    assert text_of(folder) == ({**ABOUT, "tokenizer": "byt5"}, {})
    # Published ByT5s have it in their configuration.
    (folder / "tokenizer_config.json").unlink()
    edit_json(folder / "config.json", tokenizer_class="ByT5Tokenizer")
    assert text_of(folder) == ({**ABOUT, "tokenizer": "byt5"}, {})


PIECES = ("[PAD]", "[UNK]", "x", "[CLS]", "[SEP]", "今", "天", "今天")
PEGASUS_ABOUT = {"end_tokens": [4], "tokenizer": "bert", "lowercase": True, "words": True}


@pytest.fixture
def pegasus(tmp_path):
    """A converted T5-PEGASUS: an mT5 with its ids, and a BertTokenizer's vocabulary."""
    model = random_t5("MT5", vocab_size=8, tokenizer_class="T5Tokenizer")
    folder = tmp_path / "pegasus"
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return folder


@pytest.mark.parametrize("name", [None, "BertTokenizer", "T5PegasusTokenizer"])
def test_a_t5_of_word_pieces_looks_for_words_whatever_its_tokenizer_is_called(pegasus, name):
    if name:
        settings = json.dumps({"tokenizer_class": name})
        (pegasus / "tokenizer_config.json").write_text(settings)
    assert text_of(pegasus) == (PEGASUS_ABOUT, {"vocab.txt": (pegasus / "vocab.txt").read_bytes()})


def test_what_transformers_saves_of_a_bert_tokenizer_is_enough_for_a_t5(pegasus):
    from transformers import BertTokenizer

    (pegasus / "vocab.txt").unlink()
    BertTokenizer(vocab={token: i for i, token in enumerate(PIECES)}).save_pretrained(pegasus)
    content = (pegasus / "tokenizer.json").read_bytes()
    assert text_of(pegasus) == (PEGASUS_ABOUT, {"tokenizer.json": content})
    assert open_checkpoint(pegasus).dimensions.start_token == 3


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        # mT5's.
        ({"decoder_start_token_id": 0, "eos_token_id": 1}, 3),
        ({"decoder_start_token_id": None, "eos_token_id": None}, 3),
        ({"decoder_start_token_id": None, "eos_token_id": 4}, 3),
        ({"decoder_start_token_id": 0, "eos_token_id": 4}, 0),
        ({"decoder_start_token_id": 3, "eos_token_id": 4}, 3),
    ],
    ids=str,
)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_a_target_of_word_pieces_begins_with_cls_unless_the_ids_are_its_own(
    pegasus, file, ids, expected
):
    (pegasus / "generation_config.json").write_text("{}")
    edit_json(pegasus / "config.json", decoder_start_token_id=None, eos_token_id=None)
    edit_json(pegasus / file, **ids)
    assert open_checkpoint(pegasus).dimensions.start_token == expected
    assert text_of(pegasus)[0] == PEGASUS_ABOUT


def test_an_end_token_that_is_null_is_t5_s(t5):
    (t5 / "generation_config.json").unlink()
    path = t5 / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": None}))
    assert text_of(t5)[0]["end_tokens"] == [1]


def test_half_precision_stays(tmp_path):
    checkpoint = open_checkpoint(save_t5(random_t5("T5_10").half(), tmp_path / "model"))
    assert {tensor.dtype for tensor in checkpoint.tensors.values()} == {np.dtype(np.float16)}
