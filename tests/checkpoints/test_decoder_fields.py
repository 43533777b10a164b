"""Fields of decoder-only models' configurations: published, left out, and tried.

A field that a configuration leaves out means what it means to transformers, and every field that
changes a result has another value in a case that is compared with transformers, or is refused.
"""

import json
import math
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import transformers

from kit.random_decoders import MODELS, configuration
from kvcast.checkpoints.decoder.huggingface import TYPES, WRAPPERS, decoder_dimensions
from kvcast.errors import KvcastError
from kvcast.families.decoder import DECODER

SIZES = {
    "vocab_size": 262_144,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "max_position_embeddings": 65_536,
}
# Whose default is no divisor of these, or that lack defaults.
OF_TYPES = {
    "helium": {"num_attention_heads": 40},
    # They have as many heads of keys as of queries.
    "minicpm3": {"num_key_value_heads": 64},
    "youtu": {"num_attention_heads": 16},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "deepseek_v3": {"num_attention_heads": 128},
    "deepseek_v32": {"num_attention_heads": 128},
    "glm4_moe_lite": {"num_attention_heads": 20},
    "mistral4": {"num_attention_heads": 32},
    "nemotron_h": {"layers_block_type": ["linear_attention", "mlp", "full_attention"]},
    "kimi_linear": {"num_attention_heads": 32},
    "bailing_hybrid": {"num_attention_heads": 32},
    "dots1": {"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6},
}
# By the name that messages have for them.
ASKED_FOR = {"intermediate_size": "ffn_dim", "num_local_experts": "num_experts"}
# Of training, of tokens' numbers, and of what transformers returns or how it computes.
INERT = {
    *("transformers_version", "architectures", "dtype", "model_type", "return_dict"),
    *("_name_or_path", "z_loss_coefficient", "attn_implementation", "num_logits_to_keep"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "id2label", "label2id"),
    "eod_token_id",
    *("attention_dropout", "hidden_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop"),
    *("resid_dropout", "embed_dropout", "classifier_dropout", "dropout", "residual_dropout"),
    *("layerdrop", "init_std", "initializer_range", "initializer_factor", "use_cache"),
    *("output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "pretraining_tp"),
    *("output_hidden_states", "output_attentions", "chunk_size_feed_forward", "problem_type"),
    *("is_encoder_decoder", "is_decoder", "cross_attention_hidden_size"),
    *("embedding_dropout", "hidden_dropout_prob"),
}


def saved(config):
    return json.loads(json.dumps(config.to_dict(), default=str))


def read(config):
    return decoder_dimensions(config, "config.json")


def text_of(config):
    return config.get("text_config") or config


def has_more(kind):
    config = transformers.AutoConfig.for_model(kind)
    return config.get_text_config() is not config


def built(kind, fields):
    text = {name: value for name, value in fields.items() if name != "model_type"}
    if has_more(kind):
        of_text = transformers.AutoConfig.for_model(kind).get_text_config().model_type
        text = {"text_config": {**text, "model_type": of_text}}
    return transformers.AutoConfig.for_model(kind, **text)


def stated(kind, fields):
    text = {name: value for name, value in fields.items() if name != "model_type"}
    return {"model_type": kind, **({"text_config": text} if has_more(kind) else text)}


def with_what_is_required(kind, fields, whole):
    """Return fields beside those that are not optional, with the dimensions."""
    while True:
        try:
            return fields, read(stated(kind, fields))
        except KvcastError as error:
            missing = re.search(r": (\w+) is missing", str(error))
            name = missing and (missing[1] if missing[1] in whole else ASKED_FOR.get(missing[1]))
            if not name or name in fields or whole.get(name) is None:
                raise
            fields = {**fields, name: whole[name]}


def assert_same_but_for_heads(kind, ours, theirs):
    """Of models with images, files decide whether the head is the embedding."""
    if has_more(kind):
        theirs = replace(theirs, tied=ours.tied)
    assert ours == theirs


@pytest.mark.parametrize("kind", [*TYPES, *WRAPPERS])
def test_a_configuration_of_sizes_alone_has_transformers_defaults(kind):
    known = transformers.AutoConfig.for_model(kind).get_text_config()
    sizes = {name: size for name, size in SIZES.items() if hasattr(known, name)}
    sizes |= OF_TYPES.get(kind, {})
    whole = text_of(saved(built(kind, sizes)))
    fields, ours = with_what_is_required(kind, sizes, whole)
    assert_same_but_for_heads(kind, ours, read(saved(built(kind, fields))))


# How many weights the published models have.
WEIGHTS = {
    "DeepSeek-V2-Lite": 15_706_484_224,
    "OLMo-2-0425-1B": 1_484_916_736,
    "SmolLM3-3B": 3_075_098_624,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2b": 2_506_172_416,
    "gpt2": 124_439_808,
    "lfm2-1.2b": 1_170_340_608,
    "phi-2": 2_779_683_840,
    "pythia-160m": 162_322_944,
    "stablelm-2-1_6b": 1_644_515_328,
    "starcoder2-3b": 3_030_371_328,
}
PUBLISHED = {
    path.parent.name: config
    for path in (Path(__file__).parents[1] / "data" / "configs").glob("*/config.json")
    if (config := json.loads(path.read_bytes())).get("model_type") in {*TYPES, *WRAPPERS}
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_means_what_it_means_to_transformers(name):
    config = PUBLISHED[name]
    fields = {field: value for field, value in config.items() if field != "model_type"}
    theirs = transformers.AutoConfig.for_model(config["model_type"], **deepcopy(fields))
    dimensions = read(config)
    assert dimensions == read(saved(theirs))
    count = sum(math.prod(shape) for shape in DECODER.tensor_shapes(dimensions).values())
    assert WEIGHTS.get(name, count) == count


def test_published_configurations_of_kimi_linear_number_layers_from_one():
    own = {"full_attn_layers": [3, 5], "kda_layers": [1, 2, 4], "head_dim": 64, "num_heads": 4}
    fields = {
        **{name: size for name, size in SIZES.items() if name != "max_position_embeddings"},
        **{"num_hidden_layers": 5, "num_attention_heads": 32, "model_max_length": 4096},
        **{"num_experts": 16, "num_experts_per_token": 4, "num_shared_experts": 2},
        **{"num_expert_group": 4, "topk_group": 2, "moe_renormalize": False},
        **{"moe_router_activation_func": "sigmoid", "moe_layer_freq": 1, "mla_use_nope": True},
        **{"rope_theta": 10_000.0, "first_k_dense_replace": 2},
        "linear_attn_config": {**own, "short_conv_kernel_size": 3},
    }
    theirs = transformers.AutoConfig.for_model("kimi_linear", **deepcopy(fields))
    dimensions = read({"model_type": "kimi_linear", **fields})
    assert dimensions == read(saved(theirs))
    assert dimensions.mixers == ("delta", "delta", "attention", "delta", "attention")


# Fields of layers that only some types have, or that change only how transformers computes.
INERT_OF = {
    **dict.fromkeys(("bamba", "granitemoehybrid", "falcon_h1"), ("mamba_chunk_size",)),
    "gpt_bigcode": ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
    "gpt2": (
        *("reorder_and_upcast_attn", "summary_activation", "summary_first_dropout"),
        *("summary_proj_to_labels", "summary_type", "summary_use_proj"),
    ),
    "qwen3_vl_moe": ("sliding_window",),
    **dict.fromkeys(("glm4_moe", "deepseek_v3"), ("num_nextn_predict_layers",)),
    "gemma3n_text": ("altup_coef_clip",),
    # Of the mixtures of experts that are refused, and what its class does not read. It clamps steps
    # to time_step_min in prompts, not while it decodes; the published code never does.
    "nemotron_h": (
        *("attention_bias", "sliding_window", "expand", "mamba_proj_bias", "use_mamba_kernels"),
        *("chunk_size", "mamba_ssm_cache_dtype", "residual_in_fp32", "rescale_prenorm_residual"),
        *("time_step_floor", "time_step_max", "time_step_min"),
        *("moe_intermediate_size", "moe_latent_size", "moe_shared_expert_intermediate_size"),
        *("moe_shared_expert_overlap", "n_group", "n_routed_experts", "n_shared_experts"),
        *("norm_topk_prob", "num_experts_per_tok", "routed_scaling_factor", "topk_group"),
        *("num_nextn_predict_layers", "mtp_layers_block_type"),
    ),
    "olmo_hybrid": (
        *("linear_a_log_max", "linear_a_log_min", "linear_dt_init_floor"),
        *("linear_dt_max", "linear_dt_min"),
    ),
    "bailing_hybrid": ("num_nextn_predict_layers", "mtp_loss_scaling_factor"),
}
GELU, BIASES = {"hidden_act": "gelu"}, {"attention_bias": True}
LIMIT = {"time_step_limit": [0.0, 1.0]}
REFUSED = {
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_vl_moe", "olmoe"), GELU),
    **dict.fromkeys(("granitemoe", "granitemoeshared", "gpt_oss", "olmo_hybrid"), GELU),
    **dict.fromkeys(("deepseek_v3", "glm4_moe_lite", "axk1", "mistral4", "mistral_large4"), GELU),
    **dict.fromkeys(("kimi_linear", "bailing_hybrid"), GELU),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), GELU | {"mlp_bias": True}),
    "deepseek_v2": {**GELU, "mlp_bias": True, "norm_topk_prob": True},
    **dict.fromkeys(("glm4_moe", "dots1", "minimax_m2", "afmoe"), GELU),
    "ernie4_5_moe": {**GELU, "use_bias": True, "moe_norm_min": 0.01},
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), GELU | BIASES),
    **dict.fromkeys(("bamba", "granitemoehybrid", "falcon_h1"), GELU | LIMIT),
    "nemotron_h": LIMIT | {"mamba_hidden_act": "gelu"},
    **{
        kind: {"use_bidirectional_attention": True}
        for kind in ("gemma", "gemma2", "gemma3_text", "gemma4_unified_text")
    },
    "falcon": {"alibi": True},
    "gpt2": {"add_cross_attention": True},
    "gpt_bigcode": {"add_cross_attention": True, "multi_query": False},
    "opt": {
        "_remove_final_layer_norm": True,
        "do_layer_norm_before": False,
        "layer_norm_elementwise_affine": False,
    },
}
FIRST = {kind: model for model, (kind, _) in reversed(MODELS.items())}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FIRST)
def test_a_field_that_is_left_out_has_transformers_default(kind):
    known = text_of(saved(transformers.AutoConfig.for_model(kind)))
    case = text_of(saved(configuration(FIRST[kind])))
    whole, tried = {name: value for name, value in case.items() if name in known}, 0
    for name in whole.keys() - INERT:
        fields = {other: value for other, value in whole.items() if other != name}
        try:
            theirs = read(saved(built(kind, fields)))
            ours = read(stated(kind, fields))
        except Exception:
            continue  # one of them asks for it
        assert_same_but_for_heads(kind, ours, theirs)
        tried += 1
    assert tried > 2


@pytest.mark.parametrize("kind", [kind for kind in FIRST if kind in TYPES])
def test_every_field_that_changes_a_result_is_tried(kind):
    usual = text_of(saved(transformers.AutoConfig.for_model(kind)))
    cases = [text_of(saved(configuration(m))) for m, (of, _) in MODELS.items() if of == kind]
    untried = {
        name
        for name, value in usual.items()
        if name not in INERT and all(case.get(name, value) == value for case in cases)
    }
    untried -= {"tie_word_embeddings"} if has_more(kind) else set()  # files decide
    assert untried == {*INERT_OF.get(kind, ()), *REFUSED.get(kind, {})}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_field_that_is_not_tried_is_refused(kind):
    whole = text_of(saved(configuration(FIRST[kind])))
    for name, value in REFUSED[kind].items():
        with pytest.raises(KvcastError, match=r"supported|must be"):
            read(stated(kind, {**whole, name: value}))


@pytest.mark.parametrize("kind", ["deepseek_v32", "glm_moe_dsa"])
def test_an_indexer_of_latents_needs_them(kind):
    whole = text_of(saved(configuration(FIRST[kind])))
    with pytest.raises(KvcastError, match="q_lora_rank is missing"):
        read(stated(kind, {**whole, "q_lora_rank": None}))


def test_latents_are_the_last_of_a_kind_that_are_shared_whichever_is_named():
    """As transformers' class computes: here layers 4 and 5 name 0."""
    rotated, named = [1, 0, 1, 1, 1, 1], [0, 1, 2, 2, 0, 0]
    fields = {"num_hidden_layers": 6, "no_rope_layers": rotated, "kv_source_layers": named}
    dimensions = read({"model_type": "mistral_large4", "text_config": {**SIZES, **fields}})
    assert dimensions.latents.sources == (0, 1, 2, 2, 2, 2)
    assert dimensions.unrotated == (1,)
