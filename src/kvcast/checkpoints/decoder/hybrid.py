"""Model types whose layers are not all attention: convolutions, delta nets, state spaces."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kvcast.checkpoints.decoder.fields import (
    ACTIVATION_FIELDS,
    LARGEST,
    configured_biases,
    experts,
    granite,
    llama,
    olmo2,
    qwen_experts,
    require_silu,
    shared_experts,
)
from kvcast.checkpoints.decoder.model_type import DEFAULTS, GRANITE_DEFAULTS, DecoderType, Factor
from kvcast.checkpoints.decoder.rotary import FULL, SHARE, SLIDING, is_rotated, read_rotary
from kvcast.checkpoints.decoder.tensor_names import (
    BAMBA_NAMES,
    GRANITE_EXPERT_NAMES,
    GRANITE_HYBRID_MLX_NAMES,
    GRANITE_HYBRID_NAMES,
    LFM2_NAMES,
    LFM3_GATE_NAMES,
    LFM3_NAMES,
    NEMOTRON_H_NAMES,
    OLMO_HYBRID_NAMES,
    QWEN3_5_EXPERT_NAMES,
    QWEN3_5_NAMES,
    QWEN_STACKED_NAMES,
)
from kvcast.checkpoints.decoder.tensors import (
    MAMBA_CONVOLUTION,
    blocks_as_layers,
    halves_as_layers,
    join_convolutions,
    keys_first,
    parts_apart,
)
from kvcast.checkpoints.fields import Fields
from kvcast.families.mixers import CONVOLUTION, DELTA, STATE_SPACE, DeltaNet, StateSpace
from kvcast.spec.sizes import MOST_LAYERS

CONVOLVED, LINEAR = "conv", "linear_attention"
MLP, _ALONE = "mlp", "layers_without_mlp"
# Letters of Nemotron-H's patterns; its usual blocks, in order.
_BLOCKS = {"M": LINEAR, "E": "moe", "*": FULL, "-": MLP}


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


def restate_lfm3(fields: Fields) -> dict[str, Any]:
    kinds = fields.values.get("layer_types")
    if kinds is None:
        layers, usual = fields.whole("num_hidden_layers", most=MOST_LAYERS), {2: FULL, 0: SLIDING}
        kinds = [CONVOLVED, *(usual.get(i % 4, CONVOLVED) for i in range(1, layers))]
    return {"layer_types": kinds, "hidden_act": "silu"}


def lfm3(fields: Fields) -> dict[str, Any]:
    return (
        configured_biases(fields)
        | lfm2(fields)
        | {
            "window_rotary": read_rotary(fields, SLIDING, "rope_theta"),
            "post_norms": fields.flag("use_sandwich_norm"),
            "head_gates": fields.flag("use_attention_gate"),
        }
    )


def restate_olmo_hybrid(fields: Fields) -> dict[str, Any]:
    """Sizes of delta nets follow from others unless they are given."""
    heads = fields.whole("num_attention_heads")
    count, of_keys = "linear_num_{}_heads", "linear_key_head_dim"
    restated: dict[str, Any] = {
        name: fields.whole(name, heads) for name in map(count.format, ("key", "value"))
    }
    usual = int(0.75 * fields.whole("hidden_size") / restated[count.format("key")])
    restated[of_keys] = fields.whole(of_keys, max(usual, 1))
    restated["linear_value_head_dim"] = fields.whole("linear_value_head_dim", 2 * restated[of_keys])
    if fields.values.get("layer_types") is None:
        layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
        kinds = [LINEAR if i % 4 != 3 else FULL for i in range(layers)]
        restated["layer_types"] = kinds if FULL in kinds else [*kinds[:-1], FULL]
    return restated


def olmo_hybrid(fields: Fields) -> dict[str, Any]:
    require_silu(fields)
    own = olmo2(fields) | ({} if is_rotated(fields) else {"rotary": None})
    most = 2.0 if fields.flag("linear_allow_neg_eigval") else 1.0
    return own | {"delta": replace(_delta_net(fields), most=most, norm_eps=1e-5)}


def restate_qwen3_5(fields: Fields) -> dict[str, Any]:
    if fields.values.get("layer_types") is not None:
        return {}
    interval = fields.whole("full_attention_interval")
    layers = range(1, fields.whole("num_hidden_layers", most=MOST_LAYERS) + 1)
    return {"layer_types": [LINEAR if i % interval else FULL for i in layers]}


def qwen3_5(fields: Fields) -> dict[str, Any]:
    if not fields.flag("attn_output_gate"):
        raise fields.error("attn_output_gate must be true: other models are not supported")
    require_silu(fields)
    own: dict[str, Any] = {"query_key_norm": True, "attention_gate": True}
    if LINEAR in fields.values["layer_types"]:
        own["delta"] = _delta_net(fields)
    if fields.flag("attention_bias"):
        raise fields.error("attention_bias is not supported")
    return own


def _delta_net(fields: Fields) -> DeltaNet:
    return fields.make(
        DeltaNet,
        key_heads=fields.whole("linear_num_key_heads"),
        value_heads=fields.whole("linear_num_value_heads"),
        key_dim=fields.whole("linear_key_head_dim"),
        value_dim=fields.whole("linear_value_head_dim"),
        convolution=fields.whole("linear_conv_kernel_dim"),
    )


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


def restate_nemotron_h(fields: Fields) -> dict[str, Any]:
    """Blocks are a mixer or a feed-forward each, which follows a mixer in the same layer here."""
    blocks, pattern = fields.values["layer_types"], fields.values.get("hybrid_override_pattern")
    if blocks is None and isinstance(pattern, str):
        blocks = [_BLOCKS.get(letter, letter) for letter in pattern[: 2 * MOST_LAYERS + 1]]
    elif blocks is None:
        blocks = [*_BLOCKS.values()]
    if not isinstance(blocks, list) or not all(isinstance(block, str) for block in blocks):
        raise fields.error("layers_block_type must be a list of names")
    blocks = [{"mamba": LINEAR, "attention": FULL}.get(block, block) for block in blocks]
    if others := set(blocks) - {LINEAR, FULL, MLP}:
        raise fields.error(f"layers_block_type {min(others)[:40]!r} is not supported")
    mixers = [i for i, block in enumerate(blocks) if block != MLP]
    followed = [i for i in mixers if blocks[i + 1 : i + 2] == [MLP]]
    if not mixers or len(mixers) + len(followed) != len(blocks):
        raise fields.error(f"layers_block_type with {MLP} that follows no mixer is not supported")
    return {
        "layer_types": [blocks[i] for i in mixers],
        "num_hidden_layers": len(mixers),
        _ALONE: [layer for layer, i in enumerate(mixers) if i not in followed],
    }


def nemotron_h(fields: Fields) -> dict[str, Any]:
    own = {
        "rotary": None,
        "gated": False,
        "feed_forward_bias": fields.flag("mlp_bias"),
        "without_feed_forward": tuple(fields.values[_ALONE]),
    }
    if LINEAR not in fields.values["layer_types"]:
        return own
    values = fields.whole("mamba_n_heads") * fields.whole("mamba_d_head")
    return own | {"state_space": _state_space(fields, values, ("mamba_hidden_act",))}


def restate_falcon_h1(fields: Fields) -> dict[str, Any]:
    """Make two of each layer, of attention beside a state space."""
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    return {"layer_types": [FULL, LINEAR] * layers, "num_hidden_layers": 2 * layers}


def falcon_h1(fields: Fields) -> dict[str, Any]:
    values = fields.whole("mamba_d_ssm", fields.whole("mamba_expand") * fields.whole("hidden_size"))
    space = _state_space(fields, values)
    if fields.flag("projectors_bias") != space.bias:
        raise fields.error("projectors_bias must be mamba_proj_bias: others are not supported")
    layers = fields.whole("num_hidden_layers")
    normed, before = fields.flag("mamba_rms_norm"), fields.flag("mamba_norm_before_gate")
    place = "before" if before else "behind"
    return llama(fields) | {
        "embedding_scale": fields.positive("embedding_multiplier"),
        "logit_scale": fields.positive("lm_head_multiplier"),
        "without_feed_forward": tuple(range(0, layers, 2)),
        "beside": tuple(range(1, layers, 2)),
        "state_space": replace(space, norm=place if normed else "none"),
    }


def falcon_h1_factors(fields: Fields) -> dict[str, Factor]:
    """Multipliers of results, as factors on weights."""
    of_ssm, of_mlp = map(fields.positive_floats, ("ssm_multipliers", "mlp_multipliers"))
    if (len(of_ssm), len(of_mlp)) != (5, 2):
        raise fields.error("ssm_multipliers must list 5 numbers, mlp_multipliers 2")
    attention, key = map(fields.positive, ("attention_in_multiplier", "key_multiplier"))
    space = falcon_h1(fields)["state_space"]
    sizes = [space.values] * 2 + [space.keys] * 2 + [space.value_heads]
    rows = np.repeat(np.array(of_ssm, np.float32), sizes)
    columns = rows[:, None] * np.float32(fields.positive("ssm_in_multiplier"))
    factors: dict[str, Factor] = {
        "self_attn.q_proj.weight": attention,
        "self_attn.k_proj.weight": attention * key,
        "self_attn.k_proj.bias": key,
        "self_attn.v_proj.weight": attention,
        "mamba.in_proj.weight": columns,
        "mamba.in_proj.bias": rows,
    }
    for module, factor in (
        ("self_attn.o_proj", fields.positive("attention_out_multiplier")),
        ("mamba.out_proj", fields.positive("ssm_out_multiplier")),
        ("feed_forward.gate_proj", of_mlp[0]),
        ("feed_forward.down_proj", of_mlp[1]),
    ):
        factors |= dict.fromkeys((f"{module}.weight", f"{module}.bias"), factor)
    return factors


def _state_space(
    fields: Fields, values: int = 0, activation: Sequence[str] = ACTIVATION_FIELDS
) -> StateSpace:
    require_silu(fields, activation)
    if fields.values.get("time_step_limit") not in (None, *_UNLIMITED):
        raise fields.error("time_step_limit is not supported: steps must have none")
    heads = fields.whole("mamba_n_heads")
    values = values or fields.whole("mamba_expand") * fields.whole("hidden_size")
    size = fields.values.get("mamba_d_head")
    head_dim = values // heads if size == "auto" else fields.whole("mamba_d_head")
    if heads * head_dim != values:
        raise fields.error(
            f"mamba_n_heads {heads} of mamba_d_head {head_dim} are not mamba_expand times "
            "hidden_size, or mamba_d_ssm"
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
    defaults=GRANITE_DEFAULTS,
    particulars=granite,
)


_GRANITE_MODULES = {
    r"\.block_sparse_moe\.input_linear\.weight$": ".block_sparse_moe.experts.gate_up_proj",
    r"\.block_sparse_moe\.output_linear\.weight$": ".block_sparse_moe.experts.down_proj",
    r"\.block_sparse_moe\.router\.layer\.": ".block_sparse_moe.router.",
}


HYBRID_TYPES: Mapping[str, DecoderType] = {
    "granite": _GRANITE,
    "granitemoe": replace(
        _GRANITE,
        particulars=lambda fields: granite(fields) | experts(fields),
        names=GRANITE_EXPERT_NAMES,
        modules=_GRANITE_MODULES,
    ),
    "granitemoeshared": replace(
        _GRANITE,
        defaults={**_GRANITE.defaults, **_SHARED_EXPERTS, "shared_intermediate_size": 0},
        particulars=lambda fields: granite(fields) | shared_experts(fields),
        names=GRANITE_HYBRID_NAMES,
        modules=_GRANITE_MODULES,
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
    "nemotron_h": DecoderType(
        defaults={
            **DEFAULTS,
            "hidden_act": "relu2",
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 4096,
            "mlp_bias": False,
            "layer_types": None,
            "mamba_n_heads": 128,
            "mamba_d_head": 64,
            "mamba_n_groups": 8,
            "mamba_d_state": 128,
            "mamba_d_conv": 4,
            "mamba_hidden_act": "silu",
            "mamba_conv_bias": True,
            "mamba_proj_bias": False,
        },
        spelling={
            "layers_block_type": "layer_types",
            "layer_norm_epsilon": "rms_norm_eps",
            "mlp_hidden_act": "hidden_act",
            "mamba_num_heads": "mamba_n_heads",
            "mamba_head_dim": "mamba_d_head",
            "n_groups": "mamba_n_groups",
            "ssm_state_size": "mamba_d_state",
            "conv_kernel": "mamba_d_conv",
            "use_conv_bias": "mamba_conv_bias",
            "use_bias": "mamba_proj_bias",
        },
        particulars=nemotron_h,
        names=NEMOTRON_H_NAMES,
        restated=restate_nemotron_h,
        mixers={LINEAR: STATE_SPACE},
        kernels=("mixer.conv1d.weight",),
        prepare=blocks_as_layers,
        foreign=("mtp.",),
    ),
    "falcon_h1": DecoderType(
        defaults={
            **DEFAULTS,
            **_MAMBA,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
            "attention_bias": False,
            "mamba_d_ssm": 1024,
            "mamba_norm_before_gate": True,
            "mamba_rms_norm": False,
            "projectors_bias": False,
            "ssm_multipliers": [1.0] * 5,
            "mlp_multipliers": [1.0] * 2,
            **dict.fromkeys(
                (
                    *("embedding_multiplier", "lm_head_multiplier", "key_multiplier"),
                    *("attention_in_multiplier", "attention_out_multiplier"),
                    *("ssm_in_multiplier", "ssm_out_multiplier"),
                ),
                1.0,
            ),
        },
        particulars=falcon_h1,
        factors=falcon_h1_factors,
        names=BAMBA_NAMES,
        restated=restate_falcon_h1,
        mixers={LINEAR: STATE_SPACE},
        kernels=(MAMBA_CONVOLUTION,),
        prepare=halves_as_layers,
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
        names_instead=GRANITE_HYBRID_MLX_NAMES,
        names=GRANITE_HYBRID_NAMES,
        modules=_GRANITE_MODULES,
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
    "lfm3": DecoderType(
        defaults={
            "num_key_value_heads": 4,
            "head_dim": 128,
            "norm_eps": 1e-5,
            "hidden_act": "silu",
            "rope_theta": 10_000.0,
            "rope_parameters": {
                FULL: {"rope_type": "proportional", SHARE: 0.5, "rope_theta": 1_000_000.0},
                SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
            },
            "attention_bias": False,
            "tie_word_embeddings": True,
            "conv_L_cache": 7,
            "conv_bias": False,
            "sliding_window": 256,
            "use_sandwich_norm": True,
            "use_attention_gate": True,
        },
        particulars=lfm3,
        names=LFM3_NAMES,
        names_instead=LFM3_GATE_NAMES,
        modules={r"\.self_attn\.gate_proj\.": ".self_attn.g_proj."},
        restated=restate_lfm3,
        mixers={CONVOLVED: CONVOLUTION},
        kernels=("conv.conv.weight",),
    ),
    "olmo_hybrid": DecoderType(
        defaults={
            **DEFAULTS,
            "attention_bias": False,
            "max_position_embeddings": 65_536,
            "linear_conv_kernel_dim": 4,
            "linear_allow_neg_eigval": True,
        },
        particulars=olmo_hybrid,
        names=OLMO_HYBRID_NAMES,
        modules={
            r"\.attention_layer_norm\.": ".input_layernorm.",
            r"\.feedforward_layer_norm\.": ".post_attention_layernorm.",
        },
        restated=restate_olmo_hybrid,
        mixers={LINEAR: DELTA},
        kernels=tuple(f"linear_attn.{part}conv1d.weight" for part in ("", "q_", "k_", "v_")),
        prepare=join_convolutions,
    ),
}
