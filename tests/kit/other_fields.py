"""Fields common to most types, which the last case of each type also varies."""

from typing import Any

from kit.decoder_cases import FASTER, WINDOW

_PARTIAL = {**FASTER, "partial_rotary_factor": 0.5}
_EPSILON = {"rms_norm_eps": 0.01}
_TIED, _APART = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
_GELU = {"hidden_act": "gelu"}
_USUAL = {**_EPSILON, **_GELU, **_TIED, "rope_parameters": FASTER}
_OF_EXPERTS = {**_EPSILON, **_TIED, "rope_parameters": FASTER}
_OF_LATENTS = {**_OF_EXPERTS, "routed_scaling_factor": 1.5}
_WINDOWS = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
_OF_GEMMA = {**_EPSILON, **_APART, "attention_bias": True}
OTHER_FIELDS: dict[str, dict[str, Any]] = {
    "mistral": _USUAL,
    "ministral": _USUAL,
    "ministral3": {**_EPSILON, **_GELU, **_TIED, "sliding_window": WINDOW},
    "mixtral": {**_OF_EXPERTS, "num_experts_per_tok": 3, "sliding_window": WINDOW},
    "llama": _EPSILON,
    "qwen2": _USUAL,
    "qwen2_vl": {**_EPSILON, **_GELU},
    "qwen2_5_vl": _WINDOWS,
    "qwen3": {**_USUAL, **_WINDOWS, "attention_bias": True},
    "qwen2_moe": {**_OF_EXPERTS, "decoder_sparse_step": 2},
    "qwen3_moe": {**_OF_EXPERTS, "mlp_only_layers": [1]},
    "qwen3_next": {**_OF_EXPERTS, "rope_parameters": _PARTIAL, "num_key_value_heads": 1},
    "qwen3_5_text": {**_EPSILON, **_TIED, "rope_parameters": _PARTIAL},
    "qwen3_5_moe_text": {**_OF_EXPERTS, "rope_parameters": _PARTIAL, "num_key_value_heads": 1},
    "youtu": {**_USUAL, "tie_word_embeddings": False, "rope_interleave": False},
    "minicpm3": {**_USUAL, "tie_word_embeddings": False},
    "deepseek_v2": {**_OF_LATENTS, "n_shared_experts": 1},
    "deepseek_v3": {**_OF_LATENTS, "rope_interleave": False},
    "axk1": {**_OF_LATENTS, "rope_interleave": False},
    "glm4_moe_lite": {**_OF_LATENTS, "rope_interleave": False, "norm_topk_prob": False},
    "mistral4": {**_EPSILON, **_TIED, "routed_scaling_factor": 1.5, "rope_interleave": False},
    "deepseek_v32": {**_OF_LATENTS, "norm_topk_prob": False},
    "glm_moe_dsa": {**_OF_LATENTS, "norm_topk_prob": False, "attention_bias": True},
    "kimi_linear": {**_EPSILON, **_TIED, "moe_renormalize": False, "routed_scaling_factor": 1.5},
    "bailing_hybrid": {**_OF_LATENTS, "moe_renormalize": False, "kda_lower_bound": -2.0},
    "gpt_oss": {**_EPSILON, **_TIED},
    "phi3": {**_EPSILON, **_GELU, **_TIED},
    "glm": {**_USUAL, "attention_bias": False, "rope_parameters": _PARTIAL | {"rope_theta": 100.0}}
    | {"num_key_value_heads": 1},
    "glm4": {**_EPSILON, **_GELU, **_TIED, "num_key_value_heads": 1},
    "glm4v": {"num_key_value_heads": 1},
    "gemma": {**_OF_GEMMA, "hidden_act": "silu", "rope_parameters": FASTER},
    "gemma2": {**_OF_GEMMA, "hidden_activation": "silu", "rope_parameters": FASTER},
    "gemma3_text": {
        **_OF_GEMMA,
        "hidden_activation": "silu",
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    },
    "gemma3n_text": {**_OF_GEMMA, "hidden_activation": "gelu", "num_key_value_heads": 1},
    "gemma4_text": {**_APART, "hidden_activation": "gelu"},
    "gemma4_unified_text": {
        **_APART,
        "attention_bias": True,
        "attention_k_eq_v": True,
        "final_logit_softcapping": 5.0,
        "hidden_activation": "gelu",
        "use_bidirectional_attention": "vision",
        "use_double_wide_mlp": True,
    },
    "granite": _USUAL,
    "granitemoe": {**_OF_EXPERTS, "attention_bias": True, "num_experts_per_tok": 3},
    "granitemoeshared": {
        **_OF_EXPERTS,
        "attention_bias": True,
        "attention_multiplier": 0.3,
        "embedding_multiplier": 3.0,
        "logits_scaling": 0.5,
        "num_experts_per_tok": 3,
    },
    "granitemoehybrid": {"rope_parameters": FASTER, "num_experts_per_tok": 3, "mamba_expand": 1},
    "bamba": {
        **_EPSILON,
        **_TIED,
        "attention_bias": True,
        "mamba_conv_bias": False,
        "mamba_expand": 1,
        "mamba_n_groups": 2,
        "mamba_proj_bias": True,
        "rope_parameters": {**FASTER, "partial_rotary_factor": 0.25},
    },
    "glm4_moe": {**_OF_EXPERTS, "rope_parameters": _PARTIAL | {"partial_rotary_factor": 0.75}},
    "dots1": _OF_EXPERTS,
    "ernie4_5_moe": {**_OF_EXPERTS, **_APART},
    "minimax_m2": {**_OF_EXPERTS, "num_experts_per_tok": 3},
    "afmoe": _OF_EXPERTS,
    "lfm2_moe": {**_APART, "norm_eps": 0.01, "rope_parameters": FASTER},
    "smollm3": {**_USUAL, **_APART, "mlp_bias": True},
    "olmo2": _USUAL,
    "olmo3": {**_EPSILON, **_GELU, **_TIED, "attention_bias": True},
    "exaone4": {**_EPSILON, **_GELU, **_TIED},
    "exaone4_5": {**_EPSILON, **_GELU, "rope_parameters": FASTER},
    "starcoder2": {"num_key_value_heads": 1, "rope_parameters": FASTER},
    "stablelm": {**_GELU, "layer_norm_eps": 0.01},
    "cohere": {**_GELU, **_APART, "attention_bias": True, "rope_parameters": FASTER},
    "cohere2": {**_GELU, **_APART, "layer_norm_eps": 0.01, "rope_parameters": FASTER},
    "gpt_neox": {"hidden_act": "relu", "layer_norm_eps": 0.01},
    "phi": {**_GELU, **_TIED, "layer_norm_eps": 0.01},
    "gpt2": {**_APART, "layer_norm_epsilon": 0.01},
    "helium": _USUAL,
    "lfm2": {**_APART, "norm_eps": 0.01, "rope_parameters": FASTER},
    "ernie4_5": {"num_key_value_heads": 1},
    "internlm3": {"num_key_value_heads": 1},
}
