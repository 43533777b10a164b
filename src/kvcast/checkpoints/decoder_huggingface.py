"""Interprets decoder-only models in Hugging Face layout: config.json, tensor names, text files.

All model types share a table of names; each has a row in `_TYPES` for its differences.
Configurations may be spelt as in published models (rope_theta, rope_scaling) or as in
transformers 5 (rope_parameters). Knows nothing of how weights are stored.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import Checkpoint, StoredTensor, read_file
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.gpt_oss import CODES, experts_by_rows
from kvcast.checkpoints.huggingface_family import HuggingFaceFamily
from kvcast.checkpoints.rotary_huggingface import FULL, QUERY_BETA, SHARE, SLIDING, read_rotary
from kvcast.checkpoints.tables import (
    changed,
    fill_decoder,
    in_halves,
    reordered,
    same,
    transposed,
)
from kvcast.checkpoints.text_huggingface import (
    chat_templates,
    end_token_by_text,
    end_tokens,
    recommended_options,
    special_tokens,
    tokenizer_settings,
)
from kvcast.families.convolutions import ATTENTION, CONVOLUTION, DELTA
from kvcast.families.decoder import DecoderDimensions, scaled_residuals
from kvcast.families.delta_nets import DeltaNet
from kvcast.spec.sizes import MOST_LAYERS

SIZES = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "inner": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "max_positions": "max_position_embeddings",
}
_CONVOLUTION, _DELTA = "conv", "linear_attention"
_LARGEST = 2**31
_ACTIVATIONS = {
    **{"silu": "silu", "swish": "silu", "relu": "relu", "gelu": "gelu", "gelu_python": "gelu"},
    **dict.fromkeys(
        ("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast"), "gelu_tanh"
    ),
}

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
    f"{_LAYER}.feed_forward.down.weight": ("layers.{i}.mlp.down_proj.weight",),
    f"{_LAYER}.feed_forward.down.bias": ("layers.{i}.mlp.down_proj.bias",),
    f"{_LAYER}.feed_forward.router.weight": ("layers.{i}.block_sparse_moe.gate.weight",),
    f"{_LAYER}.feed_forward.gate_up": (f"{_EXPERT}.w1.weight", f"{_EXPERT}.w3.weight"),
    f"{_LAYER}.feed_forward.down": (f"{_EXPERT}.w2.weight",),
}
# Gemma's norm after attention has the name that others use for the norm before the feed-forward.
_GEMMA_NAMES = {
    **NAMES,
    f"{_LAYER}.attention_post_norm.weight": ("layers.{i}.post_attention_layernorm.weight",),
    f"{_LAYER}.feed_forward_norm.weight": ("layers.{i}.pre_feedforward_layernorm.weight",),
    f"{_LAYER}.feed_forward_post_norm.weight": ("layers.{i}.post_feedforward_layernorm.weight",),
}
_FUSED = {
    **NAMES,
    f"{_LAYER}.attention.qkv.weight": (f"{_ATTENTION}.qkv_proj.weight",),
    f"{_LAYER}.feed_forward.gate_up.weight": ("layers.{i}.mlp.gate_up_proj.weight",),
}
_GLM_NAMES = {
    **NAMES,
    f"{_LAYER}.feed_forward.gate_up.weight": ("layers.{i}.mlp.gate_up_proj.weight",),
    f"{_LAYER}.attention_post_norm.weight": ("layers.{i}.post_self_attn_layernorm.weight",),
    f"{_LAYER}.feed_forward_post_norm.weight": ("layers.{i}.post_mlp_layernorm.weight",),
}
_QWEN_FEED_FORWARD = "layers.{i}.mlp"
_QWEN_EXPERT = f"{_QWEN_FEED_FORWARD}.experts.{{e}}"
_QWEN_EXPERT_NAMES = {
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
_GRANITE_EXPERTS = "layers.{i}.block_sparse_moe"
_GRANITE_EXPERT_NAMES = {
    **NAMES,
    f"{_LAYER}.feed_forward.router.weight": (f"{_GRANITE_EXPERTS}.router.layer.weight",),
    f"{_LAYER}.feed_forward.gate_up": (f"{_GRANITE_EXPERTS}.input_linear.weight",),
    f"{_LAYER}.feed_forward.down": (f"{_GRANITE_EXPERTS}.output_linear.weight",),
}
_GPT_OSS_NAMES = {
    **NAMES,
    f"{_LAYER}.attention.sinks": (f"{_ATTENTION}.sinks",),
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
    """Return names with the weights and biases of some modules at other places."""
    leaves = ("weight", "bias")
    places = {f"{ours}.{x}": (f"{theirs}.{x}",) for ours, theirs in modules.items() for x in leaves}
    return {**names, **places}


_LAYER_NORM_NAMES = _with_modules(
    NAMES,
    {
        "decoder.norm": "norm",
        "decoder.head": "lm_head",
        f"{_LAYER}.attention_norm": "layers.{i}.input_layernorm",
        f"{_LAYER}.feed_forward_norm": "layers.{i}.post_attention_layernorm",
    },
)
_STARCODER_NAMES = _with_modules(
    _LAYER_NORM_NAMES,
    {
        f"{_LAYER}.feed_forward.up": "layers.{i}.mlp.c_fc",
        f"{_LAYER}.feed_forward.down": "layers.{i}.mlp.c_proj",
    },
)
_PHI_NAMES = _with_modules(
    _LAYER_NORM_NAMES,
    {
        "decoder.norm": "final_layernorm",
        f"{_LAYER}.attention.out": f"{_ATTENTION}.dense",
        f"{_LAYER}.attention.query_norm": f"{_ATTENTION}.q_layernorm",
        f"{_LAYER}.attention.key_norm": f"{_ATTENTION}.k_layernorm",
        f"{_LAYER}.feed_forward.up": "layers.{i}.mlp.fc1",
        f"{_LAYER}.feed_forward.down": "layers.{i}.mlp.fc2",
    },
)
_NEOX_NAMES = _with_modules(
    _LAYER_NORM_NAMES,
    {
        "decoder.embedding": "embed_in",
        "decoder.norm": "final_layer_norm",
        f"{_LAYER}.attention.qkv": "layers.{i}.attention.query_key_value",
        f"{_LAYER}.attention.out": "layers.{i}.attention.dense",
        f"{_LAYER}.feed_forward.up": "layers.{i}.mlp.dense_h_to_4h",
        f"{_LAYER}.feed_forward.down": "layers.{i}.mlp.dense_4h_to_h",
    },
)
_GPT2_NAMES = _with_modules(
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
_LFM2_NAMES = {
    **NAMES,
    "decoder.norm.weight": ("embedding_norm.weight",),
    f"{_LAYER}.attention_norm.weight": ("layers.{i}.operator_norm.weight",),
    f"{_LAYER}.attention.out.weight": (f"{_ATTENTION}.out_proj.weight",),
    f"{_LAYER}.attention.query_norm.weight": (f"{_ATTENTION}.q_layernorm.weight",),
    f"{_LAYER}.attention.key_norm.weight": (f"{_ATTENTION}.k_layernorm.weight",),
    f"{_LAYER}.convolution.in.weight": ("layers.{i}.conv.in_proj.weight",),
    f"{_LAYER}.convolution.in.bias": ("layers.{i}.conv.in_proj.bias",),
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
_QWEN3_5_NAMES = {
    **NAMES,
    f"{_LAYER}.attention.gate.weight": (f"{_ATTENTION}.gate.weight",),
    f"{_LAYER}.delta.in.weight": tuple(
        f"layers.{{i}}.linear_attn.in_proj_{part}.weight" for part in ("qkv", "z", "b", "a")
    ),
    f"{_LAYER}.delta.kernel": ("layers.{i}.linear_attn.conv1d.weight",),
    f"{_LAYER}.delta.decay": ("layers.{i}.linear_attn.A_log",),
    f"{_LAYER}.delta.step_bias": ("layers.{i}.linear_attn.dt_bias",),
    f"{_LAYER}.delta.norm.weight": ("layers.{i}.linear_attn.norm.weight",),
    f"{_LAYER}.delta.out.weight": ("layers.{i}.linear_attn.out_proj.weight",),
}
# Depends on the class that saved the model, and for Gemma 3 with images on transformers' version.
_PREFIX = re.compile(r"^(?:(?:model|language_model|text_model|gpt_neox|transformer)\.)+")
_IMAGES = ("vision_tower.", "vision_model.", "multi_modal_projector.", "connector.")
_QUERY, _GATE = "self_attn.q_proj.weight", "self_attn.gate.weight"
_QUERY_NORM = "self_attn.q_norm.weight"
_HEAD = "lm_head.weight"
_OTHER_NAMES = {"embed_out.weight": _HEAD}
_ROTATED = re.compile(
    r"\.(?:self_attn\.(?:[qk]_proj|qkv_proj|[qk]_norm|[qk]_layernorm)|attention\.query_key_value)\."
)
_CONV1D = re.compile(r"\.c_(?:attn|proj|fc)\.weight$")
_LAYER_NUMBER = re.compile(r"(?:^|\.)layers\.(\d{1,9})\.")
# Old models store them, but they follow from the configuration.
_TABLES = (".inv_freq", ".cos_cached", ".sin_cached", ".attention.bias", ".attention.masked_bias")


def _llama(fields: Fields) -> dict[str, Any]:
    return _configured_biases(fields) | {"feed_forward_bias": fields.flag("mlp_bias", False)}


def _configured_biases(fields: Fields) -> dict[str, Any]:
    biases = fields.flag("attention_bias")
    return {"qkv_bias": biases, "out_bias": biases}


def _gemma(fields: Fields) -> dict[str, Any]:
    if fields.flag("use_bidirectional_attention", False):
        raise fields.error(
            "use_bidirectional_attention is not supported: it makes the model an encoder"
        )
    scale = math.sqrt(fields.whole("hidden_size"))
    return _configured_biases(fields) | {"embedding_scale": scale}


def _gemma1(fields: Fields) -> dict[str, Any]:
    # The first files say "gelu" and mean its approximation.
    meant = {"activation": "gelu_tanh"} if _activation(fields) == "gelu" else {}
    return _gemma(fields) | meant


def _gemma2(fields: Fields) -> dict[str, Any]:
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    attention, logits = (
        0.0 if fields.values.get(name) is None else fields.positive(name) for name in caps
    )
    return _gemma(fields) | {
        "attention_scale": fields.positive("query_pre_attn_scalar") ** -0.5,
        "attention_softcap": attention,
        "logit_softcap": logits,
        "post_norms": True,
    }


def _glm(fields: Fields) -> dict[str, Any]:
    return {"qkv_bias": fields.flag("attention_bias")}


def _gemma3(fields: Fields) -> dict[str, Any]:
    return _gemma2(fields) | {
        "window_rotary": read_rotary(fields, SLIDING, "rope_local_base_freq"),
        "query_key_norm": True,
    }


def _granite(fields: Fields) -> dict[str, Any]:
    scaled = fields.make(
        scaled_residuals,
        residual=fields.positive("residual_multiplier"),
        embedding=fields.positive("embedding_multiplier"),
        epsilon=fields.positive("rms_norm_eps"),
    )
    return (
        _llama(fields)
        | scaled
        | {
            "attention_scale": fields.positive("attention_multiplier"),
            "logit_scale": 1 / fields.positive("logits_scaling"),
        }
    )


def _smollm3(fields: Fields) -> dict[str, Any]:
    layers = range(fields.whole("num_hidden_layers", most=MOST_LAYERS))
    return _llama(fields) | {"unrotated": tuple(i for i in layers if not _is_rotated(fields, i))}


def _olmo2(fields: Fields) -> dict[str, Any]:
    whole = {"query_key_norm": True, "whole_query_key_norm": True}
    return _configured_biases(fields) | _NORMS_BEHIND | whole


def _exaone4(fields: Fields) -> dict[str, Any]:
    sizes = _NORMS_BEHIND | {"query_key_norm": True}
    if fields.values.get("sliding_window") is None:
        return sizes
    return sizes | {"rotary": None, "window_rotary": read_rotary(fields, FULL, "rope_theta")}


def _starcoder2(fields: Fields) -> dict[str, Any]:
    names = ("qkv_bias", "out_bias", "feed_forward_bias")
    return _LAYER_NORMS | dict.fromkeys(names, fields.flag("use_bias")) | {"gated": False}


def _experts(fields: Fields) -> dict[str, Any]:
    return {
        "experts": fields.whole("num_local_experts"),
        "experts_per_token": fields.whole("num_experts_per_tok"),
    }


def _gpt_oss(fields: Fields) -> dict[str, Any]:
    return (
        _experts(fields)
        | _configured_biases(fields)
        | {
            "expert_bias": True,
            "swiglu_alpha": fields.positive("swiglu_alpha"),
            "swiglu_limit": fields.positive("swiglu_limit"),
            "sinks": True,
        }
    )


def _qwen_experts(fields: Fields) -> dict[str, Any]:
    layers = range(fields.whole("num_hidden_layers", most=MOST_LAYERS))
    alone, every = fields.values.get("mlp_only_layers"), fields.whole("decoder_sparse_step")
    if not isinstance(alone, list) or not all(type(layer) is int for layer in alone):
        raise fields.error("mlp_only_layers must list numbers of layers")
    dense = tuple(i for i in layers if i in alone or (i + 1) % every)
    # transformers 5 writes another name.
    count = "num_experts" if fields.values.get("num_experts") else "num_local_experts"
    return {
        "inner": fields.whole("moe_intermediate_size"),
        "experts": fields.whole(count),
        "experts_per_token": fields.whole("num_experts_per_tok"),
        "experts_normalised": fields.flag("norm_topk_prob"),
        "dense_layers": dense,
        "dense_inner": fields.whole("intermediate_size") if dense else 0,
    }


def _qwen2_experts(fields: Fields) -> dict[str, Any]:
    return _qwen_experts(fields) | {
        "qkv_bias": fields.flag("qkv_bias"),
        "shared_inner": fields.whole("shared_expert_intermediate_size"),
    }


def _qwen3_experts(fields: Fields) -> dict[str, Any]:
    return _qwen_experts(fields) | _configured_biases(fields) | {"query_key_norm": True}


def _stablelm(fields: Fields) -> dict[str, Any]:
    _refuse(fields, "qk_layernorm")
    shared = fields.flag("use_parallel_residual")
    blocks = {"parallel": shared, "shared_norm": shared}
    return _LAYER_NORMS | blocks | {"qkv_bias": fields.flag("use_qkv_bias")}


def _cohere(fields: Fields) -> dict[str, Any]:
    _refuse(fields, "use_qk_norm")
    scale = {"norm": "layer", "logit_scale": fields.positive("logit_scale")}
    return _configured_biases(fields) | _PARALLEL | scale


def _cohere2(fields: Fields) -> dict[str, Any]:
    windowed = {"rotary": None, "window_rotary": read_rotary(fields, FULL, "rope_theta")}
    return _cohere(fields) | windowed


def _neox(fields: Fields) -> dict[str, Any]:
    biases = _configured_biases(fields) | {"feed_forward_bias": True}
    blocks = {"parallel": fields.flag("use_parallel_residual"), "gated": False}
    return _LAYER_NORMS | biases | blocks


def _phi(fields: Fields) -> dict[str, Any]:
    names = ("qkv_bias", "out_bias", "feed_forward_bias", "head_bias")
    blocks = {"gated": False, "query_key_norm": fields.flag("qk_layernorm")}
    return _LAYER_NORMS | _PARALLEL | dict.fromkeys(names, True) | blocks


def _gpt2(fields: Fields) -> dict[str, Any]:
    _refuse(fields, "scale_attn_by_inverse_layer_idx", "add_cross_attention")
    names = ("qkv_bias", "out_bias", "feed_forward_bias")
    blocks = {"rotary": None, "learned_positions": True, "gated": False}
    scale = {} if fields.flag("scale_attn_weights") else {"attention_scale": 1.0}
    return _LAYER_NORMS | dict.fromkeys(names, True) | blocks | scale


def _helium(fields: Fields) -> dict[str, Any]:
    return _llama(fields) | {"out_bias": False}


def _refuse(fields: Fields, *names: str) -> None:
    for name in names:
        if fields.flag(name, False):
            raise fields.error(f"{name} is not supported")


def _is_rotated(fields: Fields, layer: int) -> bool:
    """Tell whether a layer of SmolLM 3 has rotation, which `no_rope_layers` says in spite of it."""
    flags = fields.values.get("no_rope_layers")
    if flags is None:
        return (layer + 1) % fields.whole("no_rope_layer_interval") != 0
    if not isinstance(flags, list) or len(flags) <= layer or flags[layer] not in (0, 1):
        raise fields.error("no_rope_layers must list 0 or 1 for each layer")
    return bool(flags[layer])


def _windowed_unless_rotated(fields: Fields, layer: int) -> bool:
    enabled = fields.flag("use_sliding_window") and _always_windowed(fields, layer)
    return enabled and not _is_rotated(fields, layer)


def _windowed_if_any_but_every_nth(fields: Fields, layer: int) -> bool:
    return _always_windowed(fields, layer) and _windowed_but_every_nth(fields, layer)


def _lfm2_restated(fields: Fields) -> dict[str, Any]:
    """Return sizes under the names that others have; a feed-forward's follows from several."""
    inner: float = fields.whole("block_ff_dim", fields.whole("intermediate_size"))
    if fields.flag("block_auto_adjust_ff_dim"):
        inner = int(2 * inner / 3)
        if fields.values["block_ffn_dim_multiplier"] is not None:
            inner = int(min(fields.positive("block_ffn_dim_multiplier") * inner, _LARGEST))
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
        restated["layer_types"] = [FULL if i in attending else _CONVOLUTION for i in layers]
    return restated


def _lfm2(fields: Fields) -> dict[str, Any]:
    convolves = _CONVOLUTION in (fields.values.get("layer_types") or ())
    length, biases = fields.whole("conv_L_cache"), fields.flag("conv_bias")
    if not convolves:
        return {"query_key_norm": True}
    return {"query_key_norm": True, "convolution": length, "convolution_bias": biases}


def _gates_apart(own: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Divide projections whose rows are, of each head, a query's and then its gate's."""
    apart = dict(own)
    for name, tensor in own.items():
        layer = name.removesuffix(_QUERY)
        norm = own.get(layer + _QUERY_NORM)
        if layer == name or norm is None or tensor.shape[0] % (2 * norm.shape[0]):
            continue
        for i, part in enumerate((_QUERY, _GATE)):
            apart[layer + part] = replace(
                changed(tensor, partial(_every_second, i, norm.shape[0])),
                shape=(tensor.shape[0] // 2, *tensor.shape[1:]),
                nbytes=tensor.nbytes // 2,
            )
    return apart


def _every_second(first: int, size: int, weight: NDArray[Any]) -> NDArray[Any]:
    blocks = weight.reshape(-1, 2, size, *weight.shape[1:])
    return blocks[:, first].reshape(-1, *weight.shape[1:])


def _qwen3_5_restated(fields: Fields) -> dict[str, Any]:
    """Return layer types, if there are none."""
    if fields.values.get("layer_types") is not None:
        return {}
    interval = fields.whole("full_attention_interval")
    layers = range(1, fields.whole("num_hidden_layers", most=MOST_LAYERS) + 1)
    return {"layer_types": [_DELTA if i % interval else FULL for i in layers]}


def _qwen3_5(fields: Fields) -> dict[str, Any]:
    if not fields.flag("attn_output_gate"):
        raise fields.error("attn_output_gate must be true: other models are not supported")
    if _activation(fields) != "silu":
        raise fields.error("hidden_act must be silu: other models are not supported")
    own: dict[str, Any] = {"query_key_norm": True, "attention_gate": True}
    if _DELTA in fields.values["layer_types"]:
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


def _always_windowed(fields: Fields, _layer: int) -> bool:
    return fields.values.get("sliding_window") is not None


def _windowed_from_a_layer_on(fields: Fields, layer: int) -> bool:
    enabled = fields.flag("use_sliding_window") and _always_windowed(fields, layer)
    return enabled and layer >= fields.whole("max_window_layers", least=0)


def _windowed_if_used(fields: Fields, _layer: int) -> bool:
    return fields.flag("use_sliding_window") and _always_windowed(fields, _layer)


def _windowed_in_turns_up_to_a_layer(fields: Fields, layer: int) -> bool:
    before = layer < fields.whole("max_window_layers", least=0)
    return _windowed_if_used(fields, layer) and before and layer % 2 == 0


def _windowed_but_every_nth(fields: Fields, layer: int) -> bool:
    return (layer + 1) % fields.whole("sliding_window_pattern") != 0


@dataclass(frozen=True, kw_only=True)
class _Type:
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
    prepare: Callable[[Mapping[str, StoredTensor]], dict[str, StoredTensor]] = dict
    whole_norms: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()


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
_NORMS_BEHIND = {"pre_norms": False, "post_norms": True}
_LAYER_NORMS = {"norm": "layer", "norm_bias": True}
_PARALLEL = {"parallel": True, "shared_norm": True}
_GEMMA_1 = _Type(
    defaults={
        **_DEFAULTS,
        "hidden_act": "gelu_pytorch_tanh",
        "head_dim": 256,
        "attention_bias": False,
        "use_bidirectional_attention": False,
        "tie_word_embeddings": True,
    },
    particulars=_gemma1,
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
    windowed=_windowed_but_every_nth,
    particulars=_gemma2,
    names=_GEMMA_NAMES,
)
_COHERE = _Type(
    defaults={
        **_DEFAULTS,
        "rope_theta": 500_000.0,
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "attention_bias": False,
        "tie_word_embeddings": True,
    },
    particulars=_cohere,
    epsilon="layer_norm_eps",
    neighbours=True,
)
_OLMO_2 = _Type(
    defaults={**_DEFAULTS, "rms_norm_eps": 1e-5, "attention_bias": False},
    particulars=_olmo2,
    names=_GEMMA_NAMES,
)
_GEMMA = _Type(
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
    windowed=_windowed_but_every_nth,
    particulars=_gemma3,
    names=_GEMMA_NAMES,
    norms_less_one=True,
    foreign=_IMAGES,
)
_GLM = _Type(
    defaults={**_DEFAULTS, "rms_norm_eps": 1.5625e-7, SHARE: 0.5, "attention_bias": True},
    particulars=_glm,
    names=_GLM_NAMES,
    rotary=(SHARE,),
    neighbours=True,
)
_QWEN3_5 = _Type(
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
    particulars=_qwen3_5,
    restated=_qwen3_5_restated,
    names=_QWEN3_5_NAMES,
    mixers={_DELTA: DELTA},
    kernels=("linear_attn.conv1d.weight",),
    norms_less_one=True,
    whole_norms=("linear_attn.norm.weight",),
    rotary=(SHARE,),
    prepare=_gates_apart,
    foreign=("visual.", "mtp."),
)
_GRANITE = _Type(
    defaults={
        **_DEFAULTS,
        "attention_bias": False,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    particulars=_granite,
)
_TYPES: Mapping[str, _Type] = {
    "llama": _Type(defaults={**_DEFAULTS, "attention_bias": False}, particulars=_llama),
    "mistral": _Type(defaults={**_DEFAULTS, "sliding_window": 4096}, windowed=_always_windowed),
    "mixtral": _Type(
        defaults={**_DEFAULTS, "rope_theta": 1_000_000.0, "rms_norm_eps": 1e-5},
        windowed=_always_windowed,
        particulars=_experts,
    ),
    "qwen2": _Type(
        defaults=_QWEN_DEFAULTS,
        windowed=_windowed_from_a_layer_on,
        particulars=lambda _fields: {"qkv_bias": True},
    ),
    "qwen3": _Type(
        defaults={**_QWEN_DEFAULTS, "head_dim": 128},
        windowed=_windowed_from_a_layer_on,
        particulars=lambda fields: _configured_biases(fields) | {"query_key_norm": True},
    ),
    "qwen2_moe": _Type(
        defaults=_QWEN_EXPERTS_DEFAULTS,
        windowed=_windowed_in_turns_up_to_a_layer,
        particulars=_qwen2_experts,
        names=_QWEN_EXPERT_NAMES,
    ),
    "qwen3_moe": _Type(
        defaults=_QWEN_EXPERTS_DEFAULTS,
        windowed=_windowed_if_used,
        particulars=_qwen3_experts,
        names=_QWEN_EXPERT_NAMES,
    ),
    "gpt_oss": _Type(
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
        particulars=_gpt_oss,
        names=_GPT_OSS_NAMES,
        prepare=experts_by_rows,
    ),
    "phi3": _Type(
        defaults={
            **_DEFAULTS,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
        },
        windowed=_always_windowed,
        names=_FUSED,
        rotary=(SHARE,),
    ),
    "ministral": _Type(defaults={**_DEFAULTS, "sliding_window": 4096}, windowed=_always_windowed),
    "ministral3": _Type(
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
        windowed=_always_windowed,
        rotary=(QUERY_BETA,),
    ),
    "glm": _GLM,
    "glm4": replace(_GLM, particulars=lambda fields: _glm(fields) | {"post_norms": True}),
    "gemma": _GEMMA_1,
    "gemma2": _GEMMA_2,
    "granite": _GRANITE,
    "granitemoe": replace(
        _GRANITE,
        particulars=lambda fields: _granite(fields) | _experts(fields),
        names=_GRANITE_EXPERT_NAMES,
    ),
    "smollm3": _Type(
        defaults={
            **_DEFAULTS,
            "rope_theta": 2_000_000.0,
            "num_key_value_heads": 4,
            "attention_bias": False,
            "use_sliding_window": False,
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
        },
        windowed=_windowed_unless_rotated,
        particulars=_smollm3,
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
        windowed=_windowed_but_every_nth,
        particulars=lambda fields: (
            _olmo2(fields) | {"window_rotary": read_rotary(fields, SLIDING, "rope_theta")}
        ),
    ),
    "exaone4": _Type(
        defaults={**_DEFAULTS, "rms_norm_eps": 1e-5, "sliding_window": 4096}
        | {"sliding_window_pattern": 4},
        windowed=_windowed_if_any_but_every_nth,
        particulars=_exaone4,
        names=_GEMMA_NAMES,
    ),
    "starcoder2": _Type(
        defaults={
            **_DEFAULTS,
            "hidden_act": "gelu_pytorch_tanh",
            "num_key_value_heads": 2,
            "norm_epsilon": 1e-5,
            "use_bias": True,
            "tie_word_embeddings": True,
        },
        windowed=_always_windowed,
        particulars=_starcoder2,
        names=_STARCODER_NAMES,
        epsilon="norm_epsilon",
    ),
    "stablelm": _Type(
        defaults={
            **_DEFAULTS,
            "layer_norm_eps": 1e-5,
            SHARE: 0.25,
            "use_qkv_bias": False,
            "use_parallel_residual": False,
        },
        particulars=_stablelm,
        names=_LAYER_NORM_NAMES,
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
        windowed=_windowed_but_every_nth,
        particulars=_cohere2,
    ),
    "gpt_neox": _Type(
        defaults={
            **_DEFAULTS,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            SHARE: 0.25,
            "attention_bias": True,
            "use_parallel_residual": True,
        },
        spelling={"rotary_emb_base": "rope_theta", "rotary_pct": SHARE},
        particulars=_neox,
        names=_NEOX_NAMES,
        epsilon="layer_norm_eps",
        rotary=(SHARE,),
        by_head=True,
    ),
    "phi": _Type(
        defaults={
            **_DEFAULTS,
            "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-5,
            SHARE: 0.5,
            "qk_layernorm": False,
        },
        particulars=_phi,
        names=_PHI_NAMES,
        epsilon="layer_norm_eps",
        rotary=(SHARE,),
    ),
    "gpt2": _Type(
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
        particulars=_gpt2,
        names=_GPT2_NAMES,
        epsilon="layer_norm_epsilon",
        inner_per_width=4,
        transposed=True,
    ),
    "helium": _Type(
        defaults={
            **_DEFAULTS,
            "rope_theta": 100_000.0,
            "rms_norm_eps": 1e-8,
            "head_dim": 128,
            "attention_bias": False,
        },
        particulars=_helium,
        neighbours=True,
    ),
    "gemma3_text": _GEMMA,
    "gemma3": _GEMMA,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5": _QWEN3_5,
    "lfm2": _Type(
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
        particulars=_lfm2,
        names=_LFM2_NAMES,
        restated=_lfm2_restated,
        epsilon="norm_eps",
        mixers={_CONVOLUTION: CONVOLUTION},
        kernels=("conv.conv.weight",),
    ),
}

# Models with images whose decoder is of any type, and that type where text_config names none.
_WRAPPERS: Mapping[str, str] = {
    **dict.fromkeys(("llava", "idefics3", "smolvlm"), "llama"),
    **dict.fromkeys(("aya_vision", "cohere2_vision"), "cohere2"),
    "mistral3": "mistral",
}


def read_decoder(
    folder: Path,
    config: Mapping[str, Any],
    stored: Mapping[str, StoredTensor],
) -> Checkpoint:
    """Return the checkpoint for a configuration with a model_type of this family.

    `stored` maps the names in the files to tensors. Raises KvcastError with one line for an
    unsupported configuration, and for tensors that are missing, unknown or of the wrong shape.
    """
    label = str(folder / "config.json")
    kind = _type_of(config, label)
    dimensions = _dimensions(_fields(config, kind, label), kind, config["model_type"])
    own = kind.prepare(_own_tensors(stored, dimensions, kind))
    own = in_halves(own, dimensions, _ROTATED.search, neighbours=kind.neighbours)
    if dimensions.tied:
        dimensions = replace(dimensions, tied=_is_tied(own, kind))
    tensors = fill_decoder(dimensions, kind.names, own, str(folder), lenient=True)
    unused = [name for name in stored if _PREFIX.sub("", name) in tensors.unused]
    tensors = tensors.beside(unused)
    return Checkpoint(
        dimensions=dimensions,
        tensors=tensors,
        text=_text(folder, config, _about_unused(folder, unused, dimensions.layers)),
        source=f"Hugging Face folder {folder}",
    )


def _is_tied(own: dict[str, StoredTensor], kind: _Type) -> bool:
    """Tell whether the head is the embedding, as it is meant to be; leaves one name for it.

    A head that differs counts, whatever the configuration says.
    """
    head = own.get(_HEAD)
    if head is None:
        return True
    (embedding,) = kind.names["decoder.embedding.weight"]
    tied = same(head, own.setdefault(embedding, head))
    if tied:
        del own[_HEAD]
    return tied


def _about_unused(folder: Path, unused: Sequence[str], layers: int) -> list[str]:
    """Return a notice of tensors that have no place in layers of the model, if there are any."""
    inside = [
        name
        for name in unused
        if (layer := _LAYER_NUMBER.search(name))
        and int(layer[1]) < layers
        and not name.endswith(_TABLES)
    ]
    if not inside:
        return []
    others = f" and {len(inside) - 1} others" if len(inside) > 1 else ""
    return [
        f"{folder} has tensors that a model of its kind does not use, {inside[0]}{others}: results "
        "may be wrong; kvcast doctor lists them"
    ]


def decoder_dimensions(config: Mapping[str, Any], label: str) -> DecoderDimensions:
    """Read a configuration alone, with a model_type of this family."""
    kind = _type_of(config, label)
    return _dimensions(_fields(config, kind, label), kind, config["model_type"])


def _type_of(config: Mapping[str, Any], label: str) -> _Type:
    """Return the properties of a model's type; of one with images, those of its decoder's."""
    name, outer = config["model_type"], Fields(values=config, label=label)
    if name not in _WRAPPERS:
        return _TYPES[name]
    text = outer.group("text_config")
    usual = _WRAPPERS[name]
    name = usual if text is None else str(text.values.get("model_type", usual))
    if name not in _TYPES:
        raise outer.error(f"model_type {name!r} of its text_config is not supported")
    kind = _TYPES[name]
    defaults = {**kind.defaults, "tie_word_embeddings": True}
    return replace(kind, defaults=defaults, foreign=_IMAGES)


def _fields(config: Mapping[str, Any], kind: _Type, label: str) -> Fields:
    """Return the configuration over its defaults; for a model with images, that of its decoder."""
    outer = Fields(values=config, label=label)
    text = outer.group("text_config")
    if text is None:
        named = {usual: config[own] for own, usual in kind.spelling.items() if own in config}
        fields = Fields(values={**kind.defaults, **config, **named}, label=label)
    else:
        tied = {name: config[name] for name in ("tie_word_embeddings",) if name in config}
        fields = Fields(values={**kind.defaults, **text.values, **tied}, label=text.label)
    return replace(fields, values={**fields.values, **kind.restated(fields)})


def _dimensions(fields: Fields, kind: _Type, architecture: str) -> DecoderDimensions:
    heads = fields.whole(SIZES["heads"])
    width = fields.whole(SIZES["width"])
    usual = {"kv_heads": heads, "head_dim": width // heads}
    if kind.inner_per_width:
        usual["inner"] = kind.inner_per_width * width
    whole = {ours: fields.whole(theirs, usual.get(ours)) for ours, theirs in SIZES.items()}
    kinds = _layer_types(fields, kind)
    sizes = {
        "architecture": architecture,
        **whole,
        "windows": _windows(fields, kinds),
        "mixers": _mixers(kinds, kind),
        "rotary": read_rotary(fields, FULL, "rope_theta", kind.rotary),
        "norm_eps": fields.positive(kind.epsilon),
        "attention_scale": whole["head_dim"] ** -0.5,
        "activation": _activation(fields),
        "tied": fields.flag("tie_word_embeddings"),
    }
    return fields.make(DecoderDimensions, **{**sizes, **kind.particulars(fields)})


def _activation(fields: Fields) -> str:
    activation = str(fields.values.get("hidden_activation") or fields.values.get("hidden_act"))
    if activation not in _ACTIVATIONS:
        supported = ", ".join(_ACTIVATIONS)
        raise fields.error(f"activation {activation!r} is not supported (supported: {supported})")
    return _ACTIVATIONS[activation]


def _windows(fields: Fields, kinds: Sequence[str]) -> tuple[int | None, ...]:
    """Return each layer's window; as in transformers, it includes the query's own position."""
    window = fields.whole("sliding_window") if SLIDING in kinds else None
    if window is not None and window >= fields.whole(SIZES["max_positions"]):
        window = None  # Phi 4 mini's is twice as long as its longest sequence
    return tuple(window if layer_type == SLIDING else None for layer_type in kinds)


def _mixers(kinds: Sequence[str], kind: _Type) -> tuple[str, ...]:
    """Return how each layer mixes positions; nothing where all do by attention."""
    mixers = tuple(kind.mixers.get(layer_type, ATTENTION) for layer_type in kinds)
    return mixers if set(mixers) != {ATTENTION} else ()


def _layer_types(fields: Fields, kind: _Type) -> list[str]:
    """Return each layer's type."""
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    kinds = fields.values.get("layer_types")
    if kinds is None:
        kinds = [SLIDING if kind.windowed(fields, i) else FULL for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.error(f"layer_types must list {layers} layers")
    known = (*kind.mixers, FULL, SLIDING)
    if any(layer_type not in known for layer_type in kinds):
        *others, last = known
        raise fields.error(
            f"layer_types other than {', '.join(others)} and {last} are not supported"
        )
    return kinds


def _own_tensors(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions, kind: _Type
) -> dict[str, StoredTensor]:
    """Return the decoder's tensors without name prefixes, with norm weights as they multiply."""

    def by_part(rows: NDArray[Any]) -> NDArray[Any]:
        heads = rows.reshape(dimensions.heads, 3, dimensions.head_dim, *rows.shape[1:])
        return heads.swapaxes(0, 1).reshape(rows.shape)

    own = {}
    for full_name, tensor in stored.items():
        name = _PREFIX.sub("", full_name)
        name = _OTHER_NAMES.get(name, name)
        if name.startswith(kind.foreign):
            continue
        whole = name.endswith(kind.whole_norms)
        if kind.norms_less_one and name.endswith("norm.weight") and not whole:
            tensor = changed(tensor, _one_more)
        elif kind.transposed and _CONV1D.search(name):
            tensor = transposed(tensor)
        elif kind.by_head and ".query_key_value." in name:
            tensor = reordered(tensor, by_part)
        elif name.endswith(kind.kernels):
            tensor = _by_position(tensor)
        own[name] = tensor
    return own


def _by_position(kernel: StoredTensor) -> StoredTensor:
    """Return a convolution's kernel [width, 1, length] as [length, width]."""
    if len(kernel.shape) != 3 or kernel.shape[1] != 1:
        return kernel
    width, _, length = kernel.shape
    return replace(
        changed(kernel, lambda numbers: numbers.reshape(width, length).T), shape=(length, width)
    )


def _one_more(weight: NDArray[Any]) -> NDArray[np.float32]:
    # Added in float32, as transformers does: half precision would round small weights away.
    return weight.astype(np.float32) + np.float32(1)


def _text(folder: Path, config: Mapping[str, Any], notices: Sequence[str]) -> dict[str, bytes]:
    """Return the files that `kvcast.tokenizers.opening.open_text` reads."""
    settings = tokenizer_settings(folder)
    special = special_tokens(folder, settings, config["model_type"])
    ends = end_tokens(folder, config) or [end_token_by_text(folder, special["eos_token"])]
    about = {"end_tokens": ends, **special, **recommended_options(folder)}
    if notices:
        about["notices"] = notices
    return {
        "tokenizer.json": read_file(folder / "tokenizer.json"),
        "text.json": json.dumps(about).encode(),
        **chat_templates(folder, settings),
    }


DECODER = HuggingFaceFamily(
    family=DecoderDimensions,
    model_types=(*_TYPES, *_WRAPPERS),
    dimensions=decoder_dimensions,
    read=read_decoder,
    codes={"gpt_oss": CODES},
    heads={_HEAD: ("embed_tokens.weight", "wte.weight")},
    required={
        "tokenizer.json": "vocab.json and merges.txt alone are not read; "
        "save the tokenizer with transformers' save_pretrained, or copy the base model's"
    },
)
