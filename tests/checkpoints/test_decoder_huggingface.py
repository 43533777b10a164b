import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from checkpoints.folder_checks import assert_same_tensors, rewrite_weights
from checkpoints.tiny_decoders import LLAMA3, SETTINGS, SIZES, random_decoder, save_decoder
from checkpoints.tiny_whisper import edit_json
from kit.random_decoders import oracle_and_checkpoint
from kvcast.checkpoints.decoder.huggingface import decoder_dimensions
from kvcast.checkpoints.source import open_checkpoint
from kvcast.families.decoder import DECODER
from kvcast.spec.position_encodings import Rotary


@pytest.fixture
def llama(tmp_path):
    return save_decoder(random_decoder("llama"), tmp_path / "llama")


@pytest.fixture
def gemma(tmp_path):
    return save_decoder(random_decoder("gemma3_text"), tmp_path / "gemma")


def test_a_model_without_its_head_class_and_prefix_reads_the_same(tmp_path):
    model = random_decoder("qwen3")
    whole = open_checkpoint(save_decoder(model, tmp_path / "whole"))
    folder = save_decoder(model.model, tmp_path / "model")
    assert "norm.weight" in load_file(folder / "model.safetensors")
    assert_same_tensors(open_checkpoint(folder).tensors, whole.tensors)


@pytest.mark.parametrize("name", ["mixtral", "gemma3_text"])
def test_bfloat16_and_shards_read_like_float32_in_one_file(name, tmp_path):
    model = random_decoder(name).to(torch.bfloat16)
    folder = save_decoder(model, tmp_path / "model", max_shard_size="10KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    whole = open_checkpoint(save_decoder(model.float(), tmp_path / "whole"))
    assert_same_tensors(open_checkpoint(folder).tensors, whole.tensors)


SMALL_EXPERTS = {
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts"), 3),
    **{"moe_num_experts": 3, "moe_k": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 12},
    **{"n_shared_experts": 1, "layer_types": ["full_attention"] * 4},
}


@pytest.mark.parametrize(
    "name", ["glm4_moe", "dots1", "ernie4_5_moe", "minimax_m2", "afmoe", "lfm2_moe"]
)
def test_experts_may_be_stacked_as_transformers_has_them(name, tmp_path):
    known = transformers.AutoConfig.for_model(name)
    fields = {field: value for field, value in SMALL_EXPERTS.items() if hasattr(known, field)}
    model = random_decoder(name, **fields)
    whole = open_checkpoint(save_decoder(model, tmp_path / "whole"))
    folder = save_decoder(model, tmp_path / "stacked", save_original_format=False)
    stacked = load_file(folder / "model.safetensors")
    assert any(tensor.ndim == 3 for tensor in stacked.values())
    assert_same_tensors(open_checkpoint(folder).tensors, whole.tensors)


@pytest.mark.parametrize("model", ["mistral large 4", "a.x k1"])
def test_tensors_may_be_named_as_transformers_has_them(model, tmp_path):
    oracle, whole = oracle_and_checkpoint(model, tmp_path)
    folder = save_decoder(oracle, tmp_path / "renamed", save_original_format=False)
    renamed = open_checkpoint(folder)
    assert "notices" not in json.loads(renamed.text["text.json"])
    assert_same_tensors(renamed.tensors, whole.tensors)


def test_a_xk1s_files_have_no_biases_for_the_choice_and_norms_to_spare(tmp_path):
    _, whole = oracle_and_checkpoint("a.x k1", tmp_path)
    spare = {"model.layers.1.post_mlp_layernorm.weight": torch.ones(48)}

    def published(tensors):
        kept = {n: t for n, t in tensors.items() if "e_score_correction_bias" not in n}
        return {**kept, **spare}

    rewrite_weights(tmp_path / "checkpoint", published)
    read = open_checkpoint(tmp_path / "checkpoint")
    assert "notices" not in json.loads(read.text["text.json"])
    for name, tensor in whole.tensors.items():
        expected = tensor * 0 if name.endswith("choice_bias") else tensor
        np.testing.assert_array_equal(read.tensors[name], expected)


OF_DELTA_NETS = {
    "pad_token_id": 0,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 4,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
}


@pytest.mark.parametrize("name", ["kimi_linear", "bailing_hybrid"])
def test_kimis_delta_nets_may_have_transformers_own_names(name, tmp_path):
    model = random_decoder(name, **OF_DELTA_NETS)
    whole = open_checkpoint(save_decoder(model, tmp_path / "whole"))
    folder = save_decoder(model, tmp_path / "own", save_original_format=False)
    assert "model.layers.0.self_attn.conv1d.weight" in load_file(folder / "model.safetensors")
    own = open_checkpoint(folder)
    assert own.tensors.unused == whole.tensors.unused == ()
    assert_same_tensors(own.tensors, whole.tensors)


def test_gemmas_one_is_added_in_single_precision(tmp_path):
    model = random_decoder("gemma3_text").half()
    weight = open_checkpoint(save_decoder(model, tmp_path / "model")).tensors["decoder.norm.weight"]
    assert weight.dtype == np.float32
    np.testing.assert_array_equal(weight, 1 + model.model.norm.weight.detach().float().numpy())


def published(folder, drop=(), **fields):
    """Rewrite config.json in the spelling from before transformers 5."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name in ("rope_parameters", "layer_types", "_sliding_window_pattern", *drop):
        config.pop(name, None)
    path.write_text(json.dumps({**config, **fields}))
    return open_checkpoint(folder).dimensions


YARN = {"scaling": "yarn", "factor": 4.0, "high_frequency": 32.0}
ROTARIES = [
    (None, {}),
    ({"type": "linear", "factor": 2.0}, {"scaling": "linear", "factor": 2.0}),
    (
        {**LLAMA3, "rope_type": "llama3"},
        {"scaling": "llama3", "factor": 32.0, "trained_positions": 16},
    ),
    (
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        {**YARN, "trained_positions": 16},
    ),
    (
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8, "beta_slow": 2}
        | {"mscale": 1.0, "mscale_all_dim": 1.0},
        {**YARN, "trained_positions": 64, "low_frequency": 2.0, "high_frequency": 8.0}
        | {"attention_factor": 1.0},
    ),
    (
        {"type": "yarn", "factor": 4.0, "truncate": False},
        {**YARN, "trained_positions": 64, "truncate": False},
    ),
    (
        {"type": "dynamic", "factor": 2.0},
        {"scaling": "dynamic", "factor": 2.0, "trained_positions": 64},
    ),
    (
        {"rope_type": "proportional", "partial_rotary_factor": 0.25},
        {"scaling": "proportional", "partial": 0.25},
    ),
    (
        {"type": "su", "short_factor": [1, 1, 1, 2.0], "long_factor": [1.0, 2, 3, 4]}
        | {"original_max_position_embeddings": 16, "attention_factor": 1.5},
        {"scaling": "longrope", "factor": 4.0, "trained_positions": 16, "attention_factor": 1.5}
        | {"divisors": (1.0, 1.0, 1.0, 2.0), "long_divisors": (1.0, 2.0, 3.0, 4.0)},
    ),
]


@pytest.mark.parametrize(("scaling", "fields"), ROTARIES)
def test_rotary_scaling_is_read_in_the_published_spelling_and_in_the_new_one(
    llama, scaling, fields
):
    rotary = Rotary(base=7.0, **fields)
    assert published(llama, rope_theta=7.0, rope_scaling=scaling).rotary == rotary
    config = json.loads((llama / "config.json").read_text())
    del config["rope_theta"], config["rope_scaling"]
    new = {"rope_theta": 7.0, "rope_type": "default", **(scaling or {})}
    if "type" in new:
        new["rope_type"] = new.pop("type")
    (llama / "config.json").write_text(json.dumps({**config, "rope_parameters": new}))
    assert open_checkpoint(llama).dimensions.rotary == rotary


LFM2S = [
    ({"block_auto_adjust_ff_dim": False}, {"inner": 20}),
    ({"block_ff_dim": 31}, {"inner": 28}),
    ({"block_ffn_dim_multiplier": None}, {"inner": 13}),
    ({"tie_embedding": False}, {"tied": False}),
    ({"full_attn_idxs": [0, 2]}, {"mixers": ("attention", "convolution") * 2}),
    ({"full_attn_idxs": None, "conv_L_cache": 7}, {"mixers": (), "convolution": 0}),
]


@pytest.mark.parametrize(("fields", "expected"), LFM2S, ids=str)
def test_lfm2s_sizes_follow_from_several_fields(fields, expected):
    """In the spelling of published models, whose `layer_types` may be missing."""
    layers = {} if "full_attn_idxs" in fields else {"layer_types": SETTINGS["lfm2"]["layer_types"]}
    settings = {**SIZES, **SETTINGS["lfm2"], "layer_types": None, **layers, **fields}
    dimensions = decoder_dimensions({"model_type": "lfm2", **settings}, "config.json")
    assert {name: getattr(dimensions, name) for name in expected} == expected
    config = transformers.Lfm2Config(**{k: v for k, v in settings.items() if v is not None})
    assert tuple(config.layer_types) == tuple(
        "conv" if dimensions.mixer(i) == "convolution" else "full_attention" for i in range(4)
    )


_FULL = {"head_dim": 12, "num_key_value_heads": 1}
GEMMA_4S = [
    ({"global_head_dim": 12}, {"layer_head_dims": (8, 8, 12), "sources": (0, 1, 2)}),
    (
        {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "global_head_dim": 12},
        {"layer_kv_heads": (2, 2, 1), "keys_as_values": (2,)},
    ),
    ({"num_global_key_value_heads": 1}, {"layer_kv_heads": (2, 2, 2), "keys_as_values": ()}),
    ({"per_layer_config": {"02": _FULL}}, {"layer_head_dims": (8, 8, 12)}),
    ({"per_layer_config": {}}, {"layer_head_dims": (8, 8, 8), "layer_kv_heads": (2, 2, 2)}),
    ({"layer_types": None, "num_hidden_layers": 7}, {"windows": (7,) * 5 + (None,) * 2}),
    ({"layer_types": ["sliding_attention"] * 3}, {"windows": (7, 7, None)}),
    ({"sliding_window": 64}, {"windows": (64, 64, None)}),
    ({"hidden_size_per_layer_input": 0}, {"layer_embedding": 0}),
    ({"use_double_wide_mlp": True}, {"layer_inners": (20, 20, 20)}),
    (
        {
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "num_kv_shared_layers": 1,
            "use_double_wide_mlp": True,
        },
        {"layer_inners": (20, 20, 40), "sources": (0, 1, 0), "reading": 2},
    ),
]


@pytest.mark.parametrize(("fields", "expected"), GEMMA_4S, ids=str)
def test_what_differs_from_layer_to_layer_of_a_gemma_4(fields, expected):
    """In the spelling of published models and in that of transformers 5, as its class reads it."""
    settings = {
        **SIZES,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": 7,
        "vocab_size_per_layer_input": 19,
        **fields,
    }
    dimensions = decoder_dimensions({"model_type": "gemma4_text", **settings}, "config.json")
    assert {name: getattr(dimensions, name) for name in expected} == expected
    config = transformers.Gemma4TextConfig(**settings)
    layers = config.per_layer_config
    assert [layer.head_dim for layer in layers] == [*dimensions.layer_head_dims]
    assert [layer.num_key_value_heads for layer in layers] == [*dimensions.layer_kv_heads]
    assert [kind == "full_attention" for kind in config.layer_types] == [
        window is None for window in dimensions.windows
    ]


def test_gemma_4_e2bs_caches_are_those_of_its_own_layers():
    """Its configuration, the defaults left out as published."""
    config = {
        **{"model_type": "gemma4", "hidden_size": 1536, "intermediate_size": 6144},
        **{"num_hidden_layers": 35, "num_key_value_heads": 1, "num_kv_shared_layers": 20},
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
        **{"use_double_wide_mlp": True, "final_logit_softcapping": 30.0},
    }
    dimensions = decoder_dimensions(config, "config.json")
    assert dimensions.sources[13:21] == (13, 14, 13, 13, 13, 13, 14, 13)
    assert (dimensions.inner_of(14), dimensions.inner_of(15)) == (6144, 12288)
    caches = DECODER.caches(dimensions)
    kinds = [(layer.kind, layer.heads, layer.head_dim, layer.capacity) for layer in caches]
    ring, linear = ("ring", 1, 256, 512), ("linear", 1, 512, 131_072)
    shared = ("linear", 1, 256, 131_072)  # its window is that of those that read it, later
    assert kinds == [*[ring] * 4, linear, *[ring] * 4, linear, *[ring] * 3, shared, linear]


def test_keys_of_layers_that_read_those_of_others_are_no_cause_for_a_notice(tmp_path):
    folder = save_decoder(random_decoder("gemma4_text"), tmp_path / "model")
    names = [f"model.layers.3.self_attn.{name}_proj.weight" for name in "kv"]
    rewrite_weights(folder, lambda t: {**t, **{name: torch.zeros(24, 24) for name in names}})
    checkpoint = open_checkpoint(folder)
    assert sorted(checkpoint.tensors.unused) == names
    assert "notices" not in json.loads(checkpoint.text["text.json"])


def test_gemmas_published_spelling_means_the_same(gemma):
    new = open_checkpoint(gemma).dimensions
    spelling = {"rope_theta": 1e6, "rope_local_base_freq": 10_000.0, "sliding_window_pattern": 3}
    assert published(gemma, **spelling) == new
    scaled = published(gemma, **spelling, rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert scaled.rotary == Rotary(base=1e6, scaling="linear", factor=8.0)
    assert scaled.window_rotary == new.window_rotary


@pytest.mark.parametrize(
    ("name", "fields", "windows"),
    [
        ("mistral", {"sliding_window": 63}, (63,) * 4),
        ("mistral", {"sliding_window": 64}, (None,) * 4),
        ("mistral", {"sliding_window": None}, (None,) * 4),
        ("mixtral", {"sliding_window": 9}, (9,) * 4),
        ("llama", {"sliding_window": 9}, (None,) * 4),
        ("qwen2", {"use_sliding_window": False, "max_window_layers": 2}, (None,) * 4),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, (6,) * 4),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
         (None, None, 5, 5)),
        ("qwen3", {"use_sliding_window": True, "sliding_window": None}, (None,) * 4),
        ("mistral", {"layer_types": ["full_attention", "sliding_attention"] * 2},
         (None, 5, None, 5)),
    ],
)  # fmt: skip
def test_a_window_is_where_the_configuration_means_one(tmp_path, name, fields, windows):
    folder = save_decoder(random_decoder(name), tmp_path / "model")
    assert published(folder, **fields).windows == windows


def test_a_window_counts_the_query_itself_as_in_transformers(tmp_path):
    model = random_decoder("mistral", sliding_window=5)
    (window, *_) = open_checkpoint(save_decoder(model, tmp_path / "model")).dimensions.windows
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        layer = model.model.layers[0]
        seen = {}
        layer.self_attn.register_forward_hook(
            lambda module, args, kwargs, out: seen.update(mask=kwargs["attention_mask"]),
            with_kwargs=True,
        )
        model.set_attn_implementation("eager")
        model(tokens)
    assert (seen["mask"][0, 0, -1] == 0).sum() == window == 5


def test_sizes_that_a_configuration_may_leave_out_follow_from_others(tmp_path):
    model = random_decoder("llama", head_dim=6, num_key_value_heads=4)
    folder = save_decoder(model, tmp_path / "model")
    dimensions = published(folder, drop=("head_dim", "num_key_value_heads", "hidden_act"))
    assert (dimensions.head_dim, dimensions.kv_heads) == (6, 4)
    assert dimensions.rotary == Rotary(base=10_000.0)


@pytest.mark.parametrize("name", SETTINGS)
def test_without_the_field_a_head_is_tied_as_in_transformers(name, tmp_path):
    from transformers import AutoConfig

    tied = AutoConfig.for_model(name).tie_word_embeddings
    folder = save_decoder(random_decoder(name, tie_word_embeddings=tied), tmp_path / "model")
    edit_json(folder / "config.json", tie_word_embeddings=None)
    assert open_checkpoint(folder).dimensions.tied == tied


def test_a_head_beside_a_tied_embedding_counts_only_if_it_differs(tmp_path):
    model = random_decoder("qwen3")
    folder = save_decoder(model, tmp_path / "model")

    def copied(tensors):
        return {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}

    whole = dict(open_checkpoint(folder).tensors)
    rewrite_weights(folder, copied)
    assert_same_tensors(open_checkpoint(folder).tensors, whole)
    rewrite_weights(folder, lambda t: {**t, "lm_head.weight": t["lm_head.weight"] + 1})
    checkpoint = open_checkpoint(folder)
    assert not checkpoint.dimensions.tied
    head = model.model.embed_tokens.weight.detach().numpy() + 1
    np.testing.assert_array_equal(checkpoint.tensors["decoder.head.weight"], head)


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text"])
def test_a_tied_model_may_be_saved_under_its_heads_name(name, tmp_path):
    folder = save_decoder(random_decoder(name), tmp_path / "model")

    def renamed(tensors):
        return {"lm_head.weight": tensors.pop("model.embed_tokens.weight"), **tensors}

    whole = dict(open_checkpoint(folder).tensors)
    rewrite_weights(folder, renamed)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.dimensions.tied
    assert_same_tensors(checkpoint.tensors, whole)


TABLES = ["inv_freq", "cos_cached", "sin_cached"]
UNUSED = {
    **{f"model.rotary_emb.{table}": torch.ones(4) for table in TABLES},
    **{f"model.layers.0.self_attn.rotary_emb.{table}": torch.ones(4) for table in TABLES},
    "score.weight": torch.ones(2, 24),
    "v_head.summary.bias": torch.ones(1),
    "model.layers.4.mlp.up_proj.weight": torch.ones(20, 24),
    "model.position_ids": torch.arange(4),
    "model.mask": torch.ones(2, dtype=torch.bool),
}
INSIDE = "model.layers.3.mlp.up_proj.bias"


def test_tensors_without_use_are_listed_and_told_where_they_may_have_had_one(llama):
    read = open_checkpoint(llama)
    assert read.tensors.unused == ()
    rewrite_weights(llama, lambda tensors: tensors | UNUSED)
    checkpoint = open_checkpoint(llama)
    assert sorted(checkpoint.tensors.unused) == sorted(UNUSED)
    assert_same_tensors(checkpoint.tensors, read.tensors)
    assert "notices" not in json.loads(checkpoint.text["text.json"])
    rewrite_weights(llama, lambda tensors: {**tensors, INSIDE: torch.ones(20)})
    (notice,) = json.loads(open_checkpoint(llama).text["text.json"])["notices"]
    assert f"does not use, {INSIDE}: results may be wrong" in notice


def test_the_tokenizers_files_go_along(llama):
    (llama / "chat_template.jinja").write_text("{{ messages }} ü")
    checkpoint = open_checkpoint(llama)
    assert checkpoint.family.name == "decoder"
    assert checkpoint.source == f"Hugging Face folder {llama}"
    assert set(checkpoint.text) == {"tokenizer.json", "text.json", "chat_template.jinja"}
    assert checkpoint.text["tokenizer.json"] == (llama / "tokenizer.json").read_bytes()
    assert checkpoint.text["chat_template.jinja"] == "{{ messages }} ü".encode()
    assert json.loads(checkpoint.text["text.json"]) == {
        "end_tokens": [2],
        "bos_token": "<s>",
        "eos_token": "</s>",
    }


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", b"plain"),
        ([{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}], b"d"),
        ([{"name": "tools", "template": "t"}], None),
        ({"tools": "t", "default": "d"}, b"d"),
        ([3, {"name": "default"}], None),
        ("\ud800", b"?"),
        (3, None),
        (None, None),
    ],
)
def test_a_chat_template_may_be_in_the_tokenizers_configuration(llama, template, expected):
    edit_json(llama / "tokenizer_config.json", chat_template=template)
    assert open_checkpoint(llama).text.get("chat_template.jinja") == expected


def test_without_a_tokenizer_configuration_special_tokens_have_no_text(llama):
    (llama / "tokenizer_config.json").unlink()
    text = json.loads(open_checkpoint(llama).text["text.json"])
    assert (text["bos_token"], text["eos_token"]) == (None, None)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [3, 4]}, {"eos_token_id": 2}, [3, 4]),
        ({"eos_token_id": 3}, {"eos_token_id": 2}, [3]),
        ({}, {"eos_token_id": [1, 106]}, [1, 106]),
        (None, {"eos_token_id": 2}, [2]),
        ({"eos_token_id": []}, {}, [7]),
        (None, {}, [7]),
    ],
)
def test_end_tokens_come_from_the_first_file_that_names_any(llama, generation, config, expected):
    path = llama / "generation_config.json"
    path.unlink() if generation is None else path.write_text(json.dumps(generation))
    edit_json(llama / "config.json", **{"eos_token_id": None, **config})
    # The tokenizer's is the last resort: </s>, as its configuration names it.
    added = {"model": {"vocab": {"</s>": 6}}, "added_tokens": [{"id": 7, "content": "</s>"}]}
    (llama / "tokenizer.json").write_text(json.dumps(added))
    assert json.loads(open_checkpoint(llama).text["text.json"])["end_tokens"] == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.6, "top_p": 0.9}, {}),
        ({"do_sample": False, "top_k": 5, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"do_sample": True, "top_k": -1}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1},
         {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1}),
        ({"do_sample": True, "temperature": None, "top_p": 1.0, "top_k": 0, "min_p": 0},
         {"temperature": 1.0}),
        ({"no_repeat_ngram_size": 3, "forced_bos_token_id": 0},
         {"no_repeat_ngram_size": 3, "forced_bos_token_id": 0}),
        ({"no_repeat_ngram_size": 0, "repetition_penalty": 1.0, "forced_bos_token_id": None}, {}),
    ],
)  # fmt: skip
def test_generation_config_recommends_what_transformers_would_do(llama, fields, expected):
    (llama / "generation_config.json").write_text(json.dumps(fields))
    text = json.loads(open_checkpoint(llama).text["text.json"])
    assert text.get("generation", {}) == expected


@pytest.mark.parametrize(
    ("wrapper", "kind", "prefix", "image"),
    [
        ("cohere2_vision", "cohere2", "language_model.model.", "vision_tower."),
        ("aya_vision", "cohere2", "model.language_model.", "model.vision_tower."),
        ("llava", "mistral", "language_model.model.", "vision_tower.vision_model."),
        ("idefics3", "llama", "model.text_model.", "model.vision_model."),
        ("smolvlm", "llama", "model.text_model.", "model.connector."),
        ("gemma3", "gemma3_text", "language_model.model.", "vision_tower."),
        ("gemma3", "gemma3_text", "model.language_model.", "model.multi_modal_projector."),
        ("gemma4", "gemma4_text", "model.language_model.", "model.audio_tower."),
        ("mistral3", "ministral3", "language_model.model.", "vision_tower."),
    ],
)
def test_of_a_model_with_images_the_decoder_is_read(wrapper, kind, prefix, image, tmp_path):
    folder = save_decoder(random_decoder(kind), tmp_path / "model")
    (folder / "generation_config.json").unlink()  # so that only text_config has an end token
    edit_json(folder / "config.json", eos_token_id=5)
    alone = open_checkpoint(folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    outer = {"model_type": wrapper, "text_config": config}
    outer["tie_word_embeddings"] = config["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(outer), "utf-8")

    def wrapped(tensors):
        own = {
            f"{prefix}{name.removeprefix('model.')}" if name.startswith("model.") else name: tensor
            for name, tensor in tensors.items()
        }
        return {**own, f"{image}encoder.layers.0.weight": torch.ones(2)}

    rewrite_weights(folder, wrapped)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.dimensions == replace(alone.dimensions, architecture=wrapper)
    assert_same_tensors(checkpoint.tensors, alone.tensors)
    text = json.loads(checkpoint.text["text.json"])
    assert (text["end_tokens"], "notices" in text) == ([5], False)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("lfm 3", {"gate_proj": "g_proj"}),
        (
            "olmo hybrid",
            {
                "attention_layer_norm": "input_layernorm",
                "feedforward_layer_norm": "post_attention_layernorm",
            },
        ),
        ("nemotron h", {"backbone.": "model."}),
    ],
)
def test_names_of_classes_are_read_as_those_that_they_are_saved_by(model, names, tmp_path):
    _, saved = oracle_and_checkpoint(model, tmp_path)
    path = tmp_path / "checkpoint" / "model.safetensors"
    expected, tensors = {name: saved.tensors[name] for name in saved.tensors}, load_file(path)
    for old, new in names.items():
        assert any(old in name for name in tensors)
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    save_file(tensors, path)
    assert_same_tensors(open_checkpoint(tmp_path / "checkpoint").tensors, expected)
