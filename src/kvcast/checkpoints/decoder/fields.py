"""Fields of a configuration as the dimensions that a model type has and others do not.

Functions of a type take its fields; window functions also take a layer's index, and return whether
it has a window.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvcast.checkpoints.decoder.rotary import (
    FULL,
    SLIDING,
    read_rotary,
    read_stretched_rotary,
)
from kvcast.checkpoints.fields import ACTIVATIONS, Fields
from kvcast.families.alternating import Alternating
from kvcast.families.decoder_dimensions import (
    SQUARED,
    XIELU,
    scaled_residuals,
    sources_of_types,
)
from kvcast.families.feed_forwards import Routing
from kvcast.spec.sizes import MOST_LAYERS

LARGEST = 2**31
_SPARSE_LAYERS = 10  # Gemma 3n's first
_NORMS_BEHIND = {"pre_norms": False, "post_norms": True}
_ACTIVATIONS = {**ACTIVATIONS, "relu2": SQUARED, "xielu": XIELU}
ACTIVATION_FIELDS = ("hidden_activation", "hidden_act")


def activation_of(fields: Fields, names: Sequence[str] = ACTIVATION_FIELDS) -> str:
    """Return the activation of the first of these fields that is set."""
    given = [fields.values.get(name) for name in names]
    activation = str(next(filter(None, given), given[-1]))
    if activation not in _ACTIVATIONS:
        supported = ", ".join(_ACTIVATIONS)
        raise fields.error(f"activation {activation!r} is not supported (supported: {supported})")
    return _ACTIVATIONS[activation]


def require_silu(fields: Fields, names: Sequence[str] = ACTIVATION_FIELDS) -> None:
    if activation_of(fields, names) != "silu":
        raise fields.error(f"{names[-1]} must be silu: other models are not supported")


def llama(fields: Fields) -> dict[str, Any]:
    return configured_biases(fields) | {"feed_forward_bias": fields.flag("mlp_bias", False)}


def configured_biases(fields: Fields) -> dict[str, Any]:
    biases = fields.flag("attention_bias")
    return {"qkv_bias": biases, "out_bias": biases}


def _gemma(fields: Fields) -> dict[str, Any]:
    if fields.flag("use_bidirectional_attention", False):
        raise fields.error(
            "use_bidirectional_attention is not supported: it makes the model an encoder"
        )
    scale = math.sqrt(fields.whole("hidden_size"))
    return configured_biases(fields) | {"embedding_scale": scale}


def gemma1(fields: Fields) -> dict[str, Any]:
    # The first files say "gelu" and mean its approximation.
    meant = {"activation": "gelu_tanh"} if activation_of(fields) == "gelu" else {}
    return _gemma(fields) | meant


def gemma2(fields: Fields) -> dict[str, Any]:
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


def glm(fields: Fields) -> dict[str, Any]:
    return {"qkv_bias": fields.flag("attention_bias")}


def gemma3(fields: Fields) -> dict[str, Any]:
    return gemma2(fields) | {
        "window_rotary": read_rotary(fields, SLIDING, "rope_local_base_freq"),
        "query_key_norm": True,
    }


_INNERS = "intermediate_sizes"


def restate_gemma3n(fields: Fields) -> dict[str, Any]:
    layers, name = fields.whole("num_hidden_layers", most=MOST_LAYERS), "intermediate_size"
    sizes = fields.values[name]
    sizes = sizes if isinstance(sizes, list) else [sizes] * layers
    if len(sizes) != layers:
        raise fields.error(f"{name} must be one, or list one for each of {layers} layers")
    each = [replace(fields, values={name: size}).whole(name) for size in sizes]
    kinds = fields.values.get("layer_types")
    if kinds is None:
        kinds = [FULL if (i + 1) % 5 == 0 else SLIDING for i in range(layers)]
    return {name: each[0], _INNERS: each, "layer_types": kinds}


def gemma3n(fields: Fields) -> dict[str, Any]:
    return _gemma_with_value_norms(fields) | {
        "layer_inners": tuple(fields.values[_INNERS]),
        "sources": _shared_sources(fields, fields.values["layer_types"]),
        "layer_embedding": fields.whole("hidden_size_per_layer_input"),
        "layer_vocabulary": fields.whole("vocab_size_per_layer_input"),
        "sparsities": _sparsities(fields),
        "alternating": fields.make(
            Alternating,
            streams=fields.whole("altup_num_inputs"),
            active=fields.whole("altup_active_idx", least=0),
            scaled=fields.flag("altup_correct_scale"),
            rank=fields.whole("laurel_rank"),
        ),
    }


def _gemma_with_value_norms(fields: Fields) -> dict[str, Any]:
    """Return what Gemma 3n and 4 have in common."""
    cap = "final_logit_softcapping"
    return configured_biases(fields) | {
        "embedding_scale": math.sqrt(fields.whole("hidden_size")),
        "attention_scale": 1.0,
        "logit_softcap": fields.positive(cap) if fields.values[cap] is not None else 0.0,
        "window_rotary": read_rotary(fields, SLIDING, "rope_local_base_freq"),
        "query_key_norm": True,
        "value_norm": True,
        "post_norms": True,
    }


def _sparsities(fields: Fields) -> tuple[float, ...]:
    name, layers = "activation_sparsity_pattern", fields.whole("num_hidden_layers")
    shares = fields.values.get(name)
    if shares is None:
        sparse = _SPARSE_LAYERS if layers > _SPARSE_LAYERS else 0
        shares = [0.95] * sparse + [0.0] * (layers - sparse)
    if not isinstance(shares, list) or not all(type(x) in (int, float) for x in shares):
        raise fields.error(f"{name} must list numbers")
    return tuple(map(float, shares)) if any(shares) or len(shares) != layers else ()


def restate_gemma4(fields: Fields) -> dict[str, Any]:
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
    own = {"head_dim": fields.whole("global_head_dim")}
    if fields.flag("attention_k_eq_v") and fields.values.get("num_global_key_value_heads"):
        own["num_key_value_heads"] = fields.whole("num_global_key_value_heads")
    return {str(i): own for i, kind in enumerate(kinds) if kind == FULL}


def gemma4(fields: Fields) -> dict[str, Any]:
    if fields.values.get("use_bidirectional_attention") not in (None, "vision"):
        raise fields.error(
            "use_bidirectional_attention is not supported: it makes the model an encoder"
        )
    kinds, embedding = fields.values["layer_types"], "hidden_size_per_layer_input"
    sources, shared = _shared_sources(fields, kinds), fields.flag("use_double_wide_mlp")
    inner = fields.whole("intermediate_size")
    width = fields.whole(embedding, least=0) if fields.values[embedding] is not None else 0
    if width and fields.whole("vocab_size_per_layer_input") != fields.whole("vocab_size"):
        raise fields.error("vocab_size_per_layer_input must be vocab_size")
    doubled = [inner << (shared and source != i) for i, source in enumerate(sources)]
    as_values = fields.flag("attention_k_eq_v")
    return _gemma_with_value_norms(fields) | {
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


def _shared_sources(fields: Fields, kinds: Sequence[str]) -> tuple[int, ...]:
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


def granite(fields: Fields) -> dict[str, Any]:
    scaled = fields.make(
        scaled_residuals,
        residual=fields.positive("residual_multiplier"),
        embedding=fields.positive("embedding_multiplier"),
        epsilon=fields.positive("rms_norm_eps"),
    )
    return (
        llama(fields)
        | scaled
        | {
            "attention_scale": fields.positive("attention_multiplier"),
            "logit_scale": 1 / fields.positive("logits_scaling"),
        }
    )


def granite_swa(fields: Fields) -> dict[str, Any]:
    return granite(fields) | {"sinks": True, "rotary_bases": _rotary_bases(fields)}


def _rotary_bases(fields: Fields) -> tuple[float, ...]:
    """Return `layer_rope_theta` where layers differ; 0: no rotation."""
    name, layers = "layer_rope_theta", fields.whole("num_hidden_layers", most=MOST_LAYERS)
    bases = fields.values.get(name)
    if bases is None:
        return ()
    if not isinstance(bases, list) or len(bases) != layers:
        raise fields.error(f"{name} must list {layers} layers")
    positive = replace(fields, values={name: [base for base in bases if base != 0]})
    turning = iter(positive.positive_floats(name))
    each = tuple(0.0 if base == 0 else next(turning) for base in bases)
    return each if set(each) != {read_rotary(fields, FULL, "rope_theta").base} else ()


def muse_glimmer(fields: Fields) -> dict[str, Any]:
    scale = fields.positive("qk_scale_factor") * fields.whole("head_dim") ** -0.5
    return configured_biases(fields) | {
        "unrotated": _unrotated(fields),
        "attention_scale": scale,
        "attention_gate": True,
        "query_key_norm": True,
        "post_norms": True,
        "post_norm_eps": fields.positive("post_norm_eps"),
        "embedding_norm": True,
        "logit_scale": fields.positive("output_multiplier"),
        "logit_softcap": fields.positive("final_logit_softcapping"),
    }


def _unrotated(fields: Fields) -> tuple[int, ...]:
    """Return the layers of base 0; transformers ignores bases other than the usual."""
    name, layers = "layer_rope_theta", fields.whole("num_hidden_layers", most=MOST_LAYERS)
    bases, usual = fields.values.get(name), read_rotary(fields, FULL, "rope_theta").base
    if bases is None:
        turning = [windowed_but_every_fourth_from_the_last(fields, i) for i in range(layers)]
    elif isinstance(bases, list) and len(bases) == layers and all(x in (0, usual) for x in bases):
        turning = [base != 0 for base in bases]
    else:
        raise fields.error(f"{name} must list 0 or {usual:g} for each of {layers} layers")
    return tuple(i for i, turns in enumerate(turning) if not turns)


def windowed_but_every_fourth_from_the_last(fields: Fields, layer: int) -> bool:
    return (fields.whole("num_hidden_layers") - 1 - layer) % 4 != 0


def hunyuan(fields: Fields) -> dict[str, Any]:
    size = fields.whole("hidden_size") // fields.whole("num_attention_heads")
    return configured_biases(fields) | {
        "rotary": read_stretched_rotary(fields, fields.whole("head_dim", size)),
        "query_key_norm": True,
        "late_query_key_norm": True,
    }


def smollm3(fields: Fields) -> dict[str, Any]:
    return llama(fields) | {"unrotated": unrotated(fields)}


def unrotated(fields: Fields) -> tuple[int, ...]:
    layers = range(fields.whole("num_hidden_layers", most=MOST_LAYERS))
    return tuple(i for i in layers if not _is_rotated(fields, i))


def olmo2(fields: Fields) -> dict[str, Any]:
    whole = {"query_key_norm": True, "whole_query_key_norm": True}
    return configured_biases(fields) | _NORMS_BEHIND | whole


def exaone4(fields: Fields) -> dict[str, Any]:
    """In models with windows, layers without one do not rotate."""
    sizes = _NORMS_BEHIND | {"query_key_norm": True}
    if fields.values.get("sliding_window") is None:
        return sizes
    return sizes | {"rotary": None, "window_rotary": read_rotary(fields, FULL, "rope_theta")}


def experts(fields: Fields) -> dict[str, Any]:
    return {
        "experts": fields.whole("num_local_experts"),
        "experts_per_token": fields.whole("num_experts_per_tok"),
    }


def gpt_oss(fields: Fields) -> dict[str, Any]:
    return (
        experts(fields)
        | configured_biases(fields)
        | {
            "expert_bias": True,
            "swiglu_alpha": fields.positive("swiglu_alpha"),
            "swiglu_limit": fields.positive("swiglu_limit"),
            "sinks": True,
        }
    )


def qwen_experts(fields: Fields) -> dict[str, Any]:
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


def qwen2_experts(fields: Fields) -> dict[str, Any]:
    return qwen_experts(fields) | {
        "qkv_bias": fields.flag("qkv_bias"),
        "shared_inner": fields.whole("shared_expert_intermediate_size"),
    }


def qwen3_experts(fields: Fields) -> dict[str, Any]:
    return qwen_experts(fields) | configured_biases(fields) | {"query_key_norm": True}


def olmoe(fields: Fields) -> dict[str, Any]:
    return (
        configured_biases(fields)
        | limited(fields)
        | {
            "experts": fields.whole("num_experts"),
            "experts_per_token": fields.whole("num_experts_per_tok"),
            "experts_normalised": fields.flag("norm_topk_prob"),
            "query_key_norm": True,
            "whole_query_key_norm": True,
        }
    )


def first_dense(fields: Fields, name: str) -> dict[str, Any]:
    """Return inner widths of experts, and of the first layers, which have none."""
    dense = fields.whole(name, least=0, most=MOST_LAYERS)
    return {
        "inner": fields.whole("moe_intermediate_size"),
        "dense_layers": tuple(range(dense)),
        "dense_inner": fields.whole("intermediate_size") if dense else 0,
    }


def shared_of_experts(fields: Fields, name: str) -> dict[str, Any]:
    """Return the sizes of an expert for all tokens, as wide as several."""
    several = fields.whole(name, least=0)
    width = several * fields.whole("moe_intermediate_size")
    return {"shared_inner": width, "shared_gated": False}


def deepseek_experts(fields: Fields, routing: Routing) -> dict[str, Any]:
    return {
        **shared_of_experts(fields, "n_shared_experts"),
        "inner": fields.whole("moe_intermediate_size"),
        "experts": fields.whole("n_routed_experts"),
        "experts_per_token": fields.whole("num_experts_per_tok"),
        "experts_normalised": fields.flag("norm_topk_prob"),
        "routing": routing,
    }


def deepseek3_experts(fields: Fields) -> dict[str, Any]:
    """DeepSeek V3's way, and that of others: sigmoids, a bias for the choice, groups."""
    routing = Routing(
        score="sigmoid",
        bias=True,
        groups=fields.whole("n_group"),
        groups_per_token=fields.whole("topk_group"),
        epsilon=1e-20,
        scale=fields.positive("routed_scaling_factor"),
    )
    return first_dense(fields, "first_k_dense_replace") | deepseek_experts(fields, routing)


def limited(fields: Fields) -> dict[str, Any]:
    is_limited = fields.values.get("clip_qkv") is not None
    return {"qkv_limit": fields.positive("clip_qkv") if is_limited else 0.0}


def seed_oss(fields: Fields) -> dict[str, Any]:
    return llama(fields) | {"out_bias": fields.flag("attention_out_bias")}


def ernie(fields: Fields) -> dict[str, Any]:
    names = ("qkv_bias", "out_bias", "feed_forward_bias")
    return dict.fromkeys(names, fields.flag("use_bias"))


def helium(fields: Fields) -> dict[str, Any]:
    return llama(fields) | {"out_bias": False}


def _is_rotated(fields: Fields, layer: int) -> bool:
    """SmolLM 3: `no_rope_layers` is 1 for layers with rotation."""
    flags = fields.values.get("no_rope_layers")
    if flags is None:
        return (layer + 1) % fields.whole("no_rope_layer_interval") != 0
    if not isinstance(flags, list) or len(flags) <= layer or flags[layer] not in (0, 1):
        raise fields.error("no_rope_layers must list 0 or 1 for each layer")
    return bool(flags[layer])


def windowed_unless_rotated(fields: Fields, layer: int) -> bool:
    """SmolLM 3: layers without rotation have a window, if enabled."""
    enabled = fields.flag("use_sliding_window") and always_windowed(fields, layer)
    return enabled and not _is_rotated(fields, layer)


def windowed_if_any_but_every_nth(fields: Fields, layer: int) -> bool:
    """EXAONE 4: all but each n-th layer have a window, if enabled."""
    return always_windowed(fields, layer) and windowed_but_every_nth(fields, layer)


def shared_experts(fields: Fields) -> dict[str, Any]:
    """Inner widths of feed-forwards that all tokens go through, perhaps with experts."""
    if fields.whole("num_local_experts", least=0) == 0:
        return {"inner": fields.whole("shared_intermediate_size")}
    shared = fields.whole("shared_intermediate_size", least=0)
    return experts(fields) | {"shared_inner": shared, "shared_gated": False}


def always_windowed(fields: Fields, _layer: int) -> bool:
    return fields.values.get("sliding_window") is not None


def windowed_from_a_layer_on(fields: Fields, layer: int) -> bool:
    """Qwen 2 and 3: later layers have a window, if enabled."""
    enabled = fields.flag("use_sliding_window") and always_windowed(fields, layer)
    return enabled and layer >= fields.whole("max_window_layers", least=0)


def windowed_if_used(fields: Fields, _layer: int) -> bool:
    return fields.flag("use_sliding_window") and always_windowed(fields, _layer)


def windowed_in_turns_up_to_a_layer(fields: Fields, layer: int) -> bool:
    """Qwen 2 with experts: every other of the first layers has a window, if enabled."""
    before = layer < fields.whole("max_window_layers", least=0)
    return windowed_if_used(fields, layer) and before and layer % 2 == 0


def windowed_but_every_nth(fields: Fields, layer: int) -> bool:
    return (layer + 1) % fields.whole("sliding_window_pattern") != 0
