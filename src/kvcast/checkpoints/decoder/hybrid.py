"""Model types whose layers are not all attention: convolutions, delta nets, state spaces."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvcast.checkpoints.decoder.fields import (
    LARGEST,
    activation_of,
    experts,
    granite,
    llama,
    qwen_experts,
    shared_experts,
)
from kvcast.checkpoints.decoder.model_type import DEFAULTS, DecoderType
from kvcast.checkpoints.decoder.rotary import FULL, SHARE
from kvcast.checkpoints.decoder.tensor_names import (
    BAMBA_NAMES,
    GRANITE_EXPERT_NAMES,
    GRANITE_HYBRID_NAMES,
    LFM2_NAMES,
    QWEN3_5_EXPERT_NAMES,
    QWEN3_5_NAMES,
    QWEN_STACKED_NAMES,
)
from kvcast.checkpoints.decoder.tensors import MAMBA_CONVOLUTION, keys_first, parts_apart
from kvcast.checkpoints.fields import Fields
from kvcast.families.mixers import CONVOLUTION, DELTA, STATE_SPACE, DeltaNet, StateSpace
from kvcast.spec.sizes import MOST_LAYERS

CONVOLVED, LINEAR = "conv", "linear_attention"


# As files of others and those of transformers 5 have it.
_UNLIMITED = ([0, math.inf], [0, {"__float__": "Infinity"}])


def restate_lfm2(fields: Fields) -> dict[str, Any]:
    inner: float = fields.whole("block_ff_dim", fields.whole("intermediate_size"))
    if fields.flag("block_auto_adjust_ff_dim"):
        inner = int(2 * inner / 3)
        if fields.values["block_ffn_dim_multiplier"] is not None:
            inner = int(min(fields.positive("block_ffn_dim_multiplier") * inner, LARGEST))
            multiple = fields.whole("block_multiple_of")
            inner = -(-inner // multiple) * multiple
    tied = fields.flag("tie_embedding", fields.flag("tie_word_embeddings"))
    restated: dict[str, Any] = {
        "intermediate_size": inner,
        "tie_word_embeddings": tied,
    }
    attending = fields.values.get("full_attn_idxs")
    if fields.values.get("layer_types") is None and attending is not None:
        if not isinstance(attending, list):
            raise fields.error("full_attn_idxs must be a list")
        layers = range(fields.whole("num_hidden_layers", most=MOST_LAYERS))
        restated["layer_types"] = [FULL if i in attending else CONVOLVED for i in layers]
    return restated


def lfm2(fields: Fields) -> dict[str, Any]:
    convolves = CONVOLVED in (fields.values.get("layer_types") or ())
    length, biases = fields.whole("conv_L_cache"), fields.flag("conv_bias")
    if not convolves:
        return {"query_key_norm": True}
    return {"query_key_norm": True, "convolution": length, "convolution_bias": biases}


def restate_qwen3_5(fields: Fields) -> dict[str, Any]:
    if fields.values.get("layer_types") is not None:
        return {}
    interval = fields.whole("full_attention_interval")
    layers = range(1, fields.whole("num_hidden_layers", most=MOST_LAYERS) + 1)
    return {"layer_types": [LINEAR if i % interval else FULL for i in layers]}


def qwen3_5(fields: Fields) -> dict[str, Any]:
    if not fields.flag("attn_output_gate"):
        raise fields.error("attn_output_gate must be true: other models are not supported")
    if activation_of(fields) != "silu":
        raise fields.error("hidden_act must be silu: other models are not supported")
    own: dict[str, Any] = {"query_key_norm": True, "attention_gate": True}
    if LINEAR in fields.values["layer_types"]:
        own["delta"] = fields.make(
            DeltaNet,
            key_heads=fields.whole("linear_num_key_heads"),
            value_heads=fields.whole("linear_num_value_heads"),
            key_dim=fields.whole("linear_key_head_dim"),
            value_dim=fields.whole("linear_value_head_dim"),
            convolution=fields.whole("linear_conv_kernel_dim"),
        )
    if fields.flag("attention_bias"):
        raise fields.error("attention_bias is not supported")
    return own


def qwen3_5_experts(fields: Fields) -> dict[str, Any]:
    shared = {"shared_inner": fields.whole("shared_expert_intermediate_size")}
    return qwen3_5(fields) | qwen_experts(fields) | shared


def restate_qwen3_5_experts(fields: Fields) -> dict[str, Any]:
    return restate_qwen3_5(fields) | {
        "intermediate_size": fields.whole("moe_intermediate_size"),
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    }


def restate_granite_hybrid(fields: Fields) -> dict[str, Any]:
    kinds = fields.values.get("layer_types")
    if kinds is None:
        kinds = [LINEAR] * fields.whole("num_hidden_layers", most=MOST_LAYERS)
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise fields.error("layer_types must be a list of names")
    usual = {"mamba": LINEAR, "attention": FULL}
    return {"layer_types": [usual.get(kind, kind) for kind in kinds]}


def granite_hybrid(fields: Fields) -> dict[str, Any]:
    own = granite(fields) | shared_experts(fields)
    rotation = fields.values.get("position_embedding_type")
    if rotation not in (None, "nope", "rope"):
        raise fields.error(f"position_embedding_type {str(rotation)[:40]!r} is not supported")
    if rotation != "rope":
        own["rotary"] = None
    if LINEAR in fields.values["layer_types"]:
        own["state_space"] = _state_space(fields)
    return own


def restate_bamba(fields: Fields) -> dict[str, Any]:
    attending = fields.values.get("attn_layer_indices") or []
    if not isinstance(attending, list):
        raise fields.error("attn_layer_indices must be a list")
    layers = range(fields.whole("num_hidden_layers", most=MOST_LAYERS))
    return {"layer_types": [FULL if i in attending else LINEAR for i in layers]}


def bamba(fields: Fields) -> dict[str, Any]:
    own = llama(fields)
    if LINEAR in fields.values["layer_types"]:
        own["state_space"] = _state_space(fields)
    return own


def _state_space(fields: Fields) -> StateSpace:
    if activation_of(fields) != "silu":
        raise fields.error("hidden_act must be silu: other models are not supported")
    if fields.values.get("time_step_limit") not in (None, *_UNLIMITED):
        raise fields.error("time_step_limit is not supported: steps must have none")
    heads = fields.whole("mamba_n_heads")
    values = fields.whole("mamba_expand") * fields.whole("hidden_size")
    size = fields.values.get("mamba_d_head")
    head_dim = values // heads if size == "auto" else fields.whole("mamba_d_head")
    if heads * head_dim != values:
        raise fields.error(
            f"mamba_n_heads {heads} of mamba_d_head {head_dim} are not mamba_expand times "
            "hidden_size"
        )
    return fields.make(
        StateSpace,
        key_heads=fields.whole("mamba_n_groups"),
        value_heads=heads,
        key_dim=fields.whole("mamba_d_state"),
        value_dim=head_dim,
        convolution=fields.whole("mamba_d_conv"),
        convolution_bias=fields.flag("mamba_conv_bias"),
        bias=fields.flag("mamba_proj_bias"),
        norm_eps=fields.positive("rms_norm_eps"),
    )


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
    restated=restate_qwen3_5,
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


_QWEN3_5_EXPERTS = replace(_QWEN3_NEXT, restated=restate_qwen3_5_experts)


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
        restated=restate_bamba,
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
        restated=restate_granite_hybrid,
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
        restated=restate_lfm2,
        mixers={CONVOLVED: CONVOLUTION},
        kernels=("conv.conv.weight",),
    ),
}
