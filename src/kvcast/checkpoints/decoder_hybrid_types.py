"""Model types whose layers hold states or earlier inputs: a row for each. Knows no files."""

from collections.abc import Mapping
from dataclasses import replace

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
    GRANITE_EXPERT_NAMES,
    GRANITE_HYBRID_NAMES,
    LFM2_NAMES,
    QWEN3_5_EXPERT_NAMES,
    QWEN3_5_NAMES,
    QWEN_STACKED_NAMES,
)
from kvcast.checkpoints.decoder_particulars import experts, granite, shared_experts
from kvcast.checkpoints.decoder_tensors import MAMBA_CONVOLUTION, keys_first, parts_apart
from kvcast.checkpoints.decoder_type import DEFAULTS, DecoderType
from kvcast.checkpoints.rotary_huggingface import SHARE
from kvcast.families.convolutions import CONVOLUTION, DELTA, STATE_SPACE

_QWEN3_5 = DecoderType(
    defaults={
        **DEFAULTS,
        "num_key_value_heads": 4,
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
        "num_key_value_heads": 2,
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
        **DEFAULTS,
        "attention_bias": False,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    particulars=granite,
)


HYBRID_TYPES: Mapping[str, DecoderType] = {
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
            **DEFAULTS,
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
