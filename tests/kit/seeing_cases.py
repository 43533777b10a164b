"""Configurations of vision-language models: their decoder's fields, as in `decoder_cases`."""

from kit.decoder_cases import EXPERTS, FASTER, TWO, WINDOW, case

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
    "internvl": ("internvl", {**TWO, "hidden_size": 64}),
    "llava next": ("llava_next", TWO),
    "llava onevision": ("llava_onevision", {**TWO, "hidden_size": 64}),
}
# Of the vision encoder, which is not read.
SIGHTS = {
    "qwen2_vl": {"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 64, "patch_size": 4},
    "qwen2_5_vl": {**_QWEN, "intermediate_size": 16, "out_hidden_size": 64},
    "qwen3_vl": {**_QWEN, "intermediate_size": 16, "out_hidden_size": 48}
    | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    "qwen3_vl_moe": {**_QWEN, "intermediate_size": 16, "out_hidden_size": 48}
    | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    "glm4v": {**_QWEN, "intermediate_size": 16, "out_hidden_size": 64, "image_size": 16},
    "exaone4_5": {**_QWEN, "intermediate_size": 16, "out_hidden_size": 48, "num_heads": 8},
    "lfm2_vl": {**_LLAVA, "num_attention_heads": 2, "num_patches": 16, "patch_size": 4},
    "internvl": {**_LLAVA, "num_attention_heads": 2, "image_size": [8, 8], "patch_size": [4, 4]},
    "llava_next": {**_LLAVA, "num_attention_heads": 2, "image_size": 8, "patch_size": 4},
    "llava_onevision": {**_LLAVA, "num_attention_heads": 2, "image_size": 8, "patch_size": 4},
}
