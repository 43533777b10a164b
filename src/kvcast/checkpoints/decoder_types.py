"""Model types of decoder-only models in Hugging Face layout: a row for each.

A row has a type's defaults, its names of tensors, and functions from fields of its configuration to
dimensions. Knows no files.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.decoder_hybrids import (
    CONVOLVED,
    LINEAR,
    bamba,
    bamba_restated,
    granite_hybrid,
    granite_hybrid_restated,
    lfm2,
    lfm2_restated,
    qwen3_5,
    qwen3_5_experts,
    qwen3_5_experts_restated,
    qwen3_5_restated,
)
from kvcast.checkpoints.decoder_names import (
    BAMBA_NAMES,
    FUSED_NAMES,
    GEMMA_4_NAMES,
    GEMMA_NAMES,
    GLM_NAMES,
    GPT2_NAMES,
    GPT_OSS_NAMES,
    GRANITE_EXPERT_NAMES,
    GRANITE_HYBRID_NAMES,
    LAYER_NORM_NAMES,
    LFM2_NAMES,
    NAMES,
    NEOX_NAMES,
    PHI_NAMES,
    QWEN3_5_EXPERT_NAMES,
    QWEN3_5_NAMES,
    QWEN_EXPERT_NAMES,
    QWEN_STACKED_NAMES,
    STARCODER_NAMES,
)
from kvcast.checkpoints.decoder_particulars import (
    always_windowed,
    cohere,
    cohere2,
    configured_biases,
    exaone4,
    experts,
    gemma1,
    gemma2,
    gemma3,
    gemma4,
    gemma4_restated,
    glm,
    gpt2,
    gpt_oss,
    granite,
    helium,
    llama,
    neox,
    olmo2,
    phi,
    qwen2_experts,
    qwen3_experts,
    shared_experts,
    smollm3,
    stablelm,
    starcoder2,
    windowed_but_every_nth,
    windowed_from_a_layer_on,
    windowed_if_any_but_every_nth,
    windowed_if_used,
    windowed_in_turns_up_to_a_layer,
    windowed_unless_rotated,
)
from kvcast.checkpoints.decoder_tensors import (
    MAMBA_CONVOLUTION,
    keys_first,
    norms_of_heads_joined,
    parts_apart,
    routers_scaled,
)
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.gpt_oss import experts_by_rows
from kvcast.checkpoints.rotary_huggingface import FULL, QUERY_BETA, SHARE, SLIDING, read_rotary
from kvcast.families.convolutions import CONVOLUTION, DELTA, STATE_SPACE
from kvcast.families.decoder_dimensions import DecoderDimensions

IMAGES = ("vision_tower.", "vision_model.", "multi_modal_projector.", "connector.")


_Prepare: TypeAlias = Callable[
    [Mapping[str, StoredTensor], DecoderDimensions], dict[str, StoredTensor]
]


@dataclass(frozen=True, kw_only=True)
class DecoderType:
    """Properties of a model type beyond its configuration.

    `defaults`: transformers' defaults for fields that published configurations leave out.
    `windowed`: whether a layer has a window if there is no layer_types.
    `particulars`: dimensions that other types do not have.
    `spelling`: usual names of fields that the type has under others.
    `epsilon`: name of the field of the norms' epsilon.
    `inner_per_width`: inner width over the hidden state's where there is no field of it.
    `by_head`: whether query, key and value of a head follow one another.
    `transposed`: whether matrices of layers are [inputs, outputs].
    `restated`: fields under the names that other types have, if they follow from several.
    `mixers`: of dimensions, by layer types without attention.
    `kernels`: ends of the names of convolutions' kernels.
    `norms_less_one`: whether norm weights are stored minus one; `whole_norms`: ends of the names
        of others.
    `rotary`: settings of rotary embeddings that other types do not have.
    `neighbours`: whether rotary pairs are neighbouring rows, not halves of what turns.
    `prepare`: changes tensors that a table of names cannot describe.
    `names_instead`: names that files may have in place of others.
    `foreign`: name prefixes of parts that are not read.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    windowed: Callable[[Fields, int], bool] = lambda _fields, _layer: False
    particulars: Callable[[Fields], Mapping[str, Any]] = lambda _fields: {}
    names: Mapping[str, Sequence[str]] = field(default_factory=lambda: NAMES)
    spelling: Mapping[str, str] = field(default_factory=dict)
    epsilon: str = "rms_norm_eps"
    inner_per_width: int = 0
    by_head: bool = False
    transposed: bool = False
    restated: Callable[[Fields], Mapping[str, Any]] = lambda _fields: {}
    mixers: Mapping[str, str] = field(default_factory=dict)
    kernels: tuple[str, ...] = ()
    norms_less_one: bool = False
    rotary: tuple[str, ...] = ()
    neighbours: bool = False
    prepare: _Prepare = lambda own, _dimensions: dict(own)
    whole_norms: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    names_instead: Mapping[str, Sequence[str]] = field(default_factory=dict)


_DEFAULTS = {
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


_QWEN_DEFAULTS = {
    **_DEFAULTS,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


_QWEN_EXPERTS_DEFAULTS = {
    **_QWEN_DEFAULTS,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
    "qkv_bias": True,
}


_GEMMA_1 = DecoderType(
    defaults={
        **_DEFAULTS,
        "hidden_act": "gelu_pytorch_tanh",
        "head_dim": 256,
        "attention_bias": False,
        "use_bidirectional_attention": False,
        "tie_word_embeddings": True,
    },
    particulars=gemma1,
    norms_less_one=True,
)


_GEMMA_2 = replace(
    _GEMMA_1,
    defaults={
        **_GEMMA_1.defaults,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    windowed=windowed_but_every_nth,
    particulars=gemma2,
    names=GEMMA_NAMES,
)


_COHERE = DecoderType(
    defaults={
        **_DEFAULTS,
        "rope_theta": 500_000.0,
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "attention_bias": False,
        "tie_word_embeddings": True,
    },
    particulars=cohere,
    prepare=norms_of_heads_joined,
    epsilon="layer_norm_eps",
    neighbours=True,
)


_OLMO_2 = DecoderType(
    defaults={**_DEFAULTS, "rms_norm_eps": 1e-5, "attention_bias": False},
    particulars=olmo2,
    names=GEMMA_NAMES,
)


_GEMMA = DecoderType(
    # Published configurations of the larger models list little more than what differs from the 2B.
    defaults={
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "query_pre_attn_scalar": 256,
        "attention_bias": False,
        "use_bidirectional_attention": False,
        "tie_word_embeddings": True,
    },
    windowed=windowed_but_every_nth,
    particulars=gemma3,
    names=GEMMA_NAMES,
    norms_less_one=True,
    foreign=IMAGES,
)


_GEMMA_4 = DecoderType(
    defaults={
        "vocab_size": 262_144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_parameters": {
            FULL: {"rope_type": "proportional", SHARE: 0.25, "rope_theta": 1_000_000.0},
            SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "sliding_window": 512,
        "final_logit_softcapping": None,
        "attention_bias": False,
        "attention_k_eq_v": False,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
        "enable_moe_block": False,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262_144,
        "tie_word_embeddings": True,
    },
    restated=gemma4_restated,
    particulars=gemma4,
    names=GEMMA_4_NAMES,
    prepare=routers_scaled,
    foreign=(*IMAGES, "audio_tower.", "embed_vision.", "embed_audio."),
)


_GEMMA_4_UNIFIED = replace(
    _GEMMA_4,
    defaults={
        **_GEMMA_4.defaults,
        "max_position_embeddings": 262_144,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
    },
)


_GLM = DecoderType(
    defaults={**_DEFAULTS, "rms_norm_eps": 1.5625e-7, SHARE: 0.5, "attention_bias": True},
    particulars=glm,
    names=GLM_NAMES,
    rotary=(SHARE,),
    neighbours=True,
)


_QWEN3_5 = DecoderType(
    defaults={
        **_DEFAULTS,
        "head_dim": 256,
        "attention_bias": False,
        "attn_output_gate": True,
        "full_attention_interval": 4,
        SHARE: 0.25,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    },
    particulars=qwen3_5,
    restated=qwen3_5_restated,
    names=QWEN3_5_NAMES,
    mixers={LINEAR: DELTA},
    kernels=("linear_attn.conv1d.weight",),
    norms_less_one=True,
    whole_norms=("linear_attn.norm.weight",),
    rotary=(SHARE,),
    prepare=parts_apart,
    foreign=("visual.", "mtp."),
)


_QWEN3_NEXT = replace(
    _QWEN3_5,
    defaults={
        **_QWEN3_5.defaults,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    },
    particulars=qwen3_5_experts,
    names=QWEN3_5_EXPERT_NAMES,
    names_instead=QWEN_STACKED_NAMES,
)


_QWEN3_5_EXPERTS = replace(_QWEN3_NEXT, restated=qwen3_5_experts_restated)


_MAMBA = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_head": "auto",
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}


_SHARED_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}


_GRANITE = DecoderType(
    defaults={
        **_DEFAULTS,
        "attention_bias": False,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    particulars=granite,
)


TYPES: Mapping[str, DecoderType] = {
    "llama": DecoderType(defaults={**_DEFAULTS, "attention_bias": False}, particulars=llama),
    "mistral": DecoderType(
        defaults={**_DEFAULTS, "sliding_window": 4096}, windowed=always_windowed
    ),
    "mixtral": DecoderType(
        defaults={**_DEFAULTS, "rope_theta": 1_000_000.0, "rms_norm_eps": 1e-5},
        windowed=always_windowed,
        particulars=experts,
    ),
    "qwen2": DecoderType(
        defaults=_QWEN_DEFAULTS,
        windowed=windowed_from_a_layer_on,
        particulars=lambda _fields: {"qkv_bias": True},
    ),
    "qwen3": DecoderType(
        defaults={**_QWEN_DEFAULTS, "head_dim": 128},
        windowed=windowed_from_a_layer_on,
        particulars=lambda fields: configured_biases(fields) | {"query_key_norm": True},
    ),
    "qwen2_moe": DecoderType(
        defaults=_QWEN_EXPERTS_DEFAULTS,
        windowed=windowed_in_turns_up_to_a_layer,
        particulars=qwen2_experts,
        names=QWEN_EXPERT_NAMES,
        names_instead=QWEN_STACKED_NAMES,
    ),
    "qwen3_moe": DecoderType(
        defaults=_QWEN_EXPERTS_DEFAULTS,
        windowed=windowed_if_used,
        particulars=qwen3_experts,
        names=QWEN_EXPERT_NAMES,
        names_instead=QWEN_STACKED_NAMES,
    ),
    "gpt_oss": DecoderType(
        defaults={
            **_DEFAULTS,
            "rope_theta": 150_000.0,
            "rms_norm_eps": 1e-5,
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
        prepare=experts_by_rows,
    ),
    "phi3": DecoderType(
        defaults={
            **_DEFAULTS,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
        },
        windowed=always_windowed,
        names=FUSED_NAMES,
        rotary=(SHARE,),
    ),
    "ministral": DecoderType(
        defaults={**_DEFAULTS, "sliding_window": 4096}, windowed=always_windowed
    ),
    "ministral3": DecoderType(
        defaults={
            **_DEFAULTS,
            "rms_norm_eps": 1e-5,
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
    "glm4": replace(_GLM, particulars=lambda fields: glm(fields) | {"post_norms": True}),
    "gemma": _GEMMA_1,
    "gemma2": _GEMMA_2,
    "granite": _GRANITE,
    "granitemoe": replace(
        _GRANITE,
        particulars=lambda fields: granite(fields) | experts(fields),
        names=GRANITE_EXPERT_NAMES,
    ),
    "granitemoeshared": replace(
        _GRANITE,
        defaults={**_GRANITE.defaults, **_SHARED_EXPERTS, "shared_intermediate_size": 0},
        particulars=lambda fields: granite(fields) | shared_experts(fields),
        names=GRANITE_HYBRID_NAMES,
    ),
    "bamba": DecoderType(
        defaults={
            **_DEFAULTS,
            **_MAMBA,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "max_position_embeddings": 262_144,
            "attention_bias": False,
            SHARE: 0.5,
        },
        particulars=bamba,
        names=BAMBA_NAMES,
        rotary=(SHARE,),
        restated=bamba_restated,
        mixers={LINEAR: STATE_SPACE},
        kernels=(MAMBA_CONVOLUTION,),
        prepare=keys_first,
    ),
    "granitemoehybrid": replace(
        _GRANITE,
        defaults={
            **_GRANITE.defaults,
            **_SHARED_EXPERTS,
            **_MAMBA,
            "intermediate_size": 11_008,
            "shared_intermediate_size": 1024,
        },
        particulars=granite_hybrid,
        names=GRANITE_HYBRID_NAMES,
        spelling={"layers_block_type": "layer_types"},
        restated=granite_hybrid_restated,
        mixers={LINEAR: STATE_SPACE},
        kernels=(MAMBA_CONVOLUTION,),
        prepare=keys_first,
    ),
    "smollm3": DecoderType(
        defaults={
            **_DEFAULTS,
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
    "exaone4": DecoderType(
        defaults={**_DEFAULTS, "rms_norm_eps": 1e-5, "sliding_window": 4096}
        | {"sliding_window_pattern": 4},
        windowed=windowed_if_any_but_every_nth,
        particulars=exaone4,
        names=GEMMA_NAMES,
    ),
    "starcoder2": DecoderType(
        defaults={
            **_DEFAULTS,
            "hidden_act": "gelu_pytorch_tanh",
            "num_key_value_heads": 2,
            "norm_epsilon": 1e-5,
            "use_bias": True,
            "tie_word_embeddings": True,
        },
        windowed=always_windowed,
        particulars=starcoder2,
        names=STARCODER_NAMES,
        epsilon="norm_epsilon",
    ),
    "stablelm": DecoderType(
        defaults={
            **_DEFAULTS,
            "layer_norm_eps": 1e-5,
            SHARE: 0.25,
            "use_qkv_bias": False,
            "use_parallel_residual": False,
        },
        particulars=stablelm,
        prepare=norms_of_heads_joined,
        names=LAYER_NORM_NAMES,
        epsilon="layer_norm_eps",
        rotary=(SHARE,),
    ),
    "cohere": _COHERE,
    "cohere2": replace(
        _COHERE,
        defaults={
            **_COHERE.defaults,
            "rope_theta": 10_000.0,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        windowed=windowed_but_every_nth,
        particulars=cohere2,
    ),
    "gpt_neox": DecoderType(
        defaults={
            **_DEFAULTS,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            SHARE: 0.25,
            "attention_bias": True,
            "use_parallel_residual": True,
        },
        spelling={"rotary_emb_base": "rope_theta", "rotary_pct": SHARE},
        particulars=neox,
        names=NEOX_NAMES,
        epsilon="layer_norm_eps",
        rotary=(SHARE,),
        by_head=True,
    ),
    "phi": DecoderType(
        defaults={
            **_DEFAULTS,
            "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-5,
            SHARE: 0.5,
            "qk_layernorm": False,
        },
        particulars=phi,
        names=PHI_NAMES,
        epsilon="layer_norm_eps",
        rotary=(SHARE,),
    ),
    "gpt2": DecoderType(
        defaults={
            **_DEFAULTS,
            "hidden_act": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "scale_attn_weights": True,
            "tie_word_embeddings": True,
        },
        spelling={
            "n_embd": "hidden_size",
            "n_inner": "intermediate_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_positions": "max_position_embeddings",
            "activation_function": "hidden_act",
        },
        particulars=gpt2,
        names=GPT2_NAMES,
        epsilon="layer_norm_epsilon",
        inner_per_width=4,
        transposed=True,
    ),
    "helium": DecoderType(
        defaults={
            **_DEFAULTS,
            "rope_theta": 100_000.0,
            "rms_norm_eps": 1e-8,
            "head_dim": 128,
            "attention_bias": False,
        },
        particulars=helium,
        neighbours=True,
    ),
    "gemma3_text": _GEMMA,
    "gemma3": _GEMMA,
    "gemma4_text": _GEMMA_4,
    "gemma4": _GEMMA_4,
    "gemma4_unified_text": _GEMMA_4_UNIFIED,
    "gemma4_unified": _GEMMA_4_UNIFIED,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5": _QWEN3_5,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_moe_text": _QWEN3_5_EXPERTS,
    "qwen3_5_moe": _QWEN3_5_EXPERTS,
    "lfm2": DecoderType(
        defaults={
            "intermediate_size": 12_288,
            "num_key_value_heads": 8,
            "norm_eps": 1e-5,
            "hidden_act": "silu",
            "rope_theta": 1_000_000.0,
            "tie_word_embeddings": True,
            "conv_L_cache": 3,
            "conv_bias": False,
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.0,
            "block_multiple_of": 256,
        },
        particulars=lfm2,
        names=LFM2_NAMES,
        restated=lfm2_restated,
        epsilon="norm_eps",
        mixers={CONVOLVED: CONVOLUTION},
        kernels=("conv.conv.weight",),
    ),
}


# Models with images whose decoder is of any type, and that type where text_config names none.
WRAPPERS: Mapping[str, str] = {
    **dict.fromkeys(("llava", "idefics3", "smolvlm"), "llama"),
    **dict.fromkeys(("aya_vision", "cohere2_vision"), "cohere2"),
    "mistral3": "mistral",
}
