"""Model types that are Llama with a difference: a row for each."""

from collections.abc import Mapping
from dataclasses import replace

from kvcast.checkpoints.decoder.fields import (
    always_windowed,
    configured_biases,
    ernie,
    exaone4,
    experts,
    glm,
    gpt_oss,
    granite_swa,
    helium,
    hunyuan,
    llama,
    olmo2,
    olmoe,
    qwen2_experts,
    qwen3_experts,
    seed_oss,
    smollm3,
    windowed_but_every_nth,
    windowed_from_a_layer_on,
    windowed_if_any_but_every_nth,
    windowed_if_used,
    windowed_in_turns_up_to_a_layer,
    windowed_unless_rotated,
)
from kvcast.checkpoints.decoder.model_type import DEFAULTS, GRANITE_DEFAULTS, DecoderType
from kvcast.checkpoints.decoder.rotary import QUERY_BETA, SHARE, SLIDING, read_rotary
from kvcast.checkpoints.decoder.tensor_names import (
    APERTUS_NAMES,
    FUSED_NAMES,
    GEMMA_NAMES,
    GLM_NAMES,
    GPT_OSS_NAMES,
    HUNYUAN_NAMES,
    QWEN_EXPERT_NAMES,
    QWEN_STACKED_NAMES,
    SINK_NAMES,
)
from kvcast.checkpoints.decoder.tensors import (
    experts_by_rows,
    softened_xielu,
    transpose_experts,
)

_MISTRAL = DecoderType(
    defaults={**DEFAULTS, "num_key_value_heads": 8, "sliding_window": 4096},
    windowed=always_windowed,
)


_QWEN_DEFAULTS = {
    **DEFAULTS,
    "num_key_value_heads": 32,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


_QWEN_EXPERTS_DEFAULTS = {
    **_QWEN_DEFAULTS,
    "num_key_value_heads": 16,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
    "qkv_bias": True,
}


_QWEN_2 = DecoderType(
    defaults=_QWEN_DEFAULTS,
    windowed=windowed_from_a_layer_on,
    particulars=lambda _fields: {"qkv_bias": True},
)


_QWEN_2_VL = replace(
    _QWEN_2,
    defaults={
        **_QWEN_DEFAULTS,
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "max_window_layers": 80,
    },
    foreign=("visual.",),
)


_QWEN_3 = DecoderType(
    defaults={**_QWEN_DEFAULTS, "head_dim": 128},
    windowed=windowed_from_a_layer_on,
    particulars=lambda fields: configured_biases(fields) | {"query_key_norm": True},
)


_QWEN_3_EXPERTS = DecoderType(
    defaults={**_QWEN_EXPERTS_DEFAULTS, "num_key_value_heads": 4},
    windowed=windowed_if_used,
    particulars=qwen3_experts,
    names=QWEN_EXPERT_NAMES,
    names_instead=QWEN_STACKED_NAMES,
)


_OLMO_2 = DecoderType(
    defaults={**DEFAULTS, "rms_norm_eps": 1e-5, "attention_bias": False},
    particulars=olmo2,
    names=GEMMA_NAMES,
)

_GLM = DecoderType(
    defaults={
        **DEFAULTS,
        "rms_norm_eps": 1.5625e-7,
        "num_key_value_heads": 2,
        "head_dim": 128,
        SHARE: 0.5,
        "attention_bias": True,
    },
    particulars=glm,
    names=GLM_NAMES,
    rotary=(SHARE,),
    neighbours=True,
)


_GLM_4 = replace(_GLM, particulars=lambda fields: glm(fields) | {"post_norms": True})


_EXAONE_4 = DecoderType(
    defaults={
        **DEFAULTS,
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    windowed=windowed_if_any_but_every_nth,
    particulars=exaone4,
    names=GEMMA_NAMES,
)


LLAMA_TYPES: Mapping[str, DecoderType] = {
    "llama": DecoderType(defaults={**DEFAULTS, "attention_bias": False}, particulars=llama),
    "mistral": _MISTRAL,
    "mixtral": DecoderType(
        defaults={
            **DEFAULTS,
            "rope_theta": 1_000_000.0,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
        },
        windowed=always_windowed,
        particulars=experts,
        modules={r"\.block_sparse_moe\.": ".mlp."},
    ),
    "qwen2": _QWEN_2,
    "qwen2_vl": _QWEN_2_VL,
    "qwen2_5_vl": _QWEN_2_VL,
    "qwen3": _QWEN_3,
    "qwen3_vl": replace(
        _QWEN_3,
        defaults={**_QWEN_3.defaults, "rope_theta": 500_000.0},
        windowed=lambda _fields, _layer: False,
        foreign=("visual.",),
    ),
    "qwen2_moe": DecoderType(
        defaults=_QWEN_EXPERTS_DEFAULTS,
        windowed=windowed_in_turns_up_to_a_layer,
        particulars=qwen2_experts,
        names=QWEN_EXPERT_NAMES,
        names_instead=QWEN_STACKED_NAMES,
    ),
    "qwen3_moe": _QWEN_3_EXPERTS,
    "qwen3_vl_moe": replace(
        _QWEN_3_EXPERTS,
        defaults={**_QWEN_EXPERTS_DEFAULTS, "rope_theta": 500_000.0},
        windowed=lambda _fields, _layer: False,
        restated=lambda _fields: {"norm_topk_prob": True},
        prepare=transpose_experts,
        foreign=("visual.",),
    ),
    "gpt_oss": DecoderType(
        defaults={
            **DEFAULTS,
            "rope_theta": 150_000.0,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131_072,
            "sliding_window": 128,
            "attention_bias": True,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 32.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        },
        windowed=lambda _fields, layer: layer % 2 == 0,
        particulars=gpt_oss,
        names=GPT_OSS_NAMES,
        transposed=True,
        prepare=experts_by_rows,
    ),
    "phi3": DecoderType(
        defaults={
            **DEFAULTS,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
        },
        windowed=always_windowed,
        names=FUSED_NAMES,
        rotary=(SHARE,),
    ),
    "ministral": _MISTRAL,
    "ministral3": DecoderType(
        defaults={
            **DEFAULTS,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 262_144,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1_000_000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 16_384,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        windowed=always_windowed,
        rotary=(QUERY_BETA,),
    ),
    "glm": _GLM,
    "glm4": _GLM_4,
    "glm4v": replace(
        _GLM_4,
        defaults={
            **_GLM_4.defaults,
            "rms_norm_eps": 1e-5,
            "head_dim": None,
            SHARE: 1.0,
        },
        restated=lambda _fields: {"attention_bias": True},
        foreign=("visual.",),
    ),
    "smollm3": DecoderType(
        defaults={
            **DEFAULTS,
            "rope_theta": 2_000_000.0,
            "num_key_value_heads": 4,
            "attention_bias": False,
            "use_sliding_window": False,
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
        },
        windowed=windowed_unless_rotated,
        particulars=smollm3,
    ),
    "hunyuan_v1_dense": DecoderType(
        defaults={**DEFAULTS, "rms_norm_eps": 1e-5, "attention_bias": False},
        particulars=hunyuan,
        names=HUNYUAN_NAMES,
    ),
    "apertus": DecoderType(
        defaults={
            **DEFAULTS,
            "hidden_act": "xielu",
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
            "max_position_embeddings": 65_536,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 12_000_000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 8192,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            },
        },
        particulars=lambda fields: (
            configured_biases(fields) | {"query_key_norm": True, "gated": False}
        ),
        names=APERTUS_NAMES,
        prepare=softened_xielu,
    ),
    "granite_swa": DecoderType(
        defaults={
            **GRANITE_DEFAULTS,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 4,
            "max_position_embeddings": 8192,
            "sliding_window": 128,
            "tie_word_embeddings": True,
        },
        windowed=lambda _fields, layer: layer % 4 != 0,
        particulars=granite_swa,
        names=SINK_NAMES,
    ),
    "olmo2": _OLMO_2,
    "olmo3": replace(
        _OLMO_2,
        defaults={
            **_OLMO_2.defaults,
            "rope_theta": 500_000.0,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        windowed=windowed_but_every_nth,
        particulars=lambda fields: (
            olmo2(fields) | {"window_rotary": read_rotary(fields, SLIDING, "rope_theta")}
        ),
    ),
    "exaone4": _EXAONE_4,
    "exaone4_5": replace(_EXAONE_4, foreign=("visual.", "mtp.")),
    "helium": DecoderType(
        defaults={
            **DEFAULTS,
            "rope_theta": 100_000.0,
            "rms_norm_eps": 1e-8,
            "num_key_value_heads": 20,
            "head_dim": 128,
            "attention_bias": False,
        },
        particulars=helium,
        neighbours=True,
    ),
    "seed_oss": DecoderType(
        defaults={
            **DEFAULTS,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "attention_bias": True,
            "attention_out_bias": False,
        },
        particulars=seed_oss,
    ),
    "arcee": DecoderType(
        defaults={
            **DEFAULTS,
            "hidden_act": "relu2",
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
        },
        particulars=lambda fields: llama(fields) | {"gated": False},
    ),
    "internlm3": DecoderType(
        defaults={
            **DEFAULTS,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "attention_bias": False,
        },
        spelling={"qkv_bias": "attention_bias", "bias": "mlp_bias"},
        particulars=llama,
    ),
    "ernie4_5": DecoderType(
        defaults={
            **DEFAULTS,
            "rope_theta": 500_000.0,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "use_bias": False,
            "tie_word_embeddings": True,
        },
        particulars=ernie,
        neighbours=True,
    ),
    "olmoe": DecoderType(
        defaults={
            **DEFAULTS,
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
            "norm_topk_prob": False,
            "num_experts": 64,
            "num_experts_per_tok": 8,
        },
        particulars=olmoe,
        names=QWEN_EXPERT_NAMES,
        names_instead=QWEN_STACKED_NAMES,
    ),
}
