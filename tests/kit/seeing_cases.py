"""Configurations of vision-language models: their decoder's fields, as in `decoder_cases`."""

from kit.decoder_cases import (
    EXPERTS,
    FASTER,
    INDEXED,
    LATENT_EXPERTS,
    LATENTS,
    TWO,
    WINDOW,
    YARN,
    case,
)

_HALF = {**FASTER, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}
_WHOLE = {**FASTER, "mrope_section": [2, 3, 3]}
_WINDOWS = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
_LLAVA = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
_QWEN = {"depth": 1, "hidden_size": 16, "num_heads": 2, "patch_size": 4}
SEEING_CASES = {
    "qwen 2 vl": ("qwen2_vl", {**TWO, **_WINDOWS, "hidden_size": 64, "rope_parameters": _WHOLE}),
    "qwen 2.5 vl": case(
        "qwen2_5_vl",
        TWO,
        hidden_size=64,
        rms_norm_eps=0.01,
        hidden_act="gelu",
        rope_parameters={"rope_type": "mrope", "rope_theta": 500.0} | {"mrope_section": [2, 3, 3]},
    ),
    "qwen 3 vl": case(
        "qwen3_vl",
        TWO,
        attention_bias=True,
        rms_norm_eps=0.01,
        hidden_act="gelu",
        rope_parameters={**_WHOLE, "mrope_interleaved": True},
    ),
    "qwen 3 vl with experts": case(
        "qwen3_vl_moe",
        TWO,
        EXPERTS,
        attention_bias=True,
        mlp_only_layers=[1],
        rms_norm_eps=0.01,
        rope_parameters={**_WHOLE, "mrope_interleaved": True},
    ),
    "qwen 3 vl with experts in each other layer": case(
        "qwen3_vl_moe", TWO, EXPERTS, decoder_sparse_step=2
    ),
    "glm 4 v": case("glm4v", TWO, hidden_size=64, rope_parameters=_HALF, rms_norm_eps=0.01),
    "glm 4 v of whole heads": case(
        "glm4v", TWO, hidden_size=64, rope_parameters=_WHOLE, hidden_act="gelu"
    ),
    "exaone 4.5": ("exaone4_5", {**TWO, "sliding_window": WINDOW, "sliding_window_pattern": 2}),
    "lfm 2 vl": ("lfm2_vl", {**TWO, "layer_types": ["conv", "full_attention"]}),
    "muse glimmer": case(
        "muse_glimmer",
        sliding_window=WINDOW,
        hidden_size=64,
        attention_bias=True,
        final_logit_softcapping=5.0,
        hidden_activation="gelu",
        layer_rope_theta=[0, 500.0, 0, 500.0],
        output_multiplier=0.5,
        post_norm_eps=0.02,
        qk_scale_factor=1.5,
        rms_norm_eps=0.01,
        rope_parameters=FASTER,
    ),
    "muse glimmer of other layers": case(
        "muse_glimmer",
        TWO,
        hidden_size=64,
        num_key_value_heads=1,
        sliding_window=WINDOW,
        layer_types=["full_attention", "sliding_attention"],
    ),
    "mistral large 4": case(
        "mistral_large4",
        LATENTS,
        LATENT_EXPERTS,
        INDEXED,
        num_hidden_layers=6,
        q_lora_rank=None,
        attention_bias=True,
        no_rope_layers=[1, 0, 1, 1, 0, 1],
        # The last layer reads layer 2.
        kv_source_layers=[0, 1, 2, 2, 1, 0],
        indexer_types=["full", "full", "full", "shared", "shared", "full"],
        final_logit_softcapping=3.0,
        rope_parameters={**YARN, "mscale_all_dim": 0.9},
    ),
    "mistral large 4 whose layers all have caches": case(
        "mistral_large4",
        LATENTS,
        LATENT_EXPERTS,
        INDEXED,
        num_hidden_layers=4,
        q_lora_rank=None,
        first_k_dense_replace=3,
        rms_norm_eps=0.01,
        routed_scaling_factor=1.5,
    ),
    "internvl": ("internvl", {**TWO, "hidden_size": 64}),
    "llava next": ("llava_next", TWO),
    "llava onevision": ("llava_onevision", {**TWO, "hidden_size": 64}),
}
# Of the model around both.
AROUND = {"muse_glimmer": {"out_hidden_size": 64, "projector_hidden_size": 16}}
# Of the vision encoder, which is not read.
SIGHTS = {
    "mistral_large4": {**_LLAVA, "num_attention_heads": 2, "image_size": 8, "patch_size": 4},
    "qwen2_vl": {"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 64, "patch_size": 4},
    "qwen2_5_vl": {**_QWEN, "intermediate_size": 16, "out_hidden_size": 64},
    "qwen3_vl": {**_QWEN, "intermediate_size": 16, "out_hidden_size": 48}
    | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    "qwen3_vl_moe": {**_QWEN, "intermediate_size": 16, "out_hidden_size": 48}
    | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    "glm4v": {**_QWEN, "intermediate_size": 16, "out_hidden_size": 64, "image_size": 16},
    "exaone4_5": {**_QWEN, "intermediate_size": 16, "out_hidden_size": 48, "num_heads": 8},
    "lfm2_vl": {**_LLAVA, "num_attention_heads": 2, "num_patches": 16, "patch_size": 4},
    "muse_glimmer": {**_LLAVA, "num_attention_heads": 2, "patch_size": 4}
    | {"pos_emb_height": 4, "pos_emb_width": 4},
    "internvl": {**_LLAVA, "num_attention_heads": 2, "image_size": [8, 8], "patch_size": [4, 4]},
    "llava_next": {**_LLAVA, "num_attention_heads": 2, "image_size": 8, "patch_size": 4},
    "llava_onevision": {**_LLAVA, "num_attention_heads": 2, "image_size": 8, "patch_size": 4},
}
