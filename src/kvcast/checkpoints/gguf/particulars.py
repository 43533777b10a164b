"""Values of GGUF files as the dimensions that an architecture has and others do not.

Knows no files and no tensors but their names.
"""

import math
from typing import Any

import numpy as np

from kvcast.checkpoints.gguf.metadata import Values
from kvcast.checkpoints.gguf.tensors import QUERY_NORM
from kvcast.families.convolutions import ATTENTION, CONVOLUTION, DELTA, STATE_SPACE
from kvcast.families.decoder_dimensions import SQUARED, scaled_residuals, sources_of_types
from kvcast.families.delta_nets import DeltaNet
from kvcast.families.state_spaces import StateSpace
from kvcast.spec.position_encodings import Rotary

EPSILON, RMS_EPSILON = "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"
WINDOW = "attention.sliding_window"
_KEY_LENGTHS = ("attention.key_length", "attention.key_length_swa")
_CONVOLUTION_BIAS = ".shortconv.in_proj.bias"
_LAYER_NORMS = {"norm": "layer", "norm_bias": True}
_UNGATED = {"gated": False, "feed_forward_bias": True}
_PARALLEL = {"parallel": True, "shared_norm": True}


def gemma(values: Values) -> dict[str, Any]:
    """Return Gemma's."""
    scale = math.sqrt(values.whole("embedding_length"))
    return {"activation": "gelu_tanh", "embedding_scale": scale}


def gemma2(values: Values, layers_scaled_by_width: int = 46) -> dict[str, Any]:
    """Return Gemma 2's."""
    width, heads = values.whole("embedding_length"), values.same_whole("attention.head_count")
    # Only the 27B model scales by its width; llama.cpp, too, recognises it by its layers.
    by_width = values.whole("block_count") == layers_scaled_by_width
    scaled = width // heads if by_width else values.head_dim
    attention, final = (
        values.positive(name) if values.has(name) else 0.0
        for name in ("attn_logit_softcapping", "final_logit_softcapping")
    )
    return gemma(values) | {
        "attention_scale": scaled**-0.5,
        "attention_softcap": attention,
        "logit_softcap": final,
        "post_norms": True,
    }


def gemma3(values: Values) -> dict[str, Any]:
    """Return Gemma 3's."""
    base = values.positive("rope.freq_base_swa", 10_000.0)
    return gemma2(values, 62) | {
        "query_key_norm": True,
        "window_rotary": values.fields.make(Rotary, base=base),
    }


def gemma4(values: Values) -> dict[str, Any]:
    """Return Gemma 4's."""
    layers, fields, heads = values.layers, values.fields, values.same_whole("attention.head_count")
    pattern = values.plain(f"{WINDOW}_pattern")
    if not isinstance(pattern, np.ndarray) or len(pattern) != layers:
        raise fields.error(f"{WINDOW}_pattern is not one for each of {layers} layers")
    windowed = [bool(flag) for flag in pattern]
    full, inside = (values.whole(name, values.head_dim) for name in _KEY_LENGTHS)
    if values.whole("rope.dimension_count_swa", inside) != inside:
        raise fields.error(f"rope.dimension_count_swa must be {inside}, as keys")
    shared = values.whole("attention.shared_kv_layers", 0, least=0, most=layers)
    window = min(values.whole(WINDOW), values.whole("context_length"))
    base = values.positive("rope.freq_base_swa", 10_000.0)
    cap = "final_logit_softcapping"
    experts = {} if not values.plain("expert_count") else mixture(values)
    if experts:
        experts["expert_inner"] = values.same_whole("expert_feed_forward_length")
    return {
        **gemma(values),
        **experts,
        "attention_scale": 1.0,
        "logit_softcap": values.positive(cap) if values.has(cap) else 0.0,
        "windows": tuple(window if flag else None for flag in windowed),
        "window_rotary": fields.make(Rotary, base=base),
        "query_key_norm": True,
        "value_norm": True,
        "post_norms": True,
        "head_dim": inside,
        "layer_head_dims": tuple(inside if flag else full for flag in windowed),
        "layer_kv_heads": values.each("attention.head_count_kv", heads),
        "layer_inners": values.each("feed_forward_length"),
        "sources": fields.make(sources_of_types, kinds=windowed, shared=shared),
        "keys_as_values": tuple(
            i for i in range(layers - shared) if f"blk.{i}.attn_v.weight" not in values.tensors
        ),
        "layer_embedding": values.whole("embedding_length_per_layer_input", 0, least=0),
        "layer_scales": True,
    }


def granite(values: Values) -> dict[str, Any]:
    """Return Granite's factors."""
    scaled = values.fields.make(
        scaled_residuals,
        residual=values.positive("residual_scale", 1.0),
        embedding=values.positive("embedding_scale", 1.0),
        epsilon=values.positive(RMS_EPSILON),
    )
    return scaled | {"logit_scale": 1 / values.positive("logit_scale", 1.0)}


def smollm3(values: Values) -> dict[str, Any]:
    """Return SmolLM 3's layers without rotation."""
    # llama.cpp, too, has the interval in its program and not from the file.
    return {"unrotated": tuple(range(3, values.whole("block_count"), 4))}


def olmo2(values: Values) -> dict[str, Any]:
    """Return OLMo 2's and 3's."""
    base = values.positive("rope.freq_base", 10_000.0)
    # Layers with a window are not extended.
    plain = values.fields.make(Rotary, base=base)
    return {
        "query_key_norm": True,
        "whole_query_key_norm": True,
        "pre_norms": False,
        "post_norms": True,
        "window_rotary": plain if values.has("attention.sliding_window") else None,
    }


def starcoder2(_: Values) -> dict[str, Any]:
    """Return StarCoder 2's."""
    return _LAYER_NORMS | _UNGATED | {"activation": "gelu_tanh"}


def cohere(values: Values) -> dict[str, Any]:
    """Return Command R's."""
    scale = values.positive("logit_scale")
    return _PARALLEL | {"norm": "layer", "logit_scale": scale} | _own_norms(values)


def _own_norms(values: Values) -> dict[str, Any]:
    used = f"blk.0{QUERY_NORM}" in values.tensors
    return {"query_key_norm": used, "own_query_key_norms": used}


def mixture(values: Values) -> dict[str, int]:
    """Return the number of experts, and how many a token uses."""
    experts = values.whole("expert_count", 0, least=0)
    return {
        "experts": experts,
        "experts_per_token": values.whole("expert_used_count") if experts else 0,
    }


def many_experts(values: Values) -> dict[str, int]:
    """Return experts whose width is not that of other feed-forwards."""
    return mixture(values) | {"inner": values.same_whole("expert_feed_forward_length")}


def shared_experts(values: Values) -> dict[str, Any]:
    """Return experts and one that all tokens go through, if there is one (Granite 3 and 4)."""
    shared = values.whole("expert_shared_feed_forward_length", 0, least=0)
    own: dict[str, Any] = mixture(values)
    is_shared = own["experts"] and shared
    return own | {"shared_inner": shared, "shared_gated": False} if is_shared else own


def qwen2_experts(values: Values) -> dict[str, Any]:
    """Return those of Qwen 2 with experts."""
    shared = values.same_whole("expert_shared_feed_forward_length")
    return many_experts(values) | {"experts_normalised": False, "shared_inner": shared}


def gpt_oss(values: Values) -> dict[str, Any]:
    """Return gpt-oss's."""
    gates = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}  # which files do not name
    return many_experts(values) | {"expert_bias": True, "sinks": True, **gates}


def gpt2(_: Values) -> dict[str, Any]:
    """Return GPT-2's, and GPT-BigCode's."""
    positions = {"rotary": None, "learned_positions": True}
    return _LAYER_NORMS | _UNGATED | positions | {"activation": "gelu_tanh"}


def gptneox(values: Values) -> dict[str, Any]:
    """Return GPT-NeoX's."""
    parallel = values.flag("use_parallel_residual", True)
    return _LAYER_NORMS | _UNGATED | {"activation": "gelu", "parallel": parallel}


def phi2(_: Values) -> dict[str, Any]:
    """Return Phi 2's."""
    return _LAYER_NORMS | _UNGATED | _PARALLEL | {"activation": "gelu_tanh", "head_bias": True}


def stablelm(values: Values) -> dict[str, Any]:
    """Return StableLM's."""
    # As in llama.cpp: files say use_parallel_residual of models with a second norm, too.
    blocks = {} if "blk.0.ffn_norm.weight" in values.tensors else _PARALLEL
    return _LAYER_NORMS | blocks | _own_norms(values)


def exaone4(_: Values) -> dict[str, Any]:
    """Return EXAONE 4's."""
    return {"query_key_norm": True, "pre_norms": False, "post_norms": True}


def lfm2(values: Values) -> dict[str, Any]:
    """Return LFM2's."""
    heads = np.atleast_1d(values.plain("attention.head_count_kv")).tolist()
    if 0 not in heads:
        return {"query_key_norm": True}
    return {
        "query_key_norm": True,
        "mixers": tuple(ATTENTION if count else CONVOLUTION for count in heads),
        "convolution": values.whole("shortconv.l_cache"),
        "convolution_bias": any(name.endswith(_CONVOLUTION_BIAS) for name in values.tensors),
    }


def qwen35(values: Values) -> dict[str, Any]:
    """Return Qwen 3.5's."""
    own = {"query_key_norm": True, "attention_gate": True}
    every, layers = values.whole("full_attention_interval", 4), range(1, values.layers + 1)
    mixers = tuple(DELTA if i % every else ATTENTION for i in layers)
    if DELTA not in mixers:
        return own
    heads = values.whole("ssm.time_step_rank")
    delta = values.fields.make(
        DeltaNet,
        key_heads=values.whole("ssm.group_count"),
        value_heads=heads,
        key_dim=values.whole("ssm.state_size"),
        value_dim=values.whole("ssm.inner_size") // heads,
        convolution=values.whole("ssm.conv_kernel"),
    )
    return own | {"mixers": mixers, "delta": delta}


def qwen35_experts(values: Values) -> dict[str, Any]:
    """Return those of Qwen 3 Next, and of Qwen 3.5 with experts."""
    shared = values.same_whole("expert_shared_feed_forward_length")
    return qwen35(values) | many_experts(values) | {"shared_inner": shared}


def granite_hybrid(values: Values) -> dict[str, Any]:
    """Return Granite 4's."""
    own = granite(values) | shared_experts(values)
    if not values.flag("rope.scaling.finetuned", False):
        own["rotary"] = None
    heads = np.atleast_1d(values.plain("attention.head_count_kv")).tolist()
    if 0 not in heads:
        return own
    steps = values.whole("ssm.time_step_rank")
    space = values.fields.make(
        StateSpace,
        key_heads=values.whole("ssm.group_count"),
        value_heads=steps,
        key_dim=values.whole("ssm.state_size"),
        value_dim=values.whole("ssm.inner_size") // steps,
        convolution=values.whole("ssm.conv_kernel"),
        convolution_bias=any(name.endswith(".ssm_conv1d.bias") for name in values.tensors),
        norm_eps=values.positive(RMS_EPSILON),
    )
    mixers = tuple(ATTENTION if count else STATE_SPACE for count in heads)
    return own | {"mixers": mixers, "state_space": space}


def arcee(_: Values) -> dict[str, Any]:
    """Return Arcee's."""
    return {"gated": False, "activation": SQUARED}


def nemotron(values: Values) -> dict[str, Any]:
    """Return Nemotron's and Jais 2's."""
    biased = {"feed_forward_bias": "blk.0.ffn_up.bias" in values.tensors}
    return _LAYER_NORMS | arcee(values) | biased


def olmo(values: Values) -> dict[str, Any]:
    """Return OLMo's."""
    return {"norm": "layer", "qkv_limit": values.optional("attention.clamp_kqv")}


def olmoe(values: Values) -> dict[str, Any]:
    """Return OLMoE's."""
    norms = {"query_key_norm": True, "whole_query_key_norm": True}
    return mixture(values) | norms | {"experts_normalised": False}


def falcon(values: Values) -> dict[str, Any]:
    """Return Falcon's, whose newer architecture has a norm before each of two blocks."""
    shared = "blk.0.attn_norm_2.weight" not in values.tensors
    blocks = {"parallel": True, "shared_norm": shared, "gated": False, "activation": "gelu"}
    return _LAYER_NORMS | blocks
