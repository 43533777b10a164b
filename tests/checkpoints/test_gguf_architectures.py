"""GGUF architectures beside the Hugging Face folders that llama.cpp converts them from."""

import re
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch

from checkpoints.tiny_decoders import random_decoder, save_decoder
from kit.errors import one_line
from kit.tiny_gguf import VOCAB, permuted, sizes, tensors, vocabulary, write
from kvcast.checkpoints.source import open_checkpoint
from kvcast.errors import KvcastError

LAYERS, WIDTH, INNER, EXPERTS, EXPERT_INNER, SHARED = 2, 64, 48, 3, 40, 56
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "head_dim": 16,
    "pad_token_id": 0,
    "rms_norm_eps": 2**-17,
}
OF_EXPERTS = {
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": EXPERT_INNER,
}
SHORT, LONG = [1.0, 1.25, 1.5, 1.75, 2.0, 2.5], [1.0, 2.0, 4.0, 6.0, 8.0, 9.0]
YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
YARN_VALUES = {
    "rope__scaling__type": "yarn",
    "rope__scaling__factor": 4.0,
    "rope__scaling__original_context_length": 16,
}
FOUR, FOUR_BLOCKS = {"num_hidden_layers": 4}, {"block_count": 4}
WINDOW = {"attention__sliding_window": 9}
LAYER_NORM = {"attention__layer_norm_epsilon": 2**-17}
OF_HEADS = ("key_length", "value_length", "head_count_kv")
DELTA = {
    **FOUR,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
DELTA_VALUES = {
    "block_count": 5,
    "nextn_predict_layers": 1,
    "full_attention_interval": 2,
    "rope__dimension_count": 4,
    "rope__dimension_sections": [1, 1, 0, 0],
    "ssm__conv_kernel": 3,
    "ssm__state_size": 8,
    "ssm__group_count": 2,
    "ssm__time_step_rank": 4,
    "ssm__inner_size": 32,
}
OF_SHARED = {"expert_shared_feed_forward_length": SHARED}
OF_LOCAL = {"num_local_experts": EXPERTS, "num_experts_per_tok": 2}
GRANITE = {
    "embedding_multiplier": 8.0,
    "attention_multiplier": 0.5,
    "residual_multiplier": 0.25,
    "logits_scaling": 4.0,
}
GRANITE_VALUES = {
    "embedding_scale": 8.0,
    "attention__scale": 0.5,
    "residual_scale": 0.25,
    "logit_scale": 4.0,
}
MAMBA = {
    "num_hidden_layers": 3,
    "layer_types": ["mamba", "attention", "mamba"],
    "mamba_n_heads": 4,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_d_conv": 3,
}
MAMBA_VALUES = {
    "block_count": 3,
    "attention__head_count_kv": [0, 2, 0],
    "rope__scaling__finetuned": False,
    "ssm__conv_kernel": 3,
    "ssm__state_size": 8,
    "ssm__group_count": 2,
    "ssm__time_step_rank": 4,
    "ssm__inner_size": 128,
}
GEMMA_4 = {
    **FOUR_BLOCKS,
    **WINDOW,
    "attention__sliding_window_pattern": [True, False] * 2,
    "attention__key_length": 24,
    "attention__value_length": 24,
    "attention__key_length_swa": 16,
    "attention__value_length_swa": 16,
    "rope__dimension_count": 24,
    "rope__dimension_count_swa": 16,
    "rope__freq_base_swa": 10_000.0,
}
# Of the folder's configuration, and of the file beside the sizes of all.
MODELS = {
    "llama": ("llama", {}, {"expert_count": None}),
    "llama with experts": ("mixtral", OF_LOCAL, {"expert_feed_forward_length": INNER}),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {"tie_word_embeddings": False}, {}),
    "gemma3": (
        "gemma3_text",
        {"sliding_window": 9, "attn_logit_softcapping": None},
        {**WINDOW, "final_logit_softcapping": 30.0},
    ),
    "phi3": (
        "phi3",
        {
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "partial_rotary_factor": 0.75,
                "short_factor": SHORT,
                "long_factor": LONG,
                "attention_factor": 1.25,
                "factor": 1.0,
            },
            "sliding_window": 9,
        },
        {**WINDOW, "rope__dimension_count": 12}
        | {"rope__scaling__original_context_length": 32, "rope__scaling__attn_factor": 1.25},
    ),
    "glm4": ("glm4", {}, {"rope__dimension_count": 8}),
    "qwen2moe": (
        "qwen2_moe",
        {**OF_EXPERTS, "shared_expert_intermediate_size": SHARED},
        {"expert_shared_feed_forward_length": SHARED},
    ),
    "qwen3moe": ("qwen3_moe", {**OF_EXPERTS, "norm_topk_prob": True}, {}),
    "gpt-oss": (
        "gpt_oss",
        {
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "sliding_window": 9,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "truncate": False, **YARN},
        },
        {**WINDOW, **YARN_VALUES, "expert_feed_forward_length": INNER},
    ),
    "gemma": ("gemma", {}, {}),
    "gemma2": (
        "gemma2",
        {"sliding_window": 9, "query_pre_attn_scalar": 16},
        {**WINDOW, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "granite": ("granite", GRANITE, GRANITE_VALUES),
    "smollm3": ("smollm3", FOUR, FOUR_BLOCKS),
    "olmo2": ("olmo3", {**FOUR, "sliding_window": 9}, {**FOUR_BLOCKS, **WINDOW}),
    "starcoder2": ("starcoder2", {"norm_epsilon": 2**-17}, LAYER_NORM),
    "command-r": (
        "cohere",
        {"layer_norm_eps": 2**-17, "logit_scale": 0.25},
        {**LAYER_NORM, "logit_scale": 0.25},
    ),
    "cohere2": (
        "cohere2",
        {**FOUR, "sliding_window": 9, "layer_norm_eps": 2**-17, "logit_scale": 0.25},
        {**FOUR_BLOCKS, **WINDOW, **LAYER_NORM, "logit_scale": 0.25},
    ),
    "command-r of heads with norms": (
        "cohere",
        {"layer_norm_eps": 2**-17, "logit_scale": 0.25, "use_qk_norm": True},
        {**LAYER_NORM, "logit_scale": 0.25},
    ),
    "exaone4": ("exaone4", {**FOUR, "sliding_window": 9}, {**FOUR_BLOCKS, **WINDOW}),
    "exaone4 without a window": (
        "exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * LAYERS},
        {},
    ),
    "gpt2": (
        "gpt2",
        {"num_key_value_heads": 4, "layer_norm_epsilon": 2**-17},
        {
            **LAYER_NORM,
            "feed_forward_length": 4 * WIDTH,
            **{f"attention__{name}": None for name in OF_HEADS},
            "rope__freq_base": None,
        },
    ),
    **{
        f"gptneox{blocks}": (
            "gpt_neox",
            {"num_key_value_heads": 4, "layer_norm_eps": 2**-17, "use_parallel_residual": parallel},
            {
                **LAYER_NORM,
                "attention__head_count_kv": None,
                "rope__dimension_count": 4,
                "use_parallel_residual": parallel,
            },
        )
        for blocks, parallel in (("", True), (" of blocks in turn", False))
    },
    "phi2": ("phi", {"layer_norm_eps": 2**-17}, {**LAYER_NORM, "rope__dimension_count": 8}),
    "stablelm": (
        "stablelm",
        {"layer_norm_eps": 2**-17, "use_qkv_bias": True},
        # As the conversion writes it where a configuration does not say.
        {**LAYER_NORM, "rope__dimension_count": 4, "use_parallel_residual": True},
    ),
    "stablelm of heads with norms": (
        "stablelm",
        {"layer_norm_eps": 2**-17, "use_parallel_residual": True, "qk_layernorm": True},
        {**LAYER_NORM, "rope__dimension_count": 4, "use_parallel_residual": True},
    ),
    "lfm2": (
        "lfm2",
        {**FOUR, "norm_eps": 2**-17},
        {
            **FOUR_BLOCKS,
            "feed_forward_length": 44,
            "attention__head_count_kv": [0, 0, 2, 0],
            "shortconv__l_cache": 5,
        },
    ),
    "qwen35": ("qwen3_5_text", DELTA, DELTA_VALUES),
    "qwen35moe": (
        "qwen3_5_moe_text",
        {**DELTA, **OF_EXPERTS, "shared_expert_intermediate_size": SHARED},
        {**DELTA_VALUES, "feed_forward_length": None, **OF_SHARED},
    ),
    "qwen3next": (
        "qwen3_next",
        {**DELTA, **OF_EXPERTS, "shared_expert_intermediate_size": SHARED},
        {**DELTA_VALUES, "block_count": 4, "nextn_predict_layers": None, **OF_SHARED},
    ),
    "qwen2vl": ("qwen2", {}, {"rope__dimension_sections": [2, 3, 3, 0]}),
    "qwen3vl": ("qwen3", {}, {"rope__dimension_sections": [3, 3, 2, 0]}),
    "qwen3vlmoe": ("qwen3_moe", {**OF_EXPERTS, "norm_topk_prob": True}, {}),
    "mistral3": (
        "ministral3",
        {
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, **YARN}
            | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5}
        },
        {"expert_count": None, **YARN_VALUES}
        | {"rope__scaling__yarn_log_multiplier": 1.0, "attention__temperature_scale": 0.5},
    ),
    "granitemoe": ("granitemoe", {**GRANITE, **OF_LOCAL}, GRANITE_VALUES),
    "granitemoe with a shared expert": (
        "granitemoeshared",
        {**GRANITE, **OF_LOCAL, "shared_intermediate_size": SHARED},
        {**GRANITE_VALUES, **OF_SHARED},
    ),
    "granitehybrid": (
        "granitemoehybrid",
        {
            **GRANITE,
            **MAMBA,
            "num_local_experts": 0,
            "intermediate_size": SHARED,
            "shared_intermediate_size": SHARED,
        },
        {**GRANITE_VALUES, **MAMBA_VALUES, "expert_count": 0, "feed_forward_length": SHARED},
    ),
    "granitehybrid with experts": (
        "granitemoehybrid",
        {**GRANITE, **MAMBA, **OF_LOCAL, "shared_intermediate_size": SHARED},
        {**GRANITE_VALUES, **MAMBA_VALUES, **OF_SHARED},
    ),
    "ernie4_5": ("ernie4_5", {}, {}),
    "seed_oss": ("seed_oss", {}, {}),
    "arcee": ("arcee", {}, {}),
    "nemotron": ("nemotron", {"norm_eps": 2**-17}, {**LAYER_NORM, "rope__dimension_count": 8}),
    "nemotron with biases": (
        "nemotron",
        {"norm_eps": 2**-17, "mlp_bias": True, "attention_bias": True},
        {**LAYER_NORM, "rope__dimension_count": 8},
    ),
    "jais2": ("jais2", {"layer_norm_eps": 2**-17}, LAYER_NORM),
    "olmo": (
        "olmo",
        {"clip_qkv": 0.5},
        {"attention__layer_norm_epsilon": 1e-5, "attention__clamp_kqv": 0.5},
    ),
    "olmo without a limit": ("olmo", {}, {"attention__layer_norm_epsilon": 1e-5}),
    "olmoe": (
        "olmoe",
        {"num_experts": EXPERTS, "num_experts_per_tok": 2},
        {"expert_feed_forward_length": None},
    ),
    "starcoder": (
        "gpt_bigcode",
        {"layer_norm_epsilon": 2**-17},
        {**LAYER_NORM, "feed_forward_length": 4 * WIDTH, "attention__head_count_kv": 1}
        | {"rope__freq_base": None},
    ),
    "falcon": (
        "falcon",
        {"layer_norm_epsilon": 2**-17, "max_position_embeddings": 64},
        {**LAYER_NORM, "feed_forward_length": 4 * WIDTH, "attention__head_count_kv": 1},
    ),
    "falcon with norms of its blocks": (
        "falcon",
        {
            "layer_norm_epsilon": 2**-17,
            "max_position_embeddings": 64,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
        },
        {**LAYER_NORM, "feed_forward_length": 4 * WIDTH},
    ),
    "gemma4 whose layers share caches": (
        "gemma4_text",
        {
            **FOUR,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 1,
            "use_double_wide_mlp": True,
            "sliding_window": 9,
            "global_head_dim": 24,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB,
            "final_logit_softcapping": 30.0,
        },
        {
            **GEMMA_4,
            "expert_count": None,
            "attention__shared_kv_layers": 1,
            "embedding_length_per_layer_input": 8,
            "feed_forward_length": [INNER, INNER, INNER, 2 * INNER],
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma4 with experts whose keys are values": (
        "gemma4_text",
        {
            **FOUR,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 0,
            "use_double_wide_mlp": False,
            "sliding_window": 9,
            "global_head_dim": 24,
            "final_logit_softcapping": None,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": EXPERTS,
            "top_k_experts": 2,
            "moe_intermediate_size": EXPERT_INNER,
        },
        {**GEMMA_4, "attention__head_count_kv": [2, 1, 2, 1]},
    ),
}
MODELS["qwen3next of an older conversion"] = MODELS["qwen3next"]
ARCHITECTURES = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
RENAMED = {
    "dt_bias": "dt_proj.bias",
    "sinks": "sinks.weight",
    "moe.router.weight": "moe.router.layer.weight",
    "layer_scalar": "layer_scalar.weight",
    "router.scale": "router.proj.scale",
    "router.per_expert_scale": "experts.down_proj.scale",
    "experts.gate_up_proj": "experts.gate_up_proj.weight",
    "experts.down_proj": "experts.down_proj.weight",
}
"""Endings that the conversion renames before it looks a tensor up."""


OF_EXPERTS_ALONE = ("mlp.experts", "block_sparse_moe.experts")
LESS_ONE = ("gemma", "gemma2", "gemma3", "nemotron", "qwen35", "qwen35moe", "qwen3next")
IN_TURNS = ("qwen35", "qwen35moe")
# As Llama's. Granite 4's heads as well, which do not turn, so that any order is right.
PERMUTED = ("llama", "granite", "granitemoe", "smollm3", "mistral3", "arcee", "olmo")


def converted(architecture, model):
    """The tensors of a file, as llama.cpp's conversion names and orders them."""
    names = gguf.get_tensor_name_map(ARCHITECTURES[architecture], n_blocks=4)
    arrays = {}
    for name, tensor in stacked(model.state_dict()).items():
        array, (module, _, leaf) = tensor.float().numpy(), name.rpartition(".")
        if module.endswith(OF_EXPERTS_ALONE):
            block = module.split(".")[2]
            parts = experts(leaf, array, architecture)
            arrays |= {f"blk.{block}.{ours}": part for ours, part in parts}
        elif module.endswith("shared_mlp.input_linear"):
            block = module.split(".")[2]
            for half, part in zip(("gate", "up"), np.split(array, 2), strict=True):
                arrays[f"blk.{block}.ffn_{half}_shexp.weight"] = np.ascontiguousarray(part)
        elif name != "lm_head.weight" or not model.config.tie_word_embeddings:
            for old, new in RENAMED.items():
                name = name.removesuffix(old) + new if name.endswith(old) else name
            whole = names.get_name(name, (".weight", ".bias", ".scale"))
            ours = re.sub(r"^blk\.\d+\.|\.(weight|bias)$", "", whole)
            array = array[0] if ours == "ffn_gate_inp_shexp" else array
            less_one = architecture in LESS_ONE and "norm" in ours and ours != "ssm_norm"
            array = array + 1 if less_one and leaf == "weight" else array
            if architecture == "falcon" and ours == "attn_qkv":
                array = apart(array, 4, model.config)
            arrays[whole] = reordered(ours, array, architecture)
    if architecture in IN_TURNS:  # a layer that predicts further tokens, which is not read
        arrays["blk.4.attn_norm.weight"] = arrays["output_norm.weight"]
    if architecture == "granitehybrid" and not model.config.num_local_experts:
        return {name.replace("_shexp", ""): array for name, array in arrays.items()}
    if architecture in PERMUTED:
        return {name: permuted(name, array) for name, array in arrays.items()}
    return arrays


def apart(array, heads, config):
    """Queries before keys before values, of which Falcon's files have those of a key together."""
    keys = config.num_kv_heads if config.new_decoder_architecture else 1
    groups = array.reshape(keys, heads // keys + 2, -1, *array.shape[1:])
    parts = groups[:, :-2], groups[:, -2:-1], groups[:, -1:]
    return np.concatenate([part.reshape(-1, *array.shape[1:]) for part in parts])


def newly_converted(arrays):
    """A Qwen 3 Next's tensors with what is convolved apart from gates, as newer files have them."""
    newer = {}
    for name, array in arrays.items():
        if name.endswith("ssm_in.weight"):
            query, key, value, gate = np.split(array.reshape(2, 48, -1), [8, 16, 32], axis=1)
            parts = {"attn_qkv": (query, key, value), "attn_gate": (gate,)}
            for ours, some in parts.items():
                rows = [part.reshape(-1, array.shape[1]) for part in some]
                newer[name.replace("ssm_in", ours)] = np.concatenate(rows)
        else:
            newer[name] = array
    return newer


def stacked(state):
    """Return norms of which each head has one, as StableLM has them, in one tensor."""
    heads = [name for name in state if ".norms." in name]
    whole = {name: tensor for name, tensor in state.items() if name not in heads}
    for layer in dict.fromkeys(name.partition(".norms.")[0] for name in heads):
        parts = [state[name] for name in heads if name.startswith(layer)]
        whole[f"{layer}.weight"] = torch.stack(parts)
    return whole


def reordered(name, array, architecture):
    if architecture == "gpt2" and array.ndim == 2 and "embd" not in name:
        return array.T
    if architecture == "gptneox" and name == "attn_qkv":
        by_head = array.reshape(4, 3, -1, *array.shape[1:])
        return by_head.swapaxes(0, 1).reshape(array.shape)
    if name in ("shortconv.conv", "ssm_conv1d") and array.ndim > 1:
        array = array[:, 0]
    if name == "ssm_a":
        array = -np.exp(array)
    if architecture == "granitehybrid" and name in ("ssm_a", "ssm_d", "ssm_norm"):
        array = array.reshape(*((2, -1) if name == "ssm_norm" else (-1, 1)))
    if architecture not in IN_TURNS:
        return array
    if name == "ssm_out":
        return in_turns(array.T, 8).T
    if name in ("attn_qkv", "ssm_conv1d") and len(array) == 64:
        return np.concatenate([array[:32], in_turns(array[32:], 8)])
    if name in ("ssm_a", "ssm_dt", "ssm_alpha", "ssm_beta"):
        return in_turns(array, 1)
    return in_turns(array, 8) if name == "attn_gate" else array


def in_turns(rows, size):
    """Return the heads of values, of which each of two keys has two, the first ones first."""
    heads = rows.reshape(2, 2, size, *rows.shape[1:])
    return heads.swapaxes(0, 1).reshape(rows.shape)


def experts(leaf, array, architecture):
    """Yield gates and what they multiply apart, [experts, outputs, inputs]."""
    kind = "bias" if leaf.endswith("_bias") else "weight"
    in_turns = architecture == "gpt-oss"
    if in_turns and kind == "weight":
        array = array.swapaxes(1, 2)
    if leaf.startswith("down"):
        yield f"ffn_down_exps.{kind}", array
        return
    parts = (array[:, 0::2], array[:, 1::2]) if in_turns else np.split(array, 2, axis=1)
    for name, part in zip(("gate", "up"), parts, strict=True):
        yield f"ffn_{name}_exps.{kind}", np.ascontiguousarray(part)


@pytest.mark.parametrize("model_name", MODELS)
def test_a_file_is_the_folder_that_it_was_made_from(model_name, tmp_path):
    architecture = model_name.split()[0]
    kind, settings, more = MODELS[model_name]
    model = random_decoder(kind, **{**SIZES, **settings})
    folder = open_checkpoint(save_decoder(model, tmp_path / "folder"))
    values = {
        "attention__layer_norm_rms_epsilon": 2**-17,
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "expert_count": EXPERTS,
        "expert_used_count": 2,
        "expert_feed_forward_length": EXPERT_INNER,
        **more,
    }
    if rotary := folder.dimensions.rotary or folder.dimensions.window_rotary:
        values["rope__freq_base"] = rotary.base
    arrays = converted(architecture, model)
    if model_name == "qwen3next":
        arrays = newly_converted(arrays)
    if architecture == "gemma4":
        arrays["rope_freqs.weight"] = np.array([1.0] * 3 + [1e30] * 9, np.float32)
    if architecture == "phi3":
        arrays |= {
            f"rope_factors_{name}.weight": np.array(divisors, np.float32)
            for name, divisors in (("short", SHORT), ("long", LONG))
        }
    path = tmp_path / "model.gguf"
    write(path, architecture, sizes(architecture, **values) | vocabulary(), arrays)
    file = open_checkpoint(path)
    # Files have epsilons in single precision.
    epsilon = float(np.float32(folder.dimensions.norm_eps))
    expected = replace(folder.dimensions, architecture=architecture, norm_eps=epsilon)
    assert file.dimensions == expected
    assert set(file.tensors) == set(folder.tensors)
    for name, tensor in folder.tensors.items():
        # Of steps, files have the exponentials.
        tolerance = 1e-6 if name.endswith(".decay") else 0
        np.testing.assert_allclose(
            file.tensors[name], tensor, rtol=tolerance, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"attention__sliding_window_pattern": [True]}, "pattern is not one for each"),
        ({"attention__sliding_window_pattern": None}, "pattern is not one for each"),
        ({"attention__sliding_window": 0}, "sliding_window must be a whole number"),
        ({"attention__shared_kv_layers": 3}, "leave a kind of layers without any"),
        ({"attention__shared_kv_layers": 9}, "shared_kv_layers must be a whole number"),
        ({"attention__key_length_swa": 7, "rope__dimension_count_swa": None}, "must be even"),
        ({"rope__dimension_count_swa": 8}, "dimension_count_swa must be 16"),
        ({"attention__head_count_kv": [3, 1, 2, 1]}, "not a multiple of 3 kv_heads"),
        ({"feed_forward_length": [8, 8]}, "feed_forward_length is not one for each"),
        ({"feed_forward_length": [8, 8, 0, 8]}, "feed_forward_length must be a whole number"),
        ({"block_count": 1000}, "block_count must be a whole number"),
        ({"expert_count": 2}, "expert_used_count is missing"),
    ],
    ids=str,
)
def test_a_gemma_4_whose_values_contradict_one_another_is_one_line(values, words, tmp_path):
    values = sizes("gemma4", **{**GEMMA_4, **values}) | vocabulary()
    path = write(tmp_path / "model.gguf", "gemma4", values, tensors())
    assert words in one_line(KvcastError, open_checkpoint, path)
