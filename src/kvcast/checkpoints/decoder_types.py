"""Model types of decoder-only models in Hugging Face layout: a row for each.

A row has a type's defaults, its names of tensors, and functions from fields of its configuration to
dimensions. Knows no files.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
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
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.gpt_oss import experts_by_rows
from kvcast.checkpoints.rotary_huggingface import FULL, QUERY_BETA, SHARE, SLIDING, read_rotary
from kvcast.checkpoints.tables import changed, joined_flat, picked, reordered
from kvcast.families.convolutions import CONVOLUTION, DELTA, STATE_SPACE
from kvcast.families.decoder_dimensions import DecoderDimensions, scaled_residuals, sources_of_types
from kvcast.families.delta_nets import DeltaNet
from kvcast.families.state_spaces import StateSpace
from kvcast.spec.sizes import MOST_LAYERS

_ACTIVATIONS = {
    **{"silu": "silu", "swish": "silu", "relu": "relu", "gelu": "gelu", "gelu_python": "gelu"},
    **dict.fromkeys(
        ("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast"), "gelu_tanh"
    ),
}


def activation_of(fields: Fields) -> str:
    """Return our name of a feed-forward's activation; KvcastError for others."""
    activation = str(fields.values.get("hidden_activation") or fields.values.get("hidden_act"))
    if activation not in _ACTIVATIONS:
        supported = ", ".join(_ACTIVATIONS)
        raise fields.error(f"activation {activation!r} is not supported (supported: {supported})")
    return _ACTIVATIONS[activation]


_CONVOLUTION, _STATE = "conv", "linear_attention"
_LARGEST = 2**31
IMAGES = ("vision_tower.", "vision_model.", "multi_modal_projector.", "connector.")
_QUERY, _GATE = "self_attn.q_proj.weight", "self_attn.gate.weight"
_DELTA_IN = "linear_attn.in_proj_{}.weight"
# As files of others and those of transformers 5 have it.
_UNLIMITED = ([0, math.inf], [0, {"__float__": "Infinity"}])
_MAMBA_CONVOLUTION = "mamba.conv1d.weight"
_QUERY_NORM, _KEY_NORM = "self_attn.q_norm.weight", "self_attn.k_norm.weight"
_NORM_OF_A_HEAD = re.compile(r"(.+\.[qk])_layernorm\.norms\.(\d{1,4})\.weight")


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
    meant = {"activation": "gelu_tanh"} if activation_of(fields) == "gelu" else {}
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


def _gemma4_restated(fields: Fields) -> dict[str, Any]:
    """Return layer types, of which the last is always full attention, and layers' own fields."""
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    kinds = fields.values.get("layer_types")
    if kinds is None:
        kinds = [SLIDING if (i + 1) % 6 else FULL for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.error(f"layer_types must list {layers} layers")
    kinds = [*kinds[:-1], FULL]
    own = fields.group("per_layer_config")
    if own is None:
        own = replace(fields, values=_full_attention(fields, kinds))
    return {"layer_types": kinds, "per_layer_config": own.values}


def _full_attention(fields: Fields, kinds: Sequence[str]) -> dict[str, Any]:
    """Return the fields of layers with full attention that published configurations have."""
    own = {"head_dim": fields.whole("global_head_dim")}
    if fields.flag("attention_k_eq_v") and fields.values.get("num_global_key_value_heads"):
        own["num_key_value_heads"] = fields.whole("num_global_key_value_heads")
    return {str(i): own for i, kind in enumerate(kinds) if kind == FULL}


def _gemma4(fields: Fields) -> dict[str, Any]:
    if fields.values.get("use_bidirectional_attention") not in (None, "vision"):
        raise fields.error(
            "use_bidirectional_attention is not supported: it makes the model an encoder"
        )
    kinds = fields.values["layer_types"]
    cap, embedding = "final_logit_softcapping", "hidden_size_per_layer_input"
    sources, shared = _gemma4_sources(fields, kinds), fields.flag("use_double_wide_mlp")
    inner = fields.whole("intermediate_size")
    width = fields.whole(embedding, least=0) if fields.values[embedding] is not None else 0
    if width and fields.whole("vocab_size_per_layer_input") != fields.whole("vocab_size"):
        raise fields.error("vocab_size_per_layer_input must be vocab_size")
    doubled = [inner << (shared and source != i) for i, source in enumerate(sources)]
    as_values = fields.flag("attention_k_eq_v")
    return _configured_biases(fields) | {
        "embedding_scale": math.sqrt(fields.whole("hidden_size")),
        "attention_scale": 1.0,
        "logit_softcap": fields.positive(cap) if fields.values[cap] is not None else 0.0,
        "window_rotary": read_rotary(fields, SLIDING, "rope_local_base_freq"),
        "query_key_norm": True,
        "value_norm": True,
        "post_norms": True,
        "layer_head_dims": _own_sizes(fields, "head_dim"),
        "layer_kv_heads": _own_sizes(fields, "num_key_value_heads"),
        "layer_inners": tuple(doubled),
        "sources": sources,
        "keys_as_values": tuple(i for i, kind in enumerate(kinds) if as_values and kind == FULL),
        "layer_embedding": width,
        "layer_scales": True,
        **(_gemma4_experts(fields) if fields.flag("enable_moe_block") else {}),
    }


def _gemma4_experts(fields: Fields) -> dict[str, int]:
    return {
        "experts": fields.whole("num_experts"),
        "experts_per_token": fields.whole("top_k_experts"),
        "expert_inner": fields.whole("moe_intermediate_size"),
    }


def _routers_scaled(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Divide the weights of norms before routers by the root of the width, as Gemma 4 does."""

    def scaled(weight: NDArray[Any]) -> NDArray[np.float32]:
        return weight.astype(np.float32) * np.float32(dimensions.width**-0.5)

    return {
        name: changed(tensor, scaled) if name.endswith(".router.scale") else tensor
        for name, tensor in own.items()
    }


def _gemma4_sources(fields: Fields, kinds: Sequence[str]) -> tuple[int, ...]:
    shared = fields.whole("num_kv_shared_layers", least=0, most=len(kinds))
    return fields.make(sources_of_types, kinds=kinds, shared=shared)


def _own_sizes(fields: Fields, name: str) -> tuple[int, ...]:
    """Return a size of each layer, which `per_layer_config` may have for some of them."""
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    sizes, known = [fields.whole(name)] * layers, ("head_dim", "num_key_value_heads")
    own = fields.group("per_layer_config") or replace(fields, values={})
    for number, layer in own.values.items():
        at = replace(own, label=f"{own.label} of layer {number[:9]!r}")
        if not (number.isascii() and number.isdigit() and len(number) < 6 and int(number) < layers):
            raise at.error(f"there are {layers} layers")
        if not isinstance(layer, dict) or not layer.keys() <= set(known):
            raise at.error(f"only {' and '.join(known)} may differ from layer to layer")
        if name in layer:
            sizes[int(number)] = replace(at, values=layer).whole(name)
    return tuple(sizes)


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
    shared = fields.flag("use_parallel_residual")
    blocks = {"parallel": shared, "shared_norm": shared} | _own_norms(fields, "qk_layernorm")
    return _LAYER_NORMS | blocks | {"qkv_bias": fields.flag("use_qkv_bias")}


def _own_norms(fields: Fields, name: str) -> dict[str, Any]:
    used = fields.flag(name, False)
    return {"query_key_norm": used, "own_query_key_norms": used}


def _cohere(fields: Fields) -> dict[str, Any]:
    scale = {"norm": "layer", "logit_scale": fields.positive("logit_scale")}
    norms = _own_norms(fields, "use_qk_norm")
    return _configured_biases(fields) | _PARALLEL | scale | norms


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
    if fields.flag("add_cross_attention", False):
        raise fields.error("add_cross_attention is not supported")
    names = ("qkv_bias", "out_bias", "feed_forward_bias")
    blocks = {"rotary": None, "learned_positions": True, "gated": False}
    scale: dict[str, Any] = {
        "scaled_by_depth": fields.flag("scale_attn_by_inverse_layer_idx", False)
    }
    if not fields.flag("scale_attn_weights"):
        scale["attention_scale"] = 1.0
    return _LAYER_NORMS | dict.fromkeys(names, True) | blocks | scale


def _helium(fields: Fields) -> dict[str, Any]:
    return _llama(fields) | {"out_bias": False}


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


def _parts_apart(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Divide projections whose rows are, of each head, several parts one after the other.

    Those are a query and its gate, and of delta nets, in Qwen 3 Next, all that belongs to a head of
    keys.
    """
    size = dimensions.head_dim
    layouts: dict[str, tuple[int, Mapping[str, Sequence[int]]]] = {
        _QUERY: (dimensions.heads, {_QUERY: (size,), _GATE: (size,)})
    }
    if delta := dimensions.delta:
        each = delta.value_heads // delta.key_heads
        values, keys = each * delta.value_dim, delta.key_dim
        layouts |= {
            _DELTA_IN.format("qkvz"): (
                delta.key_heads,
                {_DELTA_IN.format("qkv"): (keys, keys, values), _DELTA_IN.format("z"): (values,)},
            ),
            _DELTA_IN.format("ba"): (
                delta.key_heads,
                {_DELTA_IN.format("b"): (each,), _DELTA_IN.format("a"): (each,)},
            ),
        }
    apart = dict(own)
    for name, tensor in own.items():
        for whole, (heads, parts) in layouts.items():
            if name.endswith(whole):
                del apart[name]
                layer = name.removesuffix(whole)
                apart |= {layer + part: x for part, x in _by_part(tensor, heads, parts).items()}
    return apart


def _by_part(
    tensor: StoredTensor, heads: int, parts: Mapping[str, Sequence[int]]
) -> dict[str, StoredTensor]:
    """Return rows by the names of parts; a part has the rows of all heads for each of its sizes."""
    each = sum(sum(sizes) for sizes in parts.values())
    if tensor.shape[0] != heads * each:
        return dict.fromkeys(parts, tensor)  # of a shape that no configuration asks for
    rows, first, divided = np.arange(heads * each).reshape(heads, each), 0, {}
    for name, sizes in parts.items():
        ends = first + np.cumsum(sizes)
        spans = np.split(rows[:, first : ends[-1]], (ends - first)[:-1], axis=1)
        divided[name] = picked(tensor, np.concatenate([span.reshape(-1) for span in spans]))
        first = int(ends[-1])
    return divided


def _norms_of_heads_joined(
    own: Mapping[str, StoredTensor], _: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Return norms of queries and keys, of which each head has one, as one tensor each."""
    joined, norms = {}, defaultdict[str, dict[int, StoredTensor]](dict)
    for name, tensor in own.items():
        if norm := _NORM_OF_A_HEAD.fullmatch(name):
            norms[f"{norm[1]}_norm.weight"][int(norm[2])] = tensor
        elif name.endswith((_QUERY_NORM, _KEY_NORM)):
            joined[name] = joined_flat([tensor])
        else:
            joined[name] = tensor
    in_order = {name: [heads[i] for i in sorted(heads)] for name, heads in norms.items()}
    return joined | {name: joined_flat(heads) for name, heads in in_order.items()}


def _qwen3_5_restated(fields: Fields) -> dict[str, Any]:
    """Return layer types, if there are none."""
    if fields.values.get("layer_types") is not None:
        return {}
    interval = fields.whole("full_attention_interval")
    layers = range(1, fields.whole("num_hidden_layers", most=MOST_LAYERS) + 1)
    return {"layer_types": [_STATE if i % interval else FULL for i in layers]}


def _qwen3_5(fields: Fields) -> dict[str, Any]:
    if not fields.flag("attn_output_gate"):
        raise fields.error("attn_output_gate must be true: other models are not supported")
    if activation_of(fields) != "silu":
        raise fields.error("hidden_act must be silu: other models are not supported")
    own: dict[str, Any] = {"query_key_norm": True, "attention_gate": True}
    if _STATE in fields.values["layer_types"]:
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


def _qwen3_5_experts(fields: Fields) -> dict[str, Any]:
    shared = {"shared_inner": fields.whole("shared_expert_intermediate_size")}
    return _qwen3_5(fields) | _qwen_experts(fields) | shared


def _qwen3_5_experts_restated(fields: Fields) -> dict[str, Any]:
    """Return what is the same in all models, beside layer types."""
    return _qwen3_5_restated(fields) | {
        "intermediate_size": fields.whole("moe_intermediate_size"),
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    }


def _granite_hybrid_restated(fields: Fields) -> dict[str, Any]:
    """Return layer types by the names that transformers 5 has for them."""
    kinds = fields.values.get("layer_types")
    if kinds is None:
        kinds = [_STATE] * fields.whole("num_hidden_layers", most=MOST_LAYERS)
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise fields.error("layer_types must be a list of names")
    usual = {"mamba": _STATE, "attention": FULL}
    return {"layer_types": [usual.get(kind, kind) for kind in kinds]}


def _granite_hybrid(fields: Fields) -> dict[str, Any]:
    own = _granite(fields) | _shared_experts(fields)
    rotation = fields.values.get("position_embedding_type")
    if rotation not in (None, "nope", "rope"):
        raise fields.error(f"position_embedding_type {str(rotation)[:40]!r} is not supported")
    if rotation != "rope":
        own["rotary"] = None
    if _STATE in fields.values["layer_types"]:
        own["state_space"] = _state_space(fields)
    return own


def _shared_experts(fields: Fields) -> dict[str, Any]:
    """Return sizes of feed-forwards, which all tokens go through and perhaps experts beside."""
    if fields.whole("num_local_experts", least=0) == 0:
        return {"inner": fields.whole("shared_intermediate_size")}
    shared = fields.whole("shared_intermediate_size", least=0)
    return _experts(fields) | {"shared_inner": shared, "shared_gated": False}


def _bamba_restated(fields: Fields) -> dict[str, Any]:
    """Return layer types."""
    attending = fields.values.get("attn_layer_indices") or []
    if not isinstance(attending, list):
        raise fields.error("attn_layer_indices must be a list")
    layers = range(fields.whole("num_hidden_layers", most=MOST_LAYERS))
    return {"layer_types": [FULL if i in attending else _STATE for i in layers]}


def _bamba(fields: Fields) -> dict[str, Any]:
    own = _llama(fields)
    if _STATE in fields.values["layer_types"]:
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


def _keys_first(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Reorder Mamba's channels, which are values, keys and queries after a gate, as delta nets'."""
    space = dimensions.state_space
    if space is None:
        return dict(own)
    values, keys, channels = space.values, space.keys, space.channels
    order = np.r_[values + keys : channels, values : values + keys, :values]
    whole = np.r_[values + order, :values, values + channels : sum(space.projected)]
    moves: Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
        "mamba.in_proj.weight": itemgetter(whole),
        "mamba.in_proj.bias": itemgetter(whole),
        "mamba.conv1d.bias": itemgetter(order),
        _MAMBA_CONVOLUTION: partial(np.take, indices=order, axis=1),
    }
    moved = dict(own)
    for name, tensor in own.items():
        for end, move in moves.items():
            if name.endswith(end):
                change = changed if end == _MAMBA_CONVOLUTION else reordered
                moved[name] = change(tensor, move)
    return moved


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


_NORMS_BEHIND = {"pre_norms": False, "post_norms": True}
_LAYER_NORMS = {"norm": "layer", "norm_bias": True}
_PARALLEL = {"parallel": True, "shared_norm": True}


_GEMMA_1 = DecoderType(
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
    particulars=_cohere,
    prepare=_norms_of_heads_joined,
    epsilon="layer_norm_eps",
    neighbours=True,
)


_OLMO_2 = DecoderType(
    defaults={**_DEFAULTS, "rms_norm_eps": 1e-5, "attention_bias": False},
    particulars=_olmo2,
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
    windowed=_windowed_but_every_nth,
    particulars=_gemma3,
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
    restated=_gemma4_restated,
    particulars=_gemma4,
    names=GEMMA_4_NAMES,
    prepare=_routers_scaled,
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
    particulars=_glm,
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
    particulars=_qwen3_5,
    restated=_qwen3_5_restated,
    names=QWEN3_5_NAMES,
    mixers={_STATE: DELTA},
    kernels=("linear_attn.conv1d.weight",),
    norms_less_one=True,
    whole_norms=("linear_attn.norm.weight",),
    rotary=(SHARE,),
    prepare=_parts_apart,
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
    particulars=_qwen3_5_experts,
    names=QWEN3_5_EXPERT_NAMES,
    names_instead=QWEN_STACKED_NAMES,
)


_QWEN3_5_EXPERTS = replace(_QWEN3_NEXT, restated=_qwen3_5_experts_restated)


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
    particulars=_granite,
)


TYPES: Mapping[str, DecoderType] = {
    "llama": DecoderType(defaults={**_DEFAULTS, "attention_bias": False}, particulars=_llama),
    "mistral": DecoderType(
        defaults={**_DEFAULTS, "sliding_window": 4096}, windowed=_always_windowed
    ),
    "mixtral": DecoderType(
        defaults={**_DEFAULTS, "rope_theta": 1_000_000.0, "rms_norm_eps": 1e-5},
        windowed=_always_windowed,
        particulars=_experts,
    ),
    "qwen2": DecoderType(
        defaults=_QWEN_DEFAULTS,
        windowed=_windowed_from_a_layer_on,
        particulars=lambda _fields: {"qkv_bias": True},
    ),
    "qwen3": DecoderType(
        defaults={**_QWEN_DEFAULTS, "head_dim": 128},
        windowed=_windowed_from_a_layer_on,
        particulars=lambda fields: _configured_biases(fields) | {"query_key_norm": True},
    ),
    "qwen2_moe": DecoderType(
        defaults=_QWEN_EXPERTS_DEFAULTS,
        windowed=_windowed_in_turns_up_to_a_layer,
        particulars=_qwen2_experts,
        names=QWEN_EXPERT_NAMES,
        names_instead=QWEN_STACKED_NAMES,
    ),
    "qwen3_moe": DecoderType(
        defaults=_QWEN_EXPERTS_DEFAULTS,
        windowed=_windowed_if_used,
        particulars=_qwen3_experts,
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
        particulars=_gpt_oss,
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
        windowed=_always_windowed,
        names=FUSED_NAMES,
        rotary=(SHARE,),
    ),
    "ministral": DecoderType(
        defaults={**_DEFAULTS, "sliding_window": 4096}, windowed=_always_windowed
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
        names=GRANITE_EXPERT_NAMES,
    ),
    "granitemoeshared": replace(
        _GRANITE,
        defaults={**_GRANITE.defaults, **_SHARED_EXPERTS, "shared_intermediate_size": 0},
        particulars=lambda fields: _granite(fields) | _shared_experts(fields),
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
        particulars=_bamba,
        names=BAMBA_NAMES,
        rotary=(SHARE,),
        restated=_bamba_restated,
        mixers={_STATE: STATE_SPACE},
        kernels=(_MAMBA_CONVOLUTION,),
        prepare=_keys_first,
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
        particulars=_granite_hybrid,
        names=GRANITE_HYBRID_NAMES,
        spelling={"layers_block_type": "layer_types"},
        restated=_granite_hybrid_restated,
        mixers={_STATE: STATE_SPACE},
        kernels=(_MAMBA_CONVOLUTION,),
        prepare=_keys_first,
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
    "exaone4": DecoderType(
        defaults={**_DEFAULTS, "rms_norm_eps": 1e-5, "sliding_window": 4096}
        | {"sliding_window_pattern": 4},
        windowed=_windowed_if_any_but_every_nth,
        particulars=_exaone4,
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
        windowed=_always_windowed,
        particulars=_starcoder2,
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
        particulars=_stablelm,
        prepare=_norms_of_heads_joined,
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
        windowed=_windowed_but_every_nth,
        particulars=_cohere2,
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
        particulars=_neox,
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
        particulars=_phi,
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
        particulars=_gpt2,
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
        particulars=_helium,
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
        particulars=_lfm2,
        names=LFM2_NAMES,
        restated=_lfm2_restated,
        epsilon="norm_eps",
        mixers={_CONVOLUTION: CONVOLUTION},
        kernels=("conv.conv.weight",),
    ),
}


# Models with images whose decoder is of any type, and that type where text_config names none.
WRAPPERS: Mapping[str, str] = {
    **dict.fromkeys(("llava", "idefics3", "smolvlm"), "llama"),
    **dict.fromkeys(("aya_vision", "cohere2_vision"), "cohere2"),
    "mistral3": "mistral",
}
