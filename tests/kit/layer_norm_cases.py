"""Configurations of decoder-only models with layer norms, as those of `kit.decoder_cases`."""

from kit.decoder_cases import FASTER, TWO, WINDOW

_FOUR_HEADS = {"hidden_size": 64, "num_key_value_heads": 4}
_GPT2 = {**TWO, **_FOUR_HEADS}
LAYER_NORM_CASES = {
    "starcoder 2": ("starcoder2", {**TWO, "sliding_window": WINDOW, "norm_epsilon": 0.01}),
    "stablelm": (
        "stablelm",
        {**TWO, "hidden_size": 64, "use_qkv_bias": True, "partial_rotary_factor": 0.5},
    ),
    "stablelm with parallel blocks and norms of heads": (
        "stablelm",
        {
            **TWO,
            "hidden_size": 64,
            "use_parallel_residual": True,
            "tie_word_embeddings": True,
            "qk_layernorm": True,
        },
    ),
    "cohere": (
        "cohere",
        {
            **TWO,
            "hidden_size": 64,
            "logit_scale": 0.5,
            "layer_norm_eps": 0.01,
            "use_qk_norm": True,
        },
    ),
    "cohere 2": (
        "cohere2",
        {"hidden_size": 64, "sliding_window": WINDOW, "attention_bias": True, "logit_scale": 2.0},
    ),
    "gpt neox": ("gpt_neox", {**TWO, "hidden_size": 64, "num_key_value_heads": 4}),
    "gpt neox one block after the other": (
        "gpt_neox",
        {
            **TWO,
            "hidden_size": 64,
            "num_key_value_heads": 4,
            "use_parallel_residual": False,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 1.0},
        },
    ),
    "phi": ("phi", {**TWO, "hidden_size": 64}),
    "phi with norms of queries and keys": (
        "phi",
        {**TWO, "hidden_size": 64, "qk_layernorm": True, "partial_rotary_factor": 0.25},
    ),
    "gpt 2": ("gpt2", _GPT2),
    "gpt 2 with unscaled attention": (
        "gpt2",
        {
            **_GPT2,
            "scale_attn_weights": False,
            "scale_attn_by_inverse_layer_idx": True,
            "n_inner": 80,
            "activation_function": "relu",
        },
    ),
    "starcoder 2 without biases": (
        "starcoder2",
        {**TWO, "use_bias": False, "hidden_act": "gelu", "tie_word_embeddings": False},
    ),
    "gpt bigcode": ("gpt_bigcode", {**_GPT2, "activation_function": "relu", "n_inner": 80}),
    "gpt bigcode with unscaled attention": (
        "gpt_bigcode",
        {**_GPT2, "scale_attn_weights": False, "tie_word_embeddings": False}
        | {"layer_norm_epsilon": 0.01},
    ),
    "gpt neo": (
        "gpt_neo",
        {
            "num_hidden_layers": 3,
            **_FOUR_HEADS,
            "attention_types": [[["global", "local"], 1], [["local"], 1]],
            "window_size": WINDOW,
            "layer_norm_epsilon": 0.01,
        },
    ),
    "gpt neo with a head of its own": (
        "gpt_neo",
        {
            **_GPT2,
            "attention_types": [[["local"], 2]],
            "window_size": WINDOW,
            "intermediate_size": None,
            "activation_function": "gelu",
            "tie_word_embeddings": False,
        },
    ),
    "gpt j": ("gptj", {**_GPT2, "rotary_dim": 12, "layer_norm_epsilon": 0.01}),
    "gpt j with a tied head": (
        "gptj",
        {
            **_GPT2,
            "rotary_dim": 16,
            "n_inner": 80,
            "activation_function": "relu",
            "tie_word_embeddings": True,
        },
    ),
    "opt": ("opt", {**_GPT2, "ffn_dim": 80}),
    "opt without biases": (
        "opt",
        {
            **_GPT2,
            "ffn_dim": 80,
            "enable_bias": False,
            "activation_function": "gelu",
            "tie_word_embeddings": False,
        },
    ),
    "falcon": ("falcon", {**TWO, "hidden_size": 64, "rope_parameters": FASTER}),
    "falcon one block after the other": (
        "falcon",
        {
            **TWO,
            "hidden_size": 64,
            "parallel_attn": False,
            "multi_query": False,
            "bias": True,
            "layer_norm_epsilon": 0.01,
            "activation": "relu",
        },
    ),
    "falcon with norms of its blocks": (
        "falcon",
        {
            **TWO,
            "hidden_size": 64,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "ffn_hidden_size": 80,
            "tie_word_embeddings": False,
        },
    ),
    "falcon with a norm for both blocks": (
        "falcon",
        {
            **TWO,
            "hidden_size": 64,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
        },
    ),
    "nemotron": (
        "nemotron",
        {**TWO, "attention_bias": True, "mlp_bias": True, "norm_eps": 0.01},
    ),
    "nemotron with a tied head": (
        "nemotron",
        {
            **TWO,
            "hidden_act": "gelu",
            "tie_word_embeddings": True,
            "rope_parameters": {**FASTER, "partial_rotary_factor": 0.75},
        },
    ),
    "jais 2": ("jais2", {**TWO, "layer_norm_eps": 0.01, "rope_parameters": FASTER}),
    "jais 2 without biases": (
        "jais2",
        {
            **TWO,
            "attention_bias": False,
            "mlp_bias": False,
            "hidden_act": "relu",
            "tie_word_embeddings": True,
        },
    ),
    "olmo": ("olmo", {**TWO, "clip_qkv": 0.3, "rope_parameters": FASTER}),
    "olmo with a tied head": (
        "olmo",
        {**TWO, "attention_bias": True, "hidden_act": "gelu", "tie_word_embeddings": True},
    ),
}
