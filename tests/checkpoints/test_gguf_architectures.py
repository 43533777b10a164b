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
from kvcast.checkpoints.gguf.file import read_gguf
from kvcast.checkpoints.source import open_checkpoint
from kvcast.errors import KvcastError
from kvcast.spec.stored_matrices import Encoding

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
MSCALE = {"mscale": 1.25, "mscale_all_dim": 1.25}
LATENTS = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "head_dim": 8,
    "v_head_dim": 16,
}
LATENT_VALUES = {
    "attention__head_count_kv": 4,
    "attention__key_length": 20,
    "attention__kv_lora_rank": 32,
    "attention__q_lora_rank": 20,
    "rope__dimension_count": 8,
    "expert_count": None,
}
SHARED_LATENT_VALUES = {
    **LATENT_VALUES,
    "attention__head_count_kv": 1,
    "attention__key_length": 40,
    "attention__value_length": 32,
    "attention__key_length_mla": 20,
    "attention__value_length_mla": 16,
}
QUERIES_OF_MISTRAL_4 = {
    **{"rope_type": "yarn", "rope_theta": 1e4, **YARN},
    "llama_4_scaling_beta": 0.5,
}
MISTRAL_4_VALUES = {
    **YARN_VALUES,
    "attention__temperature_scale": 0.5,
    "attention__temperature_length": 16,
}
LATENT_EXPERTS = {
    **LATENTS,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": EXPERT_INNER,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
}
LATENT_EXPERT_VALUES = {
    **SHARED_LATENT_VALUES,
    "leading_dense_block_count": 1,
    "expert_count": 4,
    "expert_shared_count": 2,
    "expert_group_count": 2,
    "expert_group_used_count": 1,
    "expert_weights_scale": 2.5,
}
GROUPED = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": EXPERT_INNER,
    "n_group": 3,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
}
GROUPED_VALUES = {
    "expert_count": 6,
    "leading_dense_block_count": 1,
    "expert_shared_count": 2,
    "expert_group_count": 3,
    "expert_group_used_count": 2,
    "expert_weights_scale": 2.5,
    "expert_weights_norm": True,
}
INDEX = {
    **FOUR,
    **LATENT_EXPERTS,
    "norm_topk_prob": True,
    "index_n_heads": 4,
    "index_head_dim": 16,
    "index_topk": 3,
    "mlp_layer_types": ["dense", *["sparse"] * 3],
}
INDEX_VALUES = {
    **LATENT_EXPERT_VALUES,
    "block_count": 5,
    "nextn_predict_layers": 1,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "attention__indexer__head_count": 4,
    "attention__indexer__key_length": 16,
    "attention__indexer__top_k": 3,
}
FULL_SHARED = {"indexer_types": ["full", "shared", "full", "shared"]}
KIMI = {
    **LATENTS,
    **FOUR,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "q_lora_rank": None,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": EXPERT_INNER,
    "routed_scaling_factor": 2.5,
    "mlp_layer_types": ["dense", *["sparse"] * 3],
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "linear_conv_kernel_dim": 3,
}
KIMI_VALUES = {
    **SHARED_LATENT_VALUES,
    **FOUR_BLOCKS,
    "attention__head_count_kv": [0, 1, 0, 1],
    "attention__q_lora_rank": None,
    "attention__value_length": 72,
    "expert_count": EXPERTS,
    "expert_shared_count": 1,
    "expert_gating_func": 2,
    "expert_weights_scale": 2.5,
    "leading_dense_block_count": 1,
    "kda__head_dim": 8,
    "ssm__conv_kernel": 3,
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
    "nemotron_h": (
        "nemotron_h",
        {
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
            "num_key_value_heads": 2,
            "mamba_num_heads": 4,
            "mamba_head_dim": 8,
            "n_groups": 2,
            "ssm_state_size": 8,
            "conv_kernel": 3,
            "layer_norm_epsilon": 2**-17,
        },
        {
            **MAMBA_VALUES,
            **FOUR_BLOCKS,
            "attention__head_count_kv": [0, 0, 2, 0],
            "feed_forward_length": [0, INNER, 0, INNER],
            "expert_count": None,
            "expert_feed_forward_length": None,
            "ssm__inner_size": 32,
        },
    ),
    **{
        f"falcon-h1{norms}": (
            "falcon_h1",
            {
                "mamba_d_ssm": 32,
                "mamba_n_heads": 4,
                "mamba_n_groups": 2,
                "mamba_d_state": 8,
                "mamba_d_conv": 3,
                "mamba_rms_norm": normed,
                "mamba_norm_before_gate": False,
            },
            {
                **{name: value for name, value in MAMBA_VALUES.items() if name.startswith("ssm")},
                "ssm__inner_size": 32,
            },
        )
        for norms, normed in (("", True), (" without norms of states", False))
    },
    "hunyuan-dense": (
        "hunyuan_v1_dense",
        {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0}
            | {"alpha": 1.0}
        },
        {"rope__scaling__type": "none", "rope__scaling__factor": 1.0},
    ),
    "apertus": ("apertus", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, {}),
    "ernie4_5": ("ernie4_5", {}, {}),
    "ernie4_5-moe": (
        "ernie4_5_moe",
        {
            **FOUR,
            "moe_num_experts": EXPERTS,
            "moe_k": 2,
            "moe_intermediate_size": EXPERT_INNER,
            "moe_num_shared_experts": 2,
            "moe_layer_interval": 2,
            "moe_layer_start_index": 2,
        },
        {
            **FOUR_BLOCKS,
            "interleave_moe_layer_step": 2,
            "leading_dense_block_count": 2,
            "expert_shared_count": 2,
        },
    ),
    "glm4moe": (
        "glm4_moe",
        {**GROUPED, "n_shared_experts": 2, "use_qk_norm": True, "attention_bias": True},
        {**GROUPED_VALUES, "rope__dimension_count": 8, "expert_gating_func": 2}
        | {"block_count": 3, "nextn_predict_layers": 1},
    ),
    "glm4moe without norms of heads": (
        "glm4_moe",
        {**GROUPED, "n_shared_experts": 2, "norm_topk_prob": False},
        {**GROUPED_VALUES, "rope__dimension_count": 8, "expert_weights_norm": False}
        | {"block_count": 3, "nextn_predict_layers": 1},
    ),
    "dots1": (
        "dots1",
        {**GROUPED, "first_k_dense_replace": 1, "norm_topk_prob": True, "n_shared_experts": 2}
        | {"sliding_window": None, "layer_types": ["full_attention"] * LAYERS},
        GROUPED_VALUES,
    ),
    "minimax-m2": (
        "minimax_m2",
        {**OF_LOCAL, "rotary_dim": 8},
        {"rope__dimension_count": 8, "expert_feed_forward_length": INNER, "expert_gating_func": 2},
    ),
    "afmoe": (
        "afmoe",
        {
            **FOUR,
            **OF_EXPERTS,
            "num_shared_experts": 2,
            "route_scale": 2.5,
            "sliding_window": 9,
            "mup_enabled": True,
        },
        {
            **FOUR_BLOCKS,
            **WINDOW,
            "leading_dense_block_count": 1,
            "expert_shared_count": 2,
            "expert_weights_scale": 2.5,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
        },
    ),
    "lfm2moe": (
        "lfm2_moe",
        {
            **FOUR,
            **OF_EXPERTS,
            "norm_eps": 2**-17,
            "num_dense_layers": 1,
            "layer_types": ["conv", "conv", "full_attention", "conv"],
            "conv_L_cache": 5,
        },
        {
            **FOUR_BLOCKS,
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,
            "attention__head_count_kv": [0, 0, 2, 0],
            "shortconv__l_cache": 5,
        },
    ),
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
    "minicpm3": ("minicpm3", LATENTS, {**LATENT_VALUES, "attention__value_length": None}),
    "deepseek2 without experts": (
        "youtu",
        {
            **LATENTS,
            "rope_parameters": {"rope_type": "yarn", **YARN, "rope_theta": 500.0, **MSCALE},
        },
        {**SHARED_LATENT_VALUES, **YARN_VALUES, "rope__scaling__yarn_log_multiplier": 0.125},
    ),
    "deepseek2 without a rank of queries": (
        "youtu",
        {**LATENTS, "q_lora_rank": None},
        {**SHARED_LATENT_VALUES, "attention__q_lora_rank": None},
    ),
    "deepseek2 of an older conversion": ("youtu", LATENTS, LATENT_VALUES),
    "deepseek2": (
        "deepseek_v2",
        {**LATENT_EXPERTS, "topk_method": "group_limited_greedy"},
        LATENT_EXPERT_VALUES,
    ),
    "deepseek2 with sigmoids": (
        "deepseek_v3",
        {**LATENT_EXPERTS, "norm_topk_prob": True, "q_lora_rank": None},
        {**LATENT_EXPERT_VALUES, "expert_gating_func": 2, "expert_weights_norm": True}
        | {"attention__q_lora_rank": None},
    ),
    "deepseek2 with sigmoids that it does not name": (
        "glm4_moe_lite",
        {**LATENT_EXPERTS, "mlp_layer_types": ["dense", "sparse"], "norm_topk_prob": False},
        LATENT_EXPERT_VALUES,
    ),
    "deepseek2 as Mistral Large 3": (
        "mistral4",
        {**LATENT_EXPERTS, "head_dim": 20, "norm_topk_prob": True}
        | {"rope_parameters": {**QUERIES_OF_MISTRAL_4, **MSCALE, "mscale": 1.25}},
        {**LATENT_EXPERT_VALUES, **MISTRAL_4_VALUES, "expert_weights_norm": True}
        | {"rope__scaling__yarn_log_multiplier": 0.125},
    ),
    "mistral4": (
        "mistral4",
        {**LATENT_EXPERTS, "head_dim": 20, "norm_topk_prob": False, "first_k_dense_replace": 0}
        | {"rope_parameters": {**QUERIES_OF_MISTRAL_4, **MSCALE, "mscale": 1.0}},
        {**LATENT_EXPERT_VALUES, **MISTRAL_4_VALUES, "leading_dense_block_count": 0}
        | {"rope__scaling__yarn_log_multiplier": 0.125},
    ),
    "deepseek32": (
        "deepseek_v32",
        {
            **INDEX,
            "rope_parameters": {
                **{"rope_type": "yarn", **YARN, "rope_theta": 500.0},
                **{"mscale": 1.0, "mscale_all_dim": 1.25},
            },
        },
        {**INDEX_VALUES, **YARN_VALUES, "rope__scaling__yarn_log_multiplier": 0.125},
    ),
    "glm-dsa": (
        "glm_moe_dsa",
        {**INDEX, **FULL_SHARED},
        {**INDEX_VALUES, "attention__indexer__types": [True, False, True, False]},
    ),
    "glm-dsa of before types of layers": ("glm_moe_dsa", INDEX, INDEX_VALUES),
    "glm-dsa of 5.2 without types of layers": (
        "glm_moe_dsa",
        {**INDEX, "indexer_types": ["full"] * 3 + ["shared"], "max_position_embeddings": 1 << 20},
        {**INDEX_VALUES, "context_length": 1 << 20},
    ),
    "kimi-linear": ("kimi_linear", KIMI, KIMI_VALUES),
    "kimi-linear with a rank of queries": (
        "kimi_linear",
        {**KIMI, "q_lora_rank": 20},
        {**KIMI_VALUES, "attention__q_lora_rank": 20},
    ),
}
MODELS["qwen3next of an older conversion"] = MODELS["qwen3next"]
ARCHITECTURES = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
# llama.cpp names its tensors alike; gguf 0.19.0 lacks it.
ARCHITECTURES["deepseek32"] = ARCHITECTURES["glm-dsa"]
RENAMED = {
    "gate.moe_statics.e_score_correction_bias": "moe_statics.e_score_correction.bias",
    "e_score_correction_bias": "e_score_correction.bias",
    "expert_bias": "expert_bias.bias",
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


OF_EXPERTS_ALONE = ("mlp.experts", "block_sparse_moe.experts", "feed_forward.experts")
LESS_ONE = ("gemma", "gemma2", "gemma3", "nemotron", "qwen35", "qwen35moe", "qwen3next")
IN_TURNS = ("qwen35", "qwen35moe")
PREDICTING = {**dict.fromkeys((*IN_TURNS, "deepseek32", "glm-dsa"), 4), "glm4moe": 2}
"""Of some files, a layer that predicts further tokens, which is not read."""
# As Llama's. Granite 4's heads as well, which do not turn, so that any order is right.
PERMUTED = ("llama", "granite", "granitemoe", "smollm3", "mistral3", "arcee", "olmo")


def converted(architecture, model):
    """The tensors of a file, as llama.cpp's conversion names and orders them."""
    names = gguf.get_tensor_name_map(ARCHITECTURES[architecture], n_blocks=4)
    arrays = {}
    state = as_published(stacked(model.state_dict()))
    for name, tensor in state.items():
        if architecture == "nemotron_h":
            name = re.sub("^model.", "backbone.", name)
        array, (module, _, leaf) = tensor.float().numpy(), name.rpartition(".")
        if module.endswith("act_fn"):
            continue
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
    if last := PREDICTING.get(architecture):
        arrays[f"blk.{last}.attn_norm.weight"] = arrays["output_norm.weight"]
    if architecture == "granitehybrid" and not model.config.num_local_experts:
        return {name.replace("_shexp", ""): array for name, array in arrays.items()}
    if architecture in PERMUTED:
        return {name: permuted(name, array) for name, array in arrays.items()}
    return arrays


def xielu(model):
    """Return the activation parameters, which files have as metadata, not tensors."""
    activations = [layer.mlp.act_fn for layer in model.model.layers]
    return {
        f"xielu.{name}": [getattr(activation, name).item() for activation in activations]
        for name in ("alpha_n", "alpha_p", "beta", "eps")
    }


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


def with_stacks_of_heads(arrays, plain=12):
    """Attention to latents with the matrices that they are multiplied with by head."""
    newer = {}
    for name, array in arrays.items():
        if ".attn_kv_b." in name:
            keys, values = np.split(array.reshape(4, -1, array.shape[1]), [plain], axis=1)
            newer[name.replace("kv_b", "k_b")] = np.ascontiguousarray(keys.swapaxes(1, 2))
            newer[name.replace("kv_b", "v_b")] = np.ascontiguousarray(values)
        else:
            newer[name] = array
    return newer


def as_published(state):
    """Return Kimi Linear's tensors as its files have them."""
    parts = {}
    for name, tensor in state.items():
        layer, is_kernel, _ = name.partition(".self_attn.conv1d.weight")
        kernels = tensor[None].chunk(3, 1) if is_kernel else ()
        parts |= {
            f"{layer}.self_attn.{x}_conv1d.weight": kernel
            for x, kernel in zip("qkv", kernels, strict=bool(is_kernel))
        }
        if not is_kernel:
            parts[name.replace(".forget_gate.", ".")] = tensor
    return parts


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
    if architecture in ("granitehybrid", "nemotron_h", "falcon-h1") and name in (
        "ssm_a",
        "ssm_d",
        "ssm_norm",
    ):
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
    if architecture == "mistral4" and not leaf.startswith("down"):
        yield "ffn_gate_up_exps.weight", array
        return
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
    if "attention__key_length_mla" in more:
        arrays = with_stacks_of_heads(arrays)
    if architecture == "gemma4":
        arrays["rope_freqs.weight"] = np.array([1.0] * 3 + [1e30] * 9, np.float32)
    if architecture == "phi3":
        arrays |= {
            f"rope_factors_{name}.weight": np.array(divisors, np.float32)
            for name, divisors in (("short", SHORT), ("long", LONG))
        }
    path = tmp_path / "model.gguf"
    metadata = sizes(architecture, **values) | vocabulary()
    if architecture == "apertus":
        metadata |= xielu(model)
    write(path, architecture, metadata, arrays)
    file = open_checkpoint(path)
    # Files have epsilons in single precision.
    epsilon = file.dimensions.norm_eps
    assert epsilon == pytest.approx(folder.dimensions.norm_eps, rel=1e-6)
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


def test_codes_are_kept_of_stacks_of_values_and_not_of_keys_which_are_transposed(tmp_path):
    model = random_decoder("youtu", **{**SIZES, **LATENTS, "qk_nope_head_dim": 32})
    values = {**SHARED_LATENT_VALUES, "attention__key_length_mla": 40}
    values |= {"embedding_length": WIDTH, "feed_forward_length": INNER}
    path = write(
        tmp_path / "model.gguf",
        "deepseek2",
        sizes("deepseek2", **values) | vocabulary(),
        with_stacks_of_heads(converted("deepseek2", model), 32),
        {"_k_b.weight": "Q8_0", "_v_b.weight": "Q4_0"},
    )
    ours, theirs = open_checkpoint(path).tensors, read_gguf(path).tensors
    keys, stored = (theirs[f"blk.1.attn_{x}_b.weight"].stored().read() for x in "kv")
    key_b, value_b = (f"decoder.layers.1.attention.{name}_b" for name in ("key", "value"))
    np.testing.assert_array_equal(ours[key_b], keys.swapaxes(1, 2))
    assert ours.rows_of(key_b) is ours.blocks_of(key_b) is None
    np.testing.assert_array_equal(ours[value_b], stored)
    assert ours.rows_of(value_b).kinds() == {Encoding.Q4_0}
    np.testing.assert_array_equal(ours.blocks_of(value_b).dequantize(), stored.reshape(-1, 32))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"attention__head_count_kv": 2}, "head_count_kv must be 1 with these latents"),
        ({"attention__key_length": 39}, "key_length must be 40 with these latents"),
        ({"attention__value_length": 16}, "value_length must be 32 with these latents"),
        ({"attention__value_length_mla": None}, "value_length_mla is missing"),
        ({"attention__kv_lora_rank": None}, "kv_lora_rank is missing"),
        ({"rope__dimension_count": None}, "dimension_count is missing"),
        (
            {"attention__key_length_mla": 8},
            "heads have 8 channels, of which 8 are rotated and none are not",
        ),
        ({"attention__key_length_mla": None}, "head_count_kv must be 4 with these latents"),
        (
            {**YARN_VALUES, "rope__scaling__yarn_attn_factor": 2.0},
            "attention factors of YaRN with latents are not supported",
        ),
        (
            {**YARN_VALUES, "attention__temperature_length": 8},
            "temperature_length must be 16, as trained",
        ),
        ({"expert_count": 2, "expert_gating_func": 3}, "expert_gating_func must be"),
        ({"expert_count": 2}, "expert_used_count is missing"),
    ],
    ids=str,
)
def test_latents_whose_values_contradict_one_another_are_one_line(values, words, tmp_path):
    values = sizes("deepseek2", **{**SHARED_LATENT_VALUES, **values}) | vocabulary()
    path = write(tmp_path / "model.gguf", "deepseek2", values, tensors())
    assert words in one_line(KvcastError, open_checkpoint, path)


@pytest.mark.parametrize(
    ("architecture", "values", "words"),
    [
        ("apertus", {}, "xielu.alpha_n is not one for each of 2 layers"),
        ("nemotron_h", {"attention__head_count_kv": [0, 2]}, "are not one for each block"),
        (
            "nemotron_h",
            {"attention__head_count_kv": [0, 2], "feed_forward_length": [8, 0]},
            "follows no mixer is not supported",
        ),
    ],
    ids=str,
)
def test_blocks_and_activations_without_their_values_are_one_line(
    architecture, values, words, tmp_path
):
    metadata = sizes(architecture, **values) | vocabulary()
    path = write(tmp_path / "model.gguf", architecture, metadata, tensors())
    assert words in one_line(KvcastError, open_checkpoint, path)
