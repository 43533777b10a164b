"""Configurations of decoder-only models by names of tests: a model type, and its fields over SIZES.

Every field that changes a result has another value than its default in one of a type's cases.
"""

from collections.abc import Mapping
from typing import Any


def case(kind: str, *shared: Mapping[str, Any], **fields: Any) -> tuple[str, dict[str, Any]]:
    """Return a model type and its fields, of which later ones replace former ones."""
    return kind, {name: value for part in (*shared, fields) for name, value in part.items()}


WINDOW, VOCAB, LENGTH = 7, 131, 45
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.75,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
        "long_factor": [1.0, 2.0, 4.0, 6.0, 8.0, 9.0],
    }
}
OF_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
EXPERTS = {**OF_EXPERTS, "moe_intermediate_size": 24}
FASTER = {"rope_type": "default", "rope_theta": 500.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 10,
}
TRAINED = {"original_max_position_embeddings": 32}
_YARN = {**YARN, "rope_theta": 500.0, "original_max_position_embeddings": 32}
TWO = {"num_hidden_layers": 2}
LATENTS = {
    **TWO,
    "num_key_value_heads": 4,
    "kv_lora_rank": 28,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "head_dim": 8,
    "v_head_dim": 10,
}
LATENT_EXPERTS = {
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_group": 4,
    "topk_group": 2,
}
KIMI = {
    "num_local_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_group": 4,
    "topk_group": 2,
    "linear_head_dim": 8,
    "linear_num_heads": 3,
}
# So many heads that no scores tie at 0.
INDEXED = {
    "q_lora_rank": 20,
    "index_topk": 11,
    "index_head_dim": 12,
    "index_n_heads": 16,
    "first_k_dense_replace": 1,
}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.4,
    "logits_scaling": 0.5,
}
_SOFTCAPS = {
    "query_pre_attn_scalar": 20,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 10.0,
}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SLIDING = {"use_sliding_window": True, "sliding_window": WINDOW}
_BIASED = {"attention_bias": True, "mlp_bias": True}
_TIED_GELU = {"hidden_act": "gelu", "tie_word_embeddings": True}
_GEMMA_4 = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
    "sliding_window": WINDOW,
    "global_head_dim": 24,
    "hidden_size_per_layer_input": 0,
    "rms_norm_eps": 0.01,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.5,
            "rope_theta": 500.0,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
_GEMMA_3N = {
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention", *(["sliding_attention", "full_attention"] * 2)],
    "num_kv_shared_layers": 2,
    "sliding_window": WINDOW,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB - 30,
    "final_logit_softcapping": 5.0,
    "laurel_rank": 6,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 500.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
# Which experts are chosen hangs on little, and more so behind more layers.
_OF_TWO = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
_DELTA_NETS = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_STATE_SPACES = {"mamba_n_heads": 4, "mamba_d_state": 16, "mamba_d_conv": 3}
_NEMOTRON_SPACES = {
    "mamba_num_heads": 4,
    "mamba_head_dim": 12,
    "ssm_state_size": 16,
    "conv_kernel": 3,
}
_GRANITE_4 = {**MULTIPLIERS, **_STATE_SPACES, "rms_norm_eps": 0.02, "shared_intermediate_size": 40}
_GROUPED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
}
_UNGROUPED = {**_GROUPED, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
_OF_ERNIE = {"moe_k": 2, "moe_num_experts": 4, "moe_intermediate_size": 24}
CASES = {
    "mistral with its window": ("mistral", {"sliding_window": WINDOW}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "llama 2": ("llama", {}),
    "llama 3 with scaled rotation": ("llama", {"rope_parameters": LLAMA3}),
    "llama with biases and a tied head": case(
        "llama", attention_bias=True, tie_word_embeddings=True
    ),
    "qwen 2": case("qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2),
    "qwen 3": ("qwen3", {}),
    "gemma 3": case("gemma3_text", _SOFTCAPS, sliding_window=WINDOW, sliding_window_pattern=3),
    "phi 3 longer than trained": ("phi3", {"hidden_size": 64, **LONGROPE, **TRAINED}),
    "phi 3 no longer than trained": case(
        "phi3", LONGROPE, hidden_size=64, original_max_position_embeddings=256
    ),
    "phi 3 with a window": ("phi3", {"hidden_size": 64, "sliding_window": WINDOW}),
    "ministral": case(
        "ministral", sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"] * 2
    ),
    "ministral 3": case(
        "ministral3",
        rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.5},
    ),
    "glm": ("glm", {"attention_bias": True}),
    "glm 4": ("glm4", {"attention_bias": False, "partial_rotary_factor": 0.75}),
    "qwen 2 with experts": case(
        "qwen2_moe",
        EXPERTS,
        _SLIDING,
        shared_expert_intermediate_size=40,
        mlp_only_layers=[1],
        max_window_layers=3,
    ),
    "qwen 2 with normalised experts": case(
        "qwen2_moe",
        EXPERTS,
        shared_expert_intermediate_size=40,
        norm_topk_prob=True,
        qkv_bias=False,
    ),
    "qwen 3 with experts": case(
        "qwen3_moe",
        EXPERTS,
        _SLIDING,
        norm_topk_prob=True,
        decoder_sparse_step=2,
        attention_bias=True,
    ),
    "gpt oss": case(
        "gpt_oss",
        LOCAL_EXPERTS,
        sliding_window=WINDOW,
        swiglu_limit=0.75,
        swiglu_alpha=1.3,
        rope_parameters={**YARN, "truncate": False},
    ),
    "gpt oss without biases in attention": case(
        "gpt_oss", num_local_experts=4, num_experts_per_tok=4, attention_bias=False
    ),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "llama with biases in its feed-forward and relu": case(
        "llama", mlp_bias=True, hidden_act="relu", num_hidden_layers=2
    ),
    "gemma": ("gemma", {**TWO, "hidden_act": "gelu", "attention_bias": True}),
    "gemma of the first files": ("gemma", {**TWO, "hidden_act": "gelu"}),
    "gemma 2": case("gemma2", TWO, _SOFTCAPS, sliding_window=WINDOW),
    "granite": case("granite", TWO, MULTIPLIERS, _BIASED, rms_norm_eps=0.02),
    "granite with experts": case("granitemoe", TWO, MULTIPLIERS, LOCAL_EXPERTS, rms_norm_eps=0.02),
    "smollm 3 with windows where nothing is rotated": case(
        "smollm3", _SLIDING, no_rope_layer_interval=2, attention_bias=True
    ),
    "smollm 3 with a list of layers": ("smollm3", {**TWO, "no_rope_layers": [0, 1]}),
    "olmo 2": ("olmo2", {**TWO, "attention_bias": True, "rms_norm_eps": 0.01}),
    "olmo 3": case(
        "olmo3",
        sliding_window=WINDOW,
        rope_parameters={
            "full_attention": _YARN,
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "exaone 4": ("exaone4", {"sliding_window": WINDOW, "rope_parameters": LLAMA3}),
    "exaone 4 without a window": case(
        "exaone4", TWO, sliding_window=None, layer_types=["full_attention"] * 2
    ),
    "helium": ("helium", {**TWO, "hidden_size": 64, "attention_bias": True, "mlp_bias": True}),
    "lfm2": case(
        "lfm2",
        layer_types=["conv", "full_attention", "conv", "conv"],
        conv_L_cache=4,
        conv_bias=True,
        block_multiple_of=16,
        block_ffn_dim_multiplier=1.3,
    ),
    "lfm2 of the width that is given": case(
        "lfm2", TWO, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False
    ),
    "qwen 3.5": ("qwen3_5_text", _DELTA_NETS),
    "gemma 4 whose layers share caches": case(
        "gemma4_text",
        _GEMMA_4,
        num_hidden_layers=5,
        layer_types=["sliding_attention", *(["sliding_attention", "full_attention"] * 2)],
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCAB,
        final_logit_softcapping=5.0,
    ),
    "gemma 3n": case(
        "gemma3n_text",
        _GEMMA_3N,
        activation_sparsity_pattern=[0.75, 0.0, 0.5, 0.9, 0.0],
        intermediate_size=[80, 64, 80, 48, 80],
    ),
    "gemma 3n of other streams": case(
        "gemma3n_text",
        _GEMMA_3N,
        num_hidden_layers=2,
        layer_types=["full_attention", "sliding_attention"],
        num_kv_shared_layers=0,
        altup_num_inputs=3,
        altup_active_idx=1,
        altup_correct_scale=False,
        vocab_size_per_layer_input=2 * VOCAB,
    ),
    "gemma 4 whose keys are values": case(
        "gemma4_text",
        _GEMMA_4,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        attention_bias=True,
        use_bidirectional_attention="vision",
    ),
    "gemma 4 unified": ("gemma4_unified_text", {**_GEMMA_4, "num_kv_shared_layers": 1}),
    "gemma 4 with experts": case(
        "gemma4_text",
        _GEMMA_4,
        enable_moe_block=True,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=24,
    ),
    "qwen 3 next": case(
        "qwen3_next",
        _DELTA_NETS,
        _OF_TWO,
        EXPERTS,
        shared_expert_intermediate_size=40,
        mlp_only_layers=[1],
        norm_topk_prob=False,
    ),
    "qwen 3 next with experts in each other layer": case(
        "qwen3_next",
        _DELTA_NETS,
        _OF_TWO,
        EXPERTS,
        shared_expert_intermediate_size=40,
        decoder_sparse_step=2,
    ),
    "qwen 3.5 with experts": case(
        "qwen3_5_moe_text", _DELTA_NETS, _OF_TWO, EXPERTS, shared_expert_intermediate_size=40
    ),
    "granite with a shared expert": case(
        "granitemoeshared", TWO, LOCAL_EXPERTS, shared_intermediate_size=40, residual_multiplier=0.4
    ),
    "bamba": ("bamba", {**TWO, **_STATE_SPACES, "attn_layer_indices": [1], "mlp_bias": True}),
    "granite 4": case(
        "granitemoehybrid",
        _GRANITE_4,
        layer_types=["mamba", "attention", "mamba"],
        num_hidden_layers=3,
        num_local_experts=0,
        mamba_n_groups=2,
        mamba_conv_bias=False,
        mamba_proj_bias=True,
    ),
    "granite 4 with experts": case(
        "granitemoehybrid",
        _GRANITE_4,
        TWO,
        LOCAL_EXPERTS,
        layer_types=["linear_attention", "full_attention"],
        position_embedding_type="rope",
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "hunyuan": case(
        "hunyuan_v1_dense",
        TWO,
        attention_bias=True,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "alpha": 50.0, "factor": 1.0},
    ),
    "hunyuan with a tied head": case("hunyuan_v1_dense", TWO, _TIED_GELU, rms_norm_eps=0.01),
    "apertus": case("apertus", TWO, hidden_size=64, rope_parameters=LLAMA3, rms_norm_eps=0.01),
    "apertus with biases": case(
        "apertus", TWO, _TIED_GELU, hidden_size=64, attention_bias=True, rope_parameters=FASTER
    ),
    "granite with windows": case(
        "granite_swa",
        MULTIPLIERS,
        _BIASED,
        hidden_size=64,
        sliding_window=WINDOW,
        layer_rope_theta=[0, 500.0, 100.0, 0],
        rms_norm_eps=0.02,
    ),
    "granite with windows of one base": case(
        "granite_swa",
        TWO,
        hidden_size=64,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=WINDOW,
        num_key_value_heads=1,
        hidden_act="gelu",
        rope_parameters=FASTER,
        tie_word_embeddings=False,
    ),
    "lfm 3": case(
        "lfm3",
        layer_types=["sliding_attention", "conv", "full_attention", "conv"],
        sliding_window=WINDOW,
        conv_L_cache=5,
        conv_bias=True,
        attention_bias=True,
        norm_eps=0.01,
    ),
    "lfm 3 without norms behind and gates": case(
        "lfm3",
        TWO,
        layer_types=["conv", "sliding_attention"],
        sliding_window=WINDOW,
        use_sandwich_norm=False,
        use_attention_gate=False,
        tie_word_embeddings=False,
        rope_parameters={
            "full_attention": FASTER,
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
    "olmo hybrid": case(
        "olmo_hybrid",
        _DELTA_NETS,
        hidden_size=64,
        rope_parameters={"rope_theta": None},
        rms_norm_eps=0.02,
    ),
    "olmo hybrid that rotates": case(
        "olmo_hybrid",
        _OF_TWO,
        hidden_size=64,
        linear_allow_neg_eigval=False,
        linear_num_key_heads=2,
        attention_bias=True,
        rope_parameters=FASTER,
        tie_word_embeddings=True,
    ),
    "nemotron h": case(
        "nemotron_h",
        layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"],
        **_NEMOTRON_SPACES,
        n_groups=2,
        mlp_bias=True,
        use_bias=True,
        layer_norm_epsilon=0.01,
    ),
    "nemotron h with a tied head": case(
        "nemotron_h",
        layers_block_type=["full_attention", "linear_attention", "mlp"],
        **_NEMOTRON_SPACES,
        n_groups=1,
        use_conv_bias=False,
        num_key_value_heads=1,
        mlp_hidden_act="gelu",
        tie_word_embeddings=True,
    ),
    "falcon h1": case(
        "falcon_h1",
        TWO,
        _STATE_SPACES,
        mamba_d_ssm=64,
        mamba_rms_norm=True,
        mamba_n_groups=2,
        embedding_multiplier=3.0,
        lm_head_multiplier=0.3,
        key_multiplier=0.5,
        attention_in_multiplier=1.5,
        attention_out_multiplier=0.7,
        ssm_in_multiplier=1.25,
        ssm_out_multiplier=0.4,
        ssm_multipliers=[0.5, 0.8, 1.2, 1.5, 0.7],
        mlp_multipliers=[0.6, 1.4],
        attention_bias=True,
        mlp_bias=True,
        mamba_proj_bias=True,
        projectors_bias=True,
        rms_norm_eps=0.01,
    ),
    "falcon h1 without norms of states": case(
        "falcon_h1",
        TWO,
        _STATE_SPACES,
        mamba_d_ssm=None,
        mamba_expand=1,
        mamba_conv_bias=False,
        num_key_value_heads=1,
        rope_parameters=FASTER,
        tie_word_embeddings=True,
    ),
    "falcon h1 with norms behind gates": case(
        "falcon_h1",
        TWO,
        _STATE_SPACES,
        mamba_d_ssm=32,
        mamba_rms_norm=True,
        mamba_norm_before_gate=False,
    ),
    "seed oss": case("seed_oss", TWO, attention_out_bias=True, mlp_bias=True, rms_norm_eps=0.01),
    "youtu": case(
        "youtu",
        LATENTS,
        q_lora_rank=20,
        attention_bias=True,
        rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    ),
    "youtu without a rank of queries": case("youtu", LATENTS, q_lora_rank=None),
    "minicpm 3": case(
        "minicpm3",
        LATENTS,
        q_lora_rank=20,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters={**YARN, "mscale_all_dim": 0.9},
        scale_emb=3.0,
        scale_depth=2.5,
        dim_model_base=30,
    ),
    "minicpm 3 without factors": case(
        "minicpm3", LATENTS, v_head_dim=None, scale_depth=None, dim_model_base=None
    ),
    "deepseek 2": case(
        "deepseek_v2",
        LATENTS,
        LATENT_EXPERTS,
        q_lora_rank=20,
        attention_bias=True,
        first_k_dense_replace=1,
        topk_method="group_limited_greedy",
        routed_scaling_factor=2.0,
        rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    ),
    "deepseek 2 lite": case("deepseek_v2", LATENTS, LATENT_EXPERTS, q_lora_rank=None),
    "deepseek 3": case(
        "deepseek_v3",
        LATENTS,
        LATENT_EXPERTS,
        q_lora_rank=20,
        attention_bias=True,
        first_k_dense_replace=1,
        rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    ),
    "deepseek 3 that weighs all experts": case(
        "deepseek_v3",
        LATENTS,
        LATENT_EXPERTS,
        q_lora_rank=None,
        first_k_dense_replace=0,
        norm_topk_prob=False,
    ),
    "glm 4.7 flash": case(
        "glm4_moe_lite",
        LATENTS,
        LATENT_EXPERTS,
        q_lora_rank=20,
        attention_bias=True,
        mlp_layer_types=["sparse", "dense"],
    ),
    "a.x k1": case(
        "axk1",
        LATENTS,
        LATENT_EXPERTS,
        num_hidden_layers=3,
        q_lora_rank=20,
        attention_bias=True,
        mlp_layer_types=["sparse", "dense", "sparse"],
        rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    ),
    "a.x k1 that weighs all experts": case(
        "axk1", LATENTS, LATENT_EXPERTS, q_lora_rank=20, norm_topk_prob=False
    ),
    "mistral 4": case(
        "mistral4",
        LATENTS,
        LATENT_EXPERTS,
        q_lora_rank=20,
        attention_bias=True,
        head_dim=20,
        norm_topk_prob=False,
        rope_parameters={
            **YARN,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
            "llama_4_scaling_beta": 0.3,
        },
    ),
    "mistral 4 with a dense layer": case(
        "mistral4",
        LATENTS,
        LATENT_EXPERTS,
        q_lora_rank=None,
        head_dim=20,
        first_k_dense_replace=1,
        rope_parameters={
            **YARN,
            "llama_4_scaling_beta": 0.1,
        },
    ),
    "deepseek 3.2": case("deepseek_v32", LATENTS, LATENT_EXPERTS, INDEXED, attention_bias=True),
    "glm 5": case(
        "glm_moe_dsa",
        LATENTS,
        LATENT_EXPERTS,
        INDEXED,
        num_hidden_layers=4,
        indexer_types=["full", "shared", "full", "shared"],
    ),
    "kimi linear": case(
        "kimi_linear",
        LATENTS,
        KIMI,
        num_hidden_layers=4,
        q_lora_rank=20,
        attention_bias=True,
        linear_conv_kernel_dim=3,
        layer_types=["linear_attention", "full_attention"] * 2,
        mlp_layer_types=["sparse", "dense", "sparse", "sparse"],
    ),
    "kimi linear without experts": case(
        "kimi_linear",
        LATENTS,
        KIMI,
        layer_types=["linear_attention", "full_attention"],
        mlp_layer_types=["dense"] * 2,
    ),
    "ling 3": case(
        "bailing_hybrid",
        LATENTS,
        KIMI,
        num_hidden_layers=4,
        head_dim=12,
        layer_group_size=2,
        first_k_dense_replace=1,
        attention_bias=True,
        rope_theta=500.0,
        rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    ),
    "ling 3 without a bound": case(
        "bailing_hybrid",
        LATENTS,
        KIMI,
        head_dim=12,
        kda_safe_gate=False,
        layer_types=["linear_attention", "full_attention"],
        short_conv_kernel_size=3,
    ),
    "seed oss without biases": case(
        "seed_oss", TWO, _TIED_GELU, attention_bias=False, rope_parameters=FASTER
    ),
    "arcee": ("arcee", {**TWO, "rms_norm_eps": 0.01, "rope_parameters": {**YARN, "factor": 4.0}}),
    "arcee with biases": case("arcee", TWO, _BIASED, _TIED_GELU),
    "internlm 3": case(
        "internlm3", TWO, attention_bias=True, mlp_bias=True, rope_parameters=FASTER
    ),
    "internlm 3 with a tied head": case(
        "internlm3", TWO, tie_word_embeddings=True, hidden_act="gelu", rms_norm_eps=0.01
    ),
    "ernie 4.5": ("ernie4_5", {**TWO, "rms_norm_eps": 0.01, "rope_parameters": FASTER}),
    "ernie 4.5 with biases": case(
        "ernie4_5", TWO, use_bias=True, tie_word_embeddings=False, hidden_act="gelu"
    ),
    "olmoe": case(
        "olmoe",
        TWO,
        OF_EXPERTS,
        hidden_size=64,
        clip_qkv=0.5,
        rms_norm_eps=0.01,
        rope_parameters=FASTER,
    ),
    "olmoe with normalised experts": case(
        "olmoe",
        TWO,
        OF_EXPERTS,
        num_experts_per_tok=4,
        hidden_size=64,
        norm_topk_prob=True,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "glm 4.5": case(
        "glm4_moe", TWO, _GROUPED, n_shared_experts=2, use_qk_norm=True, attention_bias=True
    ),
    "glm 4.5 of experts alone": case(
        "glm4_moe", TWO, _UNGROUPED, first_k_dense_replace=0, norm_topk_prob=False
    ),
    "dots": case(
        "dots1",
        _GROUPED,
        num_hidden_layers=3,
        n_shared_experts=2,
        first_k_dense_replace=1,
        norm_topk_prob=True,
        sliding_window=WINDOW,
        max_window_layers=2,
    ),
    "dots of experts alone": case(
        "dots1", TWO, _UNGROUPED, n_shared_experts=1, attention_bias=True, sliding_window=None
    ),
    "ernie 4.5 with experts": case(
        "ernie4_5_moe", TWO, _OF_ERNIE, moe_num_shared_experts=1, moe_layer_interval=2
    ),
    "ernie 4.5 with experts in first layers": case(
        "ernie4_5_moe",
        _OF_ERNIE,
        num_hidden_layers=3,
        moe_num_shared_experts=0,
        moe_layer_start_index=0,
        moe_layer_end_index=1,
    ),
    "minimax m2": case("minimax_m2", TWO, LOCAL_EXPERTS, rotary_dim=8),
    "minimax m2 that rotates whole heads": case("minimax_m2", TWO, LOCAL_EXPERTS),
    "afmoe": case(
        "afmoe",
        EXPERTS,
        num_hidden_layers=3,
        sliding_window=WINDOW,
        global_attn_every_n_layers=2,
        num_shared_experts=1,
        route_scale=2.5,
        mup_enabled=True,
    ),
    "afmoe of experts alone": case(
        "afmoe",
        TWO,
        EXPERTS,
        num_dense_layers=0,
        layer_types=["full_attention"] * 2,
        attention_bias=True,
    ),
    "lfm2 with experts": case(
        "lfm2_moe",
        EXPERTS,
        num_hidden_layers=3,
        layer_types=["conv", "full_attention", "conv"],
        num_dense_layers=1,
        conv_L_cache=4,
        conv_bias=True,
        routed_scaling_factor=2.5,
    ),
    "lfm2 of experts alone": case(
        "lfm2_moe",
        TWO,
        EXPERTS,
        layer_types=["conv", "full_attention"],
        num_dense_layers=0,
        use_expert_bias=False,
        norm_topk_prob=False,
    ),
}


_FOUR_HEADS = {"hidden_size": 64, "num_key_value_heads": 4}
_GPT2 = {**TWO, **_FOUR_HEADS}
_WIDE = {**TWO, "hidden_size": 64}
LAYER_NORM_CASES = {
    "starcoder 2": ("starcoder2", {**TWO, "sliding_window": WINDOW, "norm_epsilon": 0.01}),
    "stablelm": case("stablelm", _WIDE, use_qkv_bias=True, partial_rotary_factor=0.5),
    "stablelm with parallel blocks and norms of heads": case(
        "stablelm", _WIDE, use_parallel_residual=True, tie_word_embeddings=True, qk_layernorm=True
    ),
    "cohere": case("cohere", _WIDE, logit_scale=0.5, layer_norm_eps=0.01, use_qk_norm=True),
    "cohere 2": case(
        "cohere2", hidden_size=64, sliding_window=WINDOW, attention_bias=True, logit_scale=2.0
    ),
    "gpt neox": ("gpt_neox", _GPT2),
    "gpt neox one block after the other": case(
        "gpt_neox",
        _GPT2,
        use_parallel_residual=False,
        attention_bias=False,
        tie_word_embeddings=True,
        rope_parameters={"rope_theta": 500.0, "partial_rotary_factor": 1.0},
    ),
    "phi": ("phi", _WIDE),
    "phi with norms of queries and keys": case(
        "phi", _WIDE, qk_layernorm=True, partial_rotary_factor=0.25
    ),
    "gpt 2": ("gpt2", _GPT2),
    "gpt 2 with unscaled attention": case(
        "gpt2",
        _GPT2,
        scale_attn_weights=False,
        scale_attn_by_inverse_layer_idx=True,
        n_inner=80,
        activation_function="relu",
    ),
    "starcoder 2 without biases": case(
        "starcoder2", TWO, use_bias=False, hidden_act="gelu", tie_word_embeddings=False
    ),
    "gpt bigcode": ("gpt_bigcode", {**_GPT2, "activation_function": "relu", "n_inner": 80}),
    "gpt bigcode with unscaled attention": case(
        "gpt_bigcode",
        _GPT2,
        scale_attn_weights=False,
        tie_word_embeddings=False,
        layer_norm_epsilon=0.01,
    ),
    "gpt neo": case(
        "gpt_neo",
        _FOUR_HEADS,
        num_hidden_layers=3,
        attention_types=[[["global", "local"], 1], [["local"], 1]],
        window_size=WINDOW,
        layer_norm_epsilon=0.01,
    ),
    "gpt neo with an untied head": case(
        "gpt_neo",
        _GPT2,
        attention_types=[[["local"], 2]],
        window_size=WINDOW,
        intermediate_size=None,
        activation_function="gelu",
        tie_word_embeddings=False,
    ),
    "gpt j": ("gptj", {**_GPT2, "rotary_dim": 12, "layer_norm_epsilon": 0.01}),
    "gpt j with a tied head": case(
        "gptj",
        _GPT2,
        rotary_dim=16,
        n_inner=80,
        activation_function="relu",
        tie_word_embeddings=True,
    ),
    "opt": ("opt", {**_GPT2, "ffn_dim": 80}),
    "opt without biases": case(
        "opt",
        _GPT2,
        ffn_dim=80,
        enable_bias=False,
        activation_function="gelu",
        tie_word_embeddings=False,
    ),
    "falcon": ("falcon", {**_WIDE, "rope_parameters": FASTER}),
    "falcon one block after the other": case(
        "falcon",
        _WIDE,
        parallel_attn=False,
        multi_query=False,
        bias=True,
        layer_norm_epsilon=0.01,
        activation="relu",
    ),
    "falcon with norms of its blocks": case(
        "falcon",
        _WIDE,
        new_decoder_architecture=True,
        num_kv_heads=2,
        ffn_hidden_size=80,
        tie_word_embeddings=False,
    ),
    "falcon with a norm for both blocks": case(
        "falcon", _WIDE, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1
    ),
    "nemotron": ("nemotron", {**TWO, "attention_bias": True, "mlp_bias": True, "norm_eps": 0.01}),
    "nemotron with a tied head": case(
        "nemotron", TWO, _TIED_GELU, rope_parameters={**FASTER, "partial_rotary_factor": 0.75}
    ),
    "jais 2": ("jais2", {**TWO, "layer_norm_eps": 0.01, "rope_parameters": FASTER}),
    "jais 2 without biases": case(
        "jais2",
        TWO,
        attention_bias=False,
        mlp_bias=False,
        hidden_act="relu",
        tie_word_embeddings=True,
    ),
    "olmo": ("olmo", {**TWO, "clip_qkv": 0.3, "rope_parameters": FASTER}),
    "olmo with a tied head": case(
        "olmo", TWO, attention_bias=True, hidden_act="gelu", tie_word_embeddings=True
    ),
}
