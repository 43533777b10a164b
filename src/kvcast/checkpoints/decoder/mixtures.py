"""Model types whose experts are chosen by sigmoids, biases or groups."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvcast.checkpoints.decoder.fields import (
    always_windowed,
    configured_biases,
    deepseek3_experts,
    experts,
    first_dense,
    glm,
    shared_of_experts,
)
from kvcast.checkpoints.decoder.hybrid import HYBRID_TYPES, lfm2
from kvcast.checkpoints.decoder.model_type import DEFAULTS, DecoderType
from kvcast.checkpoints.decoder.rotary import FULL, SHARE, read_rotary
from kvcast.checkpoints.decoder.tensor_names import (
    AFMOE_NAMES,
    DEEPSEEK_EXPERT_NAMES,
    ERNIE_EXPERT_NAMES,
    ERNIE_STACKED_NAMES,
    LFM2_EXPERT_NAMES,
    LFM2_STACKED_NAMES,
    MINIMAX_NAMES,
    MINIMAX_STACKED_NAMES,
    QWEN_STACKED_NAMES,
)
from kvcast.checkpoints.decoder.tensors import flat_biases
from kvcast.checkpoints.fields import Fields
from kvcast.families.feed_forwards import Routing
from kvcast.spec.sizes import MOST_LAYERS

# Larger ones would change weights: only sums below them are replaced.
_MOST_NORM_MIN = 1e-9


def glm4_experts(fields: Fields) -> dict[str, Any]:
    normed = {"query_key_norm": fields.flag("use_qk_norm")}
    return deepseek3_experts(fields) | glm(fields) | normed


def dots1(fields: Fields) -> dict[str, Any]:
    return deepseek3_experts(fields) | configured_biases(fields) | {"query_key_norm": True}


def windowed_after_a_layer(fields: Fields, layer: int) -> bool:
    """dots.llm1: later layers have a window."""
    return always_windowed(fields, layer) and layer >= fields.whole("max_window_layers", least=0)


def ernie_experts(fields: Fields) -> dict[str, Any]:
    if fields.flag("use_bias"):
        raise fields.error("use_bias is not supported in models with experts")
    if fields.positive("moe_norm_min") > _MOST_NORM_MIN:
        raise fields.error(f"moe_norm_min above {_MOST_NORM_MIN} is not supported")
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    first, last = (fields.whole(f"moe_layer_{end}_index", least=-1) for end in ("start", "end"))
    last, every = layers - 1 if last == -1 else last, fields.whole("moe_layer_interval")
    dense = tuple(i for i in range(layers) if not first <= i <= last or (i + 1) % every)
    return {
        **shared_of_experts(fields, "moe_num_shared_experts"),
        "inner": fields.whole("moe_intermediate_size"),
        "experts": fields.whole("moe_num_experts"),
        "experts_per_token": fields.whole("moe_k"),
        "routing": Routing(bias=True),
        "dense_layers": dense,
        "dense_inner": fields.whole("intermediate_size") if dense else 0,
    }


def minimax(fields: Fields) -> dict[str, Any]:
    # Of files alone.
    fields.require({"scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True})
    fields.require({"qk_norm_type": "per_layer", "shared_intermediate_size": 0})
    norms = {"query_key_norm": True, "whole_query_key_norm": True}
    return experts(fields) | norms | {"routing": Routing(score="sigmoid", bias=True)}


def restate_minimax(fields: Fields) -> dict[str, Any]:
    """Files have a number of dimensions instead of a share."""
    if fields.values.get("rotary_dim") is None or SHARE in fields.values:
        return {}
    return {SHARE: fields.whole("rotary_dim") / fields.whole("head_dim")}


def afmoe(fields: Fields) -> dict[str, Any]:
    """Layers without a window do not rotate."""
    fields.require({"score_func": "sigmoid", "route_norm": True})  # of files alone
    scale = math.sqrt(fields.whole("hidden_size")) if fields.flag("mup_enabled") else 1.0
    return {
        **configured_biases(fields),
        **first_dense(fields, "num_dense_layers"),
        **shared_of_experts(fields, "num_shared_experts"),
        "experts": fields.whole("num_experts"),
        "experts_per_token": fields.whole("num_experts_per_tok"),
        "routing": Routing(
            score="sigmoid", bias=True, epsilon=1e-20, scale=fields.positive("route_scale")
        ),
        "rotary": None,
        "window_rotary": read_rotary(fields, FULL, "rope_theta"),
        "embedding_scale": scale,
        "query_key_norm": True,
        "attention_gate": True,
        "post_norms": True,
    }


def lfm2_experts(fields: Fields) -> dict[str, Any]:
    return {
        **lfm2(fields),
        **first_dense(fields, "num_dense_layers"),
        "experts": fields.whole("num_experts"),
        "experts_per_token": fields.whole("num_experts_per_tok"),
        "experts_normalised": fields.flag("norm_topk_prob"),
        "routing": Routing(
            score="sigmoid",
            bias=fields.flag("use_expert_bias"),
            epsilon=1e-6,
            scale=fields.positive("routed_scaling_factor"),
        ),
    }


def restate_lfm2_experts(fields: Fields) -> dict[str, Any]:
    return {"tie_word_embeddings": fields.flag("tie_embedding", fields.flag("tie_word_embeddings"))}


_DEEPSEEK = {
    **DEFAULTS,
    "attention_bias": False,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
}


MIXTURE_TYPES: Mapping[str, DecoderType] = {
    "glm4_moe": DecoderType(
        defaults={
            **_DEEPSEEK,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "n_shared_experts": 1,
            "use_qk_norm": False,
            SHARE: 0.5,
        },
        particulars=glm4_experts,
        names=DEEPSEEK_EXPERT_NAMES,
        names_instead=QWEN_STACKED_NAMES,
        rotary=(SHARE,),
    ),
    "dots1": DecoderType(
        defaults={
            **_DEEPSEEK,
            "num_key_value_heads": 32,
            "first_k_dense_replace": 0,
            "norm_topk_prob": False,
            "sliding_window": 4096,
            "max_window_layers": 62,
        },
        windowed=windowed_after_a_layer,
        particulars=dots1,
        names=DEEPSEEK_EXPERT_NAMES,
        names_instead=QWEN_STACKED_NAMES,
    ),
    "ernie4_5_moe": DecoderType(
        defaults={
            **DEFAULTS,
            "rope_theta": 500_000.0,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 4,
            "use_bias": False,
            "tie_word_embeddings": True,
            "moe_k": 6,
            "moe_num_experts": 64,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": -1,
            "moe_layer_interval": 1,
            "moe_norm_min": 1e-12,
        },
        particulars=ernie_experts,
        names=ERNIE_EXPERT_NAMES,
        names_instead=ERNIE_STACKED_NAMES,
        modules={r"\.mlp\.moe_statics\.": ".mlp.gate.moe_statics."},
        neighbours=True,
        prepare=flat_biases,
    ),
    "minimax_m2": DecoderType(
        defaults={
            **DEFAULTS,
            "rope_theta": 5_000_000.0,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_local_experts": 256,
            "num_experts_per_tok": 8,
        },
        particulars=minimax,
        names=MINIMAX_NAMES,
        names_instead=MINIMAX_STACKED_NAMES,
        modules={r"\.block_sparse_moe\.": ".mlp."},
        rotary=(SHARE,),
        restated=restate_minimax,
    ),
    "afmoe": DecoderType(
        defaults={
            **DEFAULTS,
            "rms_norm_eps": 1e-5,
            "head_dim": 128,
            "attention_bias": False,
            "sliding_window": 1024,
            "global_attn_every_n_layers": 4,
            "num_dense_layers": 1,
            "num_experts": 64,
            "num_experts_per_tok": 6,
            "num_shared_experts": 2,
            "route_scale": 1.0,
            "mup_enabled": False,
        },
        windowed=lambda fields, layer: (
            (layer + 1) % fields.whole("global_attn_every_n_layers") != 0
        ),
        particulars=afmoe,
        names=AFMOE_NAMES,
        names_instead=QWEN_STACKED_NAMES,
    ),
    "lfm2_moe": replace(
        HYBRID_TYPES["lfm2"],
        defaults={
            "num_key_value_heads": 8,
            "norm_eps": 1e-5,
            "hidden_act": "silu",
            "rope_theta": 1_000_000.0,
            "tie_word_embeddings": True,
            "conv_L_cache": 3,
            "conv_bias": False,
            "num_dense_layers": 2,
            "num_experts": 32,
            "num_experts_per_tok": 4,
            "use_expert_bias": True,
            "routed_scaling_factor": 1.0,
            "norm_topk_prob": True,
        },
        particulars=lfm2_experts,
        names=LFM2_EXPERT_NAMES,
        names_instead=LFM2_STACKED_NAMES,
        spellings={  # as mlx-lm 0.32.2 has them, of layers without experts
            rf"\.feed_forward\.{theirs}_proj\.": f".feed_forward.{ours}."
            for ours, theirs in {"w1": "gate", "w2": "down", "w3": "up"}.items()
        },
        restated=restate_lfm2_experts,
    ),
}
