"""Names of decoder-only models' tensors in Hugging Face layout, by canonical name."""

from collections.abc import Mapping, Sequence

from kvcast.families.alternating import MOST_STREAMS

_LAYER = "decoder.layers.{i}"
_ATTENTION = "layers.{i}.self_attn"
_EXPERT = "layers.{i}.block_sparse_moe.experts.{e}"


NAMES: Mapping[str, Sequence[str]] = {
    "decoder.embedding.weight": ("embed_tokens.weight",),
    "decoder.norm.weight": ("norm.weight",),
    "decoder.head.weight": ("lm_head.weight",),
    f"{_LAYER}.attention_norm.weight": ("layers.{i}.input_layernorm.weight",),
    f"{_LAYER}.attention.qkv.weight": tuple(f"{_ATTENTION}.{x}_proj.weight" for x in "qkv"),
    f"{_LAYER}.attention.qkv.bias": tuple(f"{_ATTENTION}.{x}_proj.bias" for x in "qkv"),
    f"{_LAYER}.attention.out.weight": (f"{_ATTENTION}.o_proj.weight",),
    f"{_LAYER}.attention.out.bias": (f"{_ATTENTION}.o_proj.bias",),
    f"{_LAYER}.attention.query_norm.weight": (f"{_ATTENTION}.q_norm.weight",),
    f"{_LAYER}.attention.key_norm.weight": (f"{_ATTENTION}.k_norm.weight",),
    f"{_LAYER}.feed_forward_norm.weight": ("layers.{i}.post_attention_layernorm.weight",),
    f"{_LAYER}.feed_forward.gate_up.weight": (
        "layers.{i}.mlp.gate_proj.weight",
        "layers.{i}.mlp.up_proj.weight",
    ),
    f"{_LAYER}.feed_forward.gate_up.bias": (
        "layers.{i}.mlp.gate_proj.bias",
        "layers.{i}.mlp.up_proj.bias",
    ),
    f"{_LAYER}.feed_forward.up.weight": ("layers.{i}.mlp.up_proj.weight",),
    f"{_LAYER}.feed_forward.up.bias": ("layers.{i}.mlp.up_proj.bias",),
    f"{_LAYER}.feed_forward.down.weight": ("layers.{i}.mlp.down_proj.weight",),
    f"{_LAYER}.feed_forward.down.bias": ("layers.{i}.mlp.down_proj.bias",),
    **{
        f"{_LAYER}.feed_forward.xielu.{ours}": (f"layers.{{i}}.mlp.act_fn.{theirs}",)
        for ours, theirs in {"slope": "beta", "rise": "alpha_p", "fall": "alpha_n"}.items()
    },
    f"{_LAYER}.feed_forward.router.weight": ("layers.{i}.block_sparse_moe.gate.weight",),
    f"{_LAYER}.feed_forward.gate_up": (f"{_EXPERT}.w1.weight", f"{_EXPERT}.w3.weight"),
    f"{_LAYER}.feed_forward.down": (f"{_EXPERT}.w2.weight",),
}


HUNYUAN_NAMES = {
    **NAMES,
    f"{_LAYER}.attention.query_norm.weight": (f"{_ATTENTION}.query_layernorm.weight",),
    f"{_LAYER}.attention.key_norm.weight": (f"{_ATTENTION}.key_layernorm.weight",),
}


APERTUS_NAMES = {
    **NAMES,
    f"{_LAYER}.attention_norm.weight": ("layers.{i}.attention_layernorm.weight",),
    f"{_LAYER}.feed_forward_norm.weight": ("layers.{i}.feedforward_layernorm.weight",),
}


SINK_NAMES = {**NAMES, f"{_LAYER}.attention.sinks": (f"{_ATTENTION}.sinks",)}


# Gemma's norm after attention has the name that others use for the norm before the feed-forward.
GEMMA_NAMES = {
    **NAMES,
    f"{_LAYER}.attention_post_norm.weight": ("layers.{i}.post_attention_layernorm.weight",),
    f"{_LAYER}.feed_forward_norm.weight": ("layers.{i}.pre_feedforward_layernorm.weight",),
    f"{_LAYER}.feed_forward_post_norm.weight": ("layers.{i}.post_feedforward_layernorm.weight",),
}


MUSE_GLIMMER_NAMES = {
    **GEMMA_NAMES,
    f"{_LAYER}.attention.gate.weight": (f"{_ATTENTION}.gate_proj.weight",),
}


GEMMA_4_NAMES = {
    **GEMMA_NAMES,
    "decoder.layer_embedding.weight": ("embed_tokens_per_layer.weight",),
    "decoder.layer_projection.weight": ("per_layer_model_projection.weight",),
    "decoder.layer_projection_norm.weight": ("per_layer_projection_norm.weight",),
    f"{_LAYER}.layer_input.gate.weight": ("layers.{i}.per_layer_input_gate.weight",),
    f"{_LAYER}.layer_input.out.weight": ("layers.{i}.per_layer_projection.weight",),
    f"{_LAYER}.layer_input_norm.weight": ("layers.{i}.post_per_layer_input_norm.weight",),
    f"{_LAYER}.scale": ("layers.{i}.layer_scalar",),
    f"{_LAYER}.feed_forward_own_norm.weight": ("layers.{i}.post_feedforward_layernorm_1.weight",),
    f"{_LAYER}.experts_norm.weight": ("layers.{i}.pre_feedforward_layernorm_2.weight",),
    f"{_LAYER}.experts_post_norm.weight": ("layers.{i}.post_feedforward_layernorm_2.weight",),
    f"{_LAYER}.experts.router.weight": ("layers.{i}.router.proj.weight",),
    f"{_LAYER}.experts.router_norm.weight": ("layers.{i}.router.scale",),
    f"{_LAYER}.experts.scales": ("layers.{i}.router.per_expert_scale",),
    f"{_LAYER}.experts.gate_up": ("layers.{i}.experts.gate_up_proj",),
    f"{_LAYER}.experts.down": ("layers.{i}.experts.down_proj",),
}


GEMMA_3N_NAMES = {
    **GEMMA_4_NAMES,
    **{
        f"decoder.streams.{i}.{ours}.weight": (f"{theirs}.{i - 1}.weight",)
        for ours, theirs in {"in": "altup_projections", "out": "altup_unembed_projections"}.items()
        for i in range(1, MOST_STREAMS)
    },
    **{
        f"{_LAYER}.streams.{ours}": (f"layers.{{i}}.altup.{theirs}",)
        for ours, theirs in {
            "predict.weight": "prediction_coefs.weight",
            "correct.weight": "correction_coefs.weight",
            "scale": "correct_output_scale",
            "router.weight": "modality_router.weight",
            "router_norm.weight": "router_norm.weight",
        }.items()
    },
    f"{_LAYER}.laurel.in.weight": ("layers.{i}.laurel.linear_left.weight",),
    f"{_LAYER}.laurel.out.weight": ("layers.{i}.laurel.linear_right.weight",),
    f"{_LAYER}.laurel_norm.weight": ("layers.{i}.laurel.post_laurel_norm.weight",),
}


FUSED_NAMES = {
    **NAMES,
    f"{_LAYER}.attention.qkv.weight": (f"{_ATTENTION}.qkv_proj.weight",),
    f"{_LAYER}.feed_forward.gate_up.weight": ("layers.{i}.mlp.gate_up_proj.weight",),
}


GLM_NAMES = {
    **NAMES,
    f"{_LAYER}.feed_forward.gate_up.weight": ("layers.{i}.mlp.gate_up_proj.weight",),
    f"{_LAYER}.attention_post_norm.weight": ("layers.{i}.post_self_attn_layernorm.weight",),
    f"{_LAYER}.feed_forward_post_norm.weight": ("layers.{i}.post_mlp_layernorm.weight",),
}


_QWEN_FEED_FORWARD = "layers.{i}.mlp"
_QWEN_EXPERT = f"{_QWEN_FEED_FORWARD}.experts.{{e}}"


QWEN_EXPERT_NAMES = {
    **NAMES,
    f"{_LAYER}.feed_forward.router.weight": (f"{_QWEN_FEED_FORWARD}.gate.weight",),
    f"{_LAYER}.feed_forward.gate_up": tuple(
        f"{_QWEN_EXPERT}.{x}_proj.weight" for x in ("gate", "up")
    ),
    f"{_LAYER}.feed_forward.down": (f"{_QWEN_EXPERT}.down_proj.weight",),
    f"{_LAYER}.feed_forward.shared.gate_up.weight": tuple(
        f"{_QWEN_FEED_FORWARD}.shared_expert.{x}_proj.weight" for x in ("gate", "up")
    ),
    f"{_LAYER}.feed_forward.shared.down.weight": (
        f"{_QWEN_FEED_FORWARD}.shared_expert.down_proj.weight",
    ),
    f"{_LAYER}.feed_forward.shared.gate.weight": (
        f"{_QWEN_FEED_FORWARD}.shared_expert_gate.weight",
    ),
}


# Of a router with a bias, and an expert that all tokens go through without a gate.
DEEPSEEK_EXPERT_NAMES = {
    **QWEN_EXPERT_NAMES,
    f"{_LAYER}.feed_forward.choice_bias": (f"{_QWEN_FEED_FORWARD}.gate.e_score_correction_bias",),
    f"{_LAYER}.feed_forward.shared.gate_up.weight": tuple(
        f"{_QWEN_FEED_FORWARD}.shared_experts.{x}_proj.weight" for x in ("gate", "up")
    ),
    f"{_LAYER}.feed_forward.shared.down.weight": (
        f"{_QWEN_FEED_FORWARD}.shared_experts.down_proj.weight",
    ),
}


_OF_LATENTS = {
    **{
        f"{_LAYER}.attention.{ours}": (f"{_ATTENTION}.{theirs}",)
        for ours, theirs in {
            "query_latent.weight": "q_a_proj.weight",
            "query_latent.bias": "q_a_proj.bias",
            "query_latent_norm.weight": "q_a_layernorm.weight",
            "query.weight": "q_b_proj.weight",
            "latent.weight": "kv_a_proj_with_mqa.weight",
            "latent.bias": "kv_a_proj_with_mqa.bias",
            "latent_norm.weight": "kv_a_layernorm.weight",
            "key_b": "key_b",
            "value_b": "value_b",
            "indexer.query.weight": "indexer.wq_b.weight",
            "indexer.key.weight": "indexer.wk.weight",
            "indexer.key_norm.weight": "indexer.k_norm.weight",
            "indexer.key_norm.bias": "indexer.k_norm.bias",
            "indexer.weights.weight": "indexer.weights_proj.weight",
        }.items()
    },
}
LATENT_NAMES = {**DEEPSEEK_EXPERT_NAMES, **_OF_LATENTS}
AXK1_NAMES = {
    **LATENT_NAMES,
    f"{_LAYER}.feed_forward_post_norm.weight": ("layers.{i}.post_mlp_layernorm.weight",),
}
AXK1_NAMES_IN_MEMORY = {
    f"{_LAYER}.feed_forward_post_norm.weight": ("layers.{i}.mlp.post_mlp_layernorm.weight",),
}
LATENT_QUERY_NAMES = {f"{_LAYER}.attention.query.weight": (f"{_ATTENTION}.q_proj.weight",)}


# As Mistral spells them; of decoders alone.
MISTRAL_NAMES = {
    "decoder.embedding.weight": ("tok_embeddings.weight",),
    "decoder.norm.weight": ("norm.weight",),
    "decoder.head.weight": ("output.weight",),
    f"{_LAYER}.attention_norm.weight": ("layers.{i}.attention_norm.weight",),
    f"{_LAYER}.attention.out.weight": ("layers.{i}.attention.wo.weight",),
    f"{_LAYER}.feed_forward_norm.weight": ("layers.{i}.ffn_norm.weight",),
    f"{_LAYER}.feed_forward.gate_up.weight": (
        "layers.{i}.feed_forward.w1.weight",
        "layers.{i}.feed_forward.w3.weight",
    ),
    f"{_LAYER}.feed_forward.down.weight": ("layers.{i}.feed_forward.w2.weight",),
}
# Of the parts of models with images that are not decoders.
MISTRAL_SIGHTS = (
    "vision_encoder.",
    "vision_language_adapter.",
    "patch_merger.",
    "pre_mm_projector_norm.",
)


MISTRAL_LARGE_4_NAMES = {
    **MISTRAL_NAMES,
    "decoder.head.weight": ("lm_head.weight",),
    "decoder.rotary_frequencies": ("lerope.alpha",),
    **{
        f"{_LAYER}.{ours}": tuple(f"layers.{{i}}.{part}" for part in theirs)
        for ours, theirs in {
            "attention.out.bias": ("attention.wo.bias",),
            "attention.query.weight": ("attention.wq.weight",),
            "attention.query_scaling.scale": ("attention.ssmax_scaling.s",),
            "attention.query_scaling.bias": ("attention.ssmax_scaling.b",),
            "attention.latent.weight": ("attention.wkv_a_with_mqa.weight",),
            "attention.latent.bias": ("attention.wkv_a_with_mqa.bias",),
            "attention.latent_norm.weight": ("attention.kv_a_norm.weight",),
            "attention.key_b": ("attention.key_b",),
            "attention.value_b": ("attention.value_b",),
            "attention.indexer.query_norm.weight": ("attention.indexer.q_input_norm.weight",),
            "attention.indexer.query_norm.bias": ("attention.indexer.q_input_norm.bias",),
            "attention.indexer.query.weight": ("attention.indexer.wq_b.weight",),
            "attention.indexer.query_scaling.scale": ("attention.indexer.ssmax_scaling.s",),
            "attention.indexer.query_scaling.bias": ("attention.indexer.ssmax_scaling.b",),
            "attention.indexer.key.weight": ("attention.indexer.wk.weight",),
            "attention.indexer.key_norm.weight": ("attention.indexer.k_norm.weight",),
            "attention.indexer.key_norm.bias": ("attention.indexer.k_norm.bias",),
            "attention.indexer.weights.weight": ("attention.indexer.weights_proj.weight",),
            "feed_forward.router.weight": ("gate.weight",),
            "feed_forward.gate_up": ("experts.{e}.w1.weight", "experts.{e}.w3.weight"),
            "feed_forward.down": ("experts.{e}.w2.weight",),
            "feed_forward.shared.gate_up.weight": (
                "shared_experts.w1.weight",
                "shared_experts.w3.weight",
            ),
            "feed_forward.shared.down.weight": ("shared_experts.w2.weight",),
        }.items()
    },
}


ERNIE_EXPERT_NAMES = {
    **DEEPSEEK_EXPERT_NAMES,
    f"{_LAYER}.feed_forward.choice_bias": (
        f"{_QWEN_FEED_FORWARD}.moe_statics.e_score_correction_bias",
    ),
}


MINIMAX_NAMES = {
    **NAMES,
    f"{_LAYER}.feed_forward.choice_bias": ("layers.{i}.block_sparse_moe.e_score_correction_bias",),
}


AFMOE_NAMES = {
    **DEEPSEEK_EXPERT_NAMES,
    f"{_LAYER}.attention.gate.weight": (f"{_ATTENTION}.gate_proj.weight",),
    f"{_LAYER}.attention_post_norm.weight": ("layers.{i}.post_attention_layernorm.weight",),
    f"{_LAYER}.feed_forward_norm.weight": ("layers.{i}.pre_mlp_layernorm.weight",),
    f"{_LAYER}.feed_forward_post_norm.weight": ("layers.{i}.post_mlp_layernorm.weight",),
    f"{_LAYER}.feed_forward.router.weight": (f"{_QWEN_FEED_FORWARD}.router.gate.weight",),
    f"{_LAYER}.feed_forward.choice_bias": (f"{_QWEN_FEED_FORWARD}.expert_bias",),
}


_GRANITE_EXPERTS = "layers.{i}.block_sparse_moe"


GRANITE_EXPERT_NAMES = {
    **NAMES,
    f"{_LAYER}.feed_forward.router.weight": (f"{_GRANITE_EXPERTS}.router.layer.weight",),
    f"{_LAYER}.feed_forward.gate_up": (f"{_GRANITE_EXPERTS}.input_linear.weight",),
    f"{_LAYER}.feed_forward.down": (f"{_GRANITE_EXPERTS}.output_linear.weight",),
}


_MAMBA_NAMES = {
    f"{_LAYER}.state_space.{ours}": (f"layers.{{i}}.mamba.{theirs}",)
    for ours, theirs in {
        "in.weight": "in_proj.weight",
        "in.bias": "in_proj.bias",
        "kernel": "conv1d.weight",
        "kernel_bias": "conv1d.bias",
        "decay": "A_log",
        "step_bias": "dt_bias",
        "skip": "D",
        "norm.weight": "norm.weight",
        "out.weight": "out_proj.weight",
        "out.bias": "out_proj.bias",
    }.items()
}


GRANITE_HYBRID_NAMES = {
    **GRANITE_EXPERT_NAMES,
    **_MAMBA_NAMES,
    f"{_LAYER}.feed_forward.gate_up.weight": ("layers.{i}.shared_mlp.input_linear.weight",),
    f"{_LAYER}.feed_forward.down.weight": ("layers.{i}.shared_mlp.output_linear.weight",),
    f"{_LAYER}.feed_forward.shared.gate_up.weight": ("layers.{i}.shared_mlp.input_linear.weight",),
    f"{_LAYER}.feed_forward.shared.down.weight": ("layers.{i}.shared_mlp.output_linear.weight",),
}


GRANITE_HYBRID_MLX_NAMES = {
    f"{_LAYER}.feed_forward.{part}.weight": NAMES[f"{_LAYER}.feed_forward.{part}.weight"]
    for part in ("gate_up", "down")
}
"""As mlx-lm 0.32.2 has models without experts."""


BAMBA_NAMES = {
    **NAMES,
    **_MAMBA_NAMES,
    "decoder.norm.weight": ("final_layernorm.weight",),
    f"{_LAYER}.feed_forward_norm.weight": ("layers.{i}.pre_ff_layernorm.weight",),
    **{
        f"{_LAYER}.feed_forward.{ours}.{leaf}": tuple(
            f"layers.{{i}}.feed_forward.{theirs}_proj.{leaf}" for theirs in parts
        )
        for ours, parts in {"gate_up": ("gate", "up"), "down": ("down",)}.items()
        for leaf in ("weight", "bias")
    },
}


NEMOTRON_H_NAMES = {
    **NAMES,
    **_MAMBA_NAMES,
    "decoder.embedding.weight": ("embeddings.weight",),
    "decoder.norm.weight": ("norm_f.weight",),
}


GPT_OSS_NAMES = {
    **SINK_NAMES,
    f"{_LAYER}.feed_forward.router.weight": ("layers.{i}.mlp.router.weight",),
    f"{_LAYER}.feed_forward.router.bias": ("layers.{i}.mlp.router.bias",),
    f"{_LAYER}.feed_forward.gate_up": ("layers.{i}.mlp.experts.gate_up_proj",),
    f"{_LAYER}.feed_forward.gate_up_bias": ("layers.{i}.mlp.experts.gate_up_proj_bias",),
    f"{_LAYER}.feed_forward.down": ("layers.{i}.mlp.experts.down_proj",),
    f"{_LAYER}.feed_forward.down_bias": ("layers.{i}.mlp.experts.down_proj_bias",),
}


def _with_modules(
    names: Mapping[str, Sequence[str]], modules: Mapping[str, str]
) -> Mapping[str, Sequence[str]]:
    leaves = ("weight", "bias")
    places = {f"{ours}.{x}": (f"{theirs}.{x}",) for ours, theirs in modules.items() for x in leaves}
    return {**names, **places}


LAYER_NORM_NAMES = _with_modules(
    NAMES,
    {
        "decoder.norm": "norm",
        "decoder.head": "lm_head",
        f"{_LAYER}.attention_norm": "layers.{i}.input_layernorm",
        f"{_LAYER}.feed_forward_norm": "layers.{i}.post_attention_layernorm",
    },
)


STARCODER_NAMES = _with_modules(
    LAYER_NORM_NAMES,
    {
        f"{_LAYER}.feed_forward.up": "layers.{i}.mlp.c_fc",
        f"{_LAYER}.feed_forward.down": "layers.{i}.mlp.c_proj",
    },
)


PHI_NAMES = _with_modules(
    LAYER_NORM_NAMES,
    {
        "decoder.norm": "final_layernorm",
        f"{_LAYER}.attention.out": f"{_ATTENTION}.dense",
        f"{_LAYER}.attention.query_norm": f"{_ATTENTION}.q_layernorm",
        f"{_LAYER}.attention.key_norm": f"{_ATTENTION}.k_layernorm",
        f"{_LAYER}.feed_forward.up": "layers.{i}.mlp.fc1",
        f"{_LAYER}.feed_forward.down": "layers.{i}.mlp.fc2",
    },
)


NEOX_NAMES = _with_modules(
    LAYER_NORM_NAMES,
    {
        "decoder.embedding": "embed_in",
        "decoder.norm": "final_layer_norm",
        f"{_LAYER}.attention.qkv": "layers.{i}.attention.query_key_value",
        f"{_LAYER}.attention.out": "layers.{i}.attention.dense",
        f"{_LAYER}.feed_forward.up": "layers.{i}.mlp.dense_h_to_4h",
        f"{_LAYER}.feed_forward.down": "layers.{i}.mlp.dense_4h_to_h",
    },
)


GPT2_NAMES = _with_modules(
    {**NAMES, "decoder.positions": ("wpe.weight",)},
    {
        "decoder.embedding": "wte",
        "decoder.norm": "ln_f",
        f"{_LAYER}.attention_norm": "h.{i}.ln_1",
        f"{_LAYER}.attention.qkv": "h.{i}.attn.c_attn",
        f"{_LAYER}.attention.out": "h.{i}.attn.c_proj",
        f"{_LAYER}.feed_forward_norm": "h.{i}.ln_2",
        f"{_LAYER}.feed_forward.up": "h.{i}.mlp.c_fc",
        f"{_LAYER}.feed_forward.down": "h.{i}.mlp.c_proj",
    },
)


GPT_NEO_NAMES = _with_modules(
    {
        **GPT2_NAMES,
        f"{_LAYER}.attention.qkv.weight": tuple(
            f"h.{{i}}.attn.attention.{x}_proj.weight" for x in "qkv"
        ),
    },
    {f"{_LAYER}.attention.out": "h.{i}.attn.attention.out_proj"},
)


GPTJ_NAMES = _with_modules(
    {
        **GPT2_NAMES,
        f"{_LAYER}.attention.qkv.weight": tuple(f"h.{{i}}.attn.{x}_proj.weight" for x in "qkv"),
    },
    {
        "decoder.head": "lm_head",
        f"{_LAYER}.attention.out": "h.{i}.attn.out_proj",
        f"{_LAYER}.feed_forward.up": "h.{i}.mlp.fc_in",
        f"{_LAYER}.feed_forward.down": "h.{i}.mlp.fc_out",
    },
)


OPT_NAMES = _with_modules(
    {**NAMES, "decoder.positions": ("embed_positions.weight",)},
    {
        "decoder.norm": "final_layer_norm",
        f"{_LAYER}.attention_norm": "layers.{i}.self_attn_layer_norm",
        f"{_LAYER}.attention.out": f"{_ATTENTION}.out_proj",
        f"{_LAYER}.feed_forward_norm": "layers.{i}.final_layer_norm",
        f"{_LAYER}.feed_forward.up": "layers.{i}.fc1",
        f"{_LAYER}.feed_forward.down": "layers.{i}.fc2",
    },
)


FALCON_NAMES = _with_modules(
    NAMES,
    {
        "decoder.embedding": "word_embeddings",
        "decoder.norm": "ln_f",
        f"{_LAYER}.attention_norm": "h.{i}.input_layernorm",
        f"{_LAYER}.attention.qkv": "h.{i}.self_attention.query_key_value",
        f"{_LAYER}.attention.out": "h.{i}.self_attention.dense",
        f"{_LAYER}.feed_forward_norm": "h.{i}.post_attention_layernorm",
        f"{_LAYER}.feed_forward.up": "h.{i}.mlp.dense_h_to_4h",
        f"{_LAYER}.feed_forward.down": "h.{i}.mlp.dense_4h_to_h",
    },
)


# Of models whose attention and feed-forward read norms of their own.
FALCON_NORM_NAMES = _with_modules(
    {},
    {
        f"{_LAYER}.attention_norm": "h.{i}.ln_attn",
        f"{_LAYER}.feed_forward_norm": "h.{i}.ln_mlp",
    },
)


LFM2_NAMES = {
    **NAMES,
    "decoder.norm.weight": ("embedding_norm.weight",),
    f"{_LAYER}.attention_norm.weight": ("layers.{i}.operator_norm.weight",),
    f"{_LAYER}.attention.out.weight": (f"{_ATTENTION}.out_proj.weight",),
    f"{_LAYER}.attention.query_norm.weight": (f"{_ATTENTION}.q_layernorm.weight",),
    f"{_LAYER}.attention.key_norm.weight": (f"{_ATTENTION}.k_layernorm.weight",),
    f"{_LAYER}.convolution.input.weight": ("layers.{i}.conv.in_proj.weight",),
    f"{_LAYER}.convolution.input.bias": ("layers.{i}.conv.in_proj.bias",),
    f"{_LAYER}.convolution.kernel": ("layers.{i}.conv.conv.weight",),
    f"{_LAYER}.convolution.bias": ("layers.{i}.conv.conv.bias",),
    f"{_LAYER}.convolution.out.weight": ("layers.{i}.conv.out_proj.weight",),
    f"{_LAYER}.convolution.out.bias": ("layers.{i}.conv.out_proj.bias",),
    f"{_LAYER}.feed_forward_norm.weight": ("layers.{i}.ffn_norm.weight",),
    f"{_LAYER}.feed_forward.gate_up.weight": (
        "layers.{i}.feed_forward.w1.weight",
        "layers.{i}.feed_forward.w3.weight",
    ),
    f"{_LAYER}.feed_forward.down.weight": ("layers.{i}.feed_forward.w2.weight",),
}


_LFM2_EXPERT = "layers.{i}.feed_forward.experts.{e}"


LFM2_EXPERT_NAMES = {
    **LFM2_NAMES,
    f"{_LAYER}.feed_forward.router.weight": ("layers.{i}.feed_forward.gate.weight",),
    f"{_LAYER}.feed_forward.choice_bias": ("layers.{i}.feed_forward.expert_bias",),
    f"{_LAYER}.feed_forward.gate_up": (f"{_LFM2_EXPERT}.w1.weight", f"{_LFM2_EXPERT}.w3.weight"),
    f"{_LAYER}.feed_forward.down": (f"{_LFM2_EXPERT}.w2.weight",),
}


LFM3_NAMES = {
    **LFM2_NAMES,
    **{
        f"{_LAYER}.attention.{ours}.weight": (f"{_ATTENTION}.{theirs}.weight",)
        for ours, theirs in {
            "out": "o_proj",
            "query_norm": "q_norm",
            "key_norm": "k_norm",
            "gate": "gate_proj",
        }.items()
    },
    f"{_LAYER}.attention_post_norm.weight": ("layers.{i}.post_operator_norm.weight",),
    f"{_LAYER}.convolution_post_norm.weight": ("layers.{i}.post_operator_norm.weight",),
    f"{_LAYER}.feed_forward_post_norm.weight": ("layers.{i}.post_ffn_norm.weight",),
}


# Of the class in transformers, which renames them as it reads.
LFM3_GATE_NAMES = {f"{_LAYER}.attention.gate.weight": (f"{_ATTENTION}.g_proj.weight",)}


QWEN3_5_NAMES = {
    **NAMES,
    f"{_LAYER}.attention.gate.weight": (f"{_ATTENTION}.gate.weight",),
    f"{_LAYER}.delta.input.weight": tuple(
        f"layers.{{i}}.linear_attn.in_proj_{part}.weight" for part in ("qkv", "z", "b", "a")
    ),
    f"{_LAYER}.delta.kernel": ("layers.{i}.linear_attn.conv1d.weight",),
    f"{_LAYER}.delta.decay": ("layers.{i}.linear_attn.A_log",),
    f"{_LAYER}.delta.step_bias": ("layers.{i}.linear_attn.dt_bias",),
    f"{_LAYER}.delta.norm.weight": ("layers.{i}.linear_attn.norm.weight",),
    f"{_LAYER}.delta.out.weight": ("layers.{i}.linear_attn.out_proj.weight",),
}


OLMO_HYBRID_NAMES = {
    **QWEN3_5_NAMES,
    f"{_LAYER}.attention_post_norm.weight": ("layers.{i}.post_attention_layernorm.weight",),
    f"{_LAYER}.feed_forward_post_norm.weight": ("layers.{i}.post_feedforward_layernorm.weight",),
    f"{_LAYER}.delta.input.weight": tuple(
        f"layers.{{i}}.linear_attn.{part}_proj.weight" for part in "qkvgba"
    ),
    f"{_LAYER}.delta.norm.weight": ("layers.{i}.linear_attn.o_norm.weight",),
    f"{_LAYER}.delta.out.weight": ("layers.{i}.linear_attn.o_proj.weight",),
}


QWEN3_5_EXPERT_NAMES = {
    **QWEN_EXPERT_NAMES,
    **{name: QWEN3_5_NAMES[name] for name in QWEN3_5_NAMES.keys() - NAMES.keys()},
}


QWEN_STACKED_NAMES = {
    f"{_LAYER}.feed_forward.gate_up": (f"{_QWEN_FEED_FORWARD}.experts.gate_up_proj",),
    f"{_LAYER}.feed_forward.down": (f"{_QWEN_FEED_FORWARD}.experts.down_proj",),
}


# As transformers 5 names them in memory, and saves them if asked to.
ERNIE_STACKED_NAMES = {
    **QWEN_STACKED_NAMES,
    f"{_LAYER}.feed_forward.choice_bias": (
        f"{_QWEN_FEED_FORWARD}.gate.moe_statics.e_score_correction_bias",
    ),
}


MINIMAX_STACKED_NAMES = {
    **QWEN_STACKED_NAMES,
    f"{_LAYER}.feed_forward.router.weight": (f"{_QWEN_FEED_FORWARD}.gate.weight",),
    f"{_LAYER}.feed_forward.choice_bias": (f"{_QWEN_FEED_FORWARD}.e_score_correction_bias",),
}


LFM2_STACKED_NAMES = {
    f"{_LAYER}.feed_forward.gate_up": ("layers.{i}.feed_forward.experts.gate_up_proj",),
    f"{_LAYER}.feed_forward.down": ("layers.{i}.feed_forward.experts.down_proj",),
}


# As transformers has them.
MISTRAL_LARGE_4_NAMES_IN_MEMORY = {
    **LATENT_NAMES,
    **LATENT_QUERY_NAMES,
    **QWEN_STACKED_NAMES,
    "decoder.rotary_frequencies": ("rotary_emb.alpha",),
    f"{_LAYER}.attention.indexer.query_norm.weight": (f"{_ATTENTION}.indexer.q_input_norm.weight",),
    f"{_LAYER}.attention.indexer.query_norm.bias": (f"{_ATTENTION}.indexer.q_input_norm.bias",),
    **{
        f"{_LAYER}.attention.{block}query_scaling.{part}": (
            f"{_ATTENTION}.{block}softmax_scaling.{part}",
        )
        for block in ("", "indexer.")
        for part in ("scale", "bias")
    },
}


_OF_KIMI = {
    f"{_LAYER}.delta.{ours}": (f"{_ATTENTION}.{theirs}",)
    for ours, theirs in {
        "gate.weight": "g_b_proj.weight",
        "step.weight": "f_b_proj.weight",
        "kernel": "conv1d.weight",
        "decay": "A_log",
        "step_bias": "dt_bias",
        "norm.weight": "o_norm.weight",
        "out.weight": "o_proj.weight",
    }.items()
}
KIMI_NAMES = {
    **LATENT_NAMES,
    **_OF_KIMI,
    f"{_LAYER}.delta.input.weight": tuple(
        f"{_ATTENTION}.{x}_proj.weight" for x in ("q", "k", "v", "g_a", "b", "f_a")
    ),
}
LING_NAMES = {
    **KIMI_NAMES,
    f"{_LAYER}.attention.gate.weight": (f"{_ATTENTION}.g_proj.weight",),
    f"{_LAYER}.delta.input.weight": tuple(
        f"{_ATTENTION}.{x}_proj.weight" for x in ("q", "k", "v", "g", "b", "f")
    ),
}
