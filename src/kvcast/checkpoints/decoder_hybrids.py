"""Fields of decoder-only models whose layers hold states or earlier inputs, as dimensions.

Knows no files and no tensors.
"""

import math
from typing import Any

from kvcast.checkpoints.decoder_particulars import (
    LARGEST,
    activation_of,
    granite,
    llama,
    qwen_experts,
    shared_experts,
)
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.rotary_huggingface import FULL
from kvcast.families.delta_nets import DeltaNet
from kvcast.families.state_spaces import StateSpace
from kvcast.spec.sizes import MOST_LAYERS

CONVOLVED, LINEAR = "conv", "linear_attention"


# As files of others and those of transformers 5 have it.
_UNLIMITED = ([0, math.inf], [0, {"__float__": "Infinity"}])


def lfm2_restated(fields: Fields) -> dict[str, Any]:
    """Return sizes under the names that others have; a feed-forward's follows from several."""
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
    """Return LFM2's."""
    convolves = CONVOLVED in (fields.values.get("layer_types") or ())
    length, biases = fields.whole("conv_L_cache"), fields.flag("conv_bias")
    if not convolves:
        return {"query_key_norm": True}
    return {"query_key_norm": True, "convolution": length, "convolution_bias": biases}


def qwen3_5_restated(fields: Fields) -> dict[str, Any]:
    """Return layer types, if there are none."""
    if fields.values.get("layer_types") is not None:
        return {}
    interval = fields.whole("full_attention_interval")
    layers = range(1, fields.whole("num_hidden_layers", most=MOST_LAYERS) + 1)
    return {"layer_types": [LINEAR if i % interval else FULL for i in layers]}


def qwen3_5(fields: Fields) -> dict[str, Any]:
    """Return Qwen 3.5's."""
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
    """Return those of Qwen 3 Next, and of Qwen 3.5 with experts."""
    shared = {"shared_inner": fields.whole("shared_expert_intermediate_size")}
    return qwen3_5(fields) | qwen_experts(fields) | shared


def qwen3_5_experts_restated(fields: Fields) -> dict[str, Any]:
    """Return what is the same in all models, beside layer types."""
    return qwen3_5_restated(fields) | {
        "intermediate_size": fields.whole("moe_intermediate_size"),
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    }


def granite_hybrid_restated(fields: Fields) -> dict[str, Any]:
    """Return layer types by the names that transformers 5 has for them."""
    kinds = fields.values.get("layer_types")
    if kinds is None:
        kinds = [LINEAR] * fields.whole("num_hidden_layers", most=MOST_LAYERS)
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise fields.error("layer_types must be a list of names")
    usual = {"mamba": LINEAR, "attention": FULL}
    return {"layer_types": [usual.get(kind, kind) for kind in kinds]}


def granite_hybrid(fields: Fields) -> dict[str, Any]:
    """Return Granite 4's."""
    own = granite(fields) | shared_experts(fields)
    rotation = fields.values.get("position_embedding_type")
    if rotation not in (None, "nope", "rope"):
        raise fields.error(f"position_embedding_type {str(rotation)[:40]!r} is not supported")
    if rotation != "rope":
        own["rotary"] = None
    if LINEAR in fields.values["layer_types"]:
        own["state_space"] = _state_space(fields)
    return own


def bamba_restated(fields: Fields) -> dict[str, Any]:
    """Return layer types."""
    attending = fields.values.get("attn_layer_indices") or []
    if not isinstance(attending, list):
        raise fields.error("attn_layer_indices must be a list")
    layers = range(fields.whole("num_hidden_layers", most=MOST_LAYERS))
    return {"layer_types": [FULL if i in attending else LINEAR for i in layers]}


def bamba(fields: Fields) -> dict[str, Any]:
    """Return Bamba's."""
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
