"""Architectures of GGUF files: a row for each.

llama.cpp's conversion/*.py define how models are converted. Norms are stored as they multiply.
Knows no files.
"""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.gguf_delta_nets import delta_net_tensors
from kvcast.checkpoints.gguf_values import Values
from kvcast.checkpoints.tables import changed, transposed
from kvcast.families.convolutions import ATTENTION, CONVOLUTION, DELTA
from kvcast.families.decoder_dimensions import DecoderDimensions, scaled_residuals, sources_of_types
from kvcast.families.delta_nets import DeltaNet
from kvcast.spec.rotary import Rotary

_LAYER = "decoder.layers.{i}"
NAMES: Mapping[str, Sequence[str]] = {
    "decoder.embedding.weight": ("token_embd.weight",),
    "decoder.norm.weight": ("output_norm.weight",),
    "decoder.head.weight": ("output.weight",),
    f"{_LAYER}.attention_norm.weight": ("blk.{i}.attn_norm.weight",),
    f"{_LAYER}.attention.qkv.weight": tuple(f"blk.{{i}}.attn_{x}.weight" for x in "qkv"),
    f"{_LAYER}.attention.qkv.bias": tuple(f"blk.{{i}}.attn_{x}.bias" for x in "qkv"),
    f"{_LAYER}.attention.out.weight": ("blk.{i}.attn_output.weight",),
    f"{_LAYER}.attention.out.bias": ("blk.{i}.attn_output.bias",),
    f"{_LAYER}.attention.query_norm.weight": ("blk.{i}.attn_q_norm.weight",),
    f"{_LAYER}.attention.key_norm.weight": ("blk.{i}.attn_k_norm.weight",),
    f"{_LAYER}.attention_post_norm.weight": ("blk.{i}.post_attention_norm.weight",),
    f"{_LAYER}.feed_forward_norm.weight": ("blk.{i}.ffn_norm.weight",),
    f"{_LAYER}.feed_forward.gate_up.weight": (
        "blk.{i}.ffn_gate.weight",
        "blk.{i}.ffn_up.weight",
    ),
    f"{_LAYER}.feed_forward.up.weight": ("blk.{i}.ffn_up.weight",),
    f"{_LAYER}.feed_forward.down.weight": ("blk.{i}.ffn_down.weight",),
    f"{_LAYER}.feed_forward_post_norm.weight": ("blk.{i}.post_ffw_norm.weight",),
    f"{_LAYER}.feed_forward.router.weight": ("blk.{i}.ffn_gate_inp.weight",),
    # Files stack the experts; `_stored` splits them.
    f"{_LAYER}.feed_forward.gate_up": (
        "blk.{i}.ffn_gate_exps.weight.{e}",
        "blk.{i}.ffn_up_exps.weight.{e}",
    ),
    f"{_LAYER}.feed_forward.down": ("blk.{i}.ffn_down_exps.weight.{e}",),
    f"{_LAYER}.feed_forward.shared.gate_up.weight": (
        "blk.{i}.ffn_gate_shexp.weight",
        "blk.{i}.ffn_up_shexp.weight",
    ),
    f"{_LAYER}.feed_forward.shared.down.weight": ("blk.{i}.ffn_down_shexp.weight",),
    f"{_LAYER}.feed_forward.shared.gate.weight": ("blk.{i}.ffn_gate_inp_shexp.weight",),
    f"{_LAYER}.feed_forward.router.bias": ("blk.{i}.ffn_gate_inp.bias",),
    f"{_LAYER}.feed_forward.gate_up_bias": (
        "blk.{i}.ffn_gate_exps.bias.{e}",
        "blk.{i}.ffn_up_exps.bias.{e}",
    ),
    f"{_LAYER}.feed_forward.down_bias": ("blk.{i}.ffn_down_exps.bias.{e}",),
    f"{_LAYER}.attention.sinks": ("blk.{i}.attn_sinks.weight",),
    "decoder.norm.bias": ("output_norm.bias",),
    f"{_LAYER}.attention_norm.bias": ("blk.{i}.attn_norm.bias",),
    f"{_LAYER}.feed_forward_norm.bias": ("blk.{i}.ffn_norm.bias",),
    f"{_LAYER}.feed_forward.up.bias": ("blk.{i}.ffn_up.bias",),
    f"{_LAYER}.feed_forward.down.bias": ("blk.{i}.ffn_down.bias",),
    "decoder.head.bias": ("output.bias",),
    "decoder.positions": ("position_embd.weight",),
}
"""Names of the files' tensors, by canonical name."""
_FUSED = {f"{_LAYER}.feed_forward.gate_up.weight": ("blk.{i}.ffn_up.weight",)}
_FUSED_QKV = {
    f"{_LAYER}.attention.qkv.{leaf}": (f"blk.{{i}}.attn_qkv.{leaf}",) for leaf in ("weight", "bias")
}
_NORM_AFTER_ATTENTION = {
    f"{_LAYER}.feed_forward_norm.weight": ("blk.{i}.post_attention_norm.weight",)
}
_LFM2_NAMES = {
    **NAMES,
    "decoder.norm.weight": ("token_embd_norm.weight",),
    f"{_LAYER}.convolution.kernel": ("blk.{i}.shortconv.conv.weight",),
    f"{_LAYER}.convolution.bias": ("blk.{i}.shortconv.conv.bias",),
    **{
        f"{_LAYER}.convolution.{ours}.{leaf}": (f"blk.{{i}}.shortconv.{theirs}_proj.{leaf}",)
        for ours, theirs in (("input", "in"), ("out", "out"))
        for leaf in ("weight", "bias")
    },
}
_QWEN35_NAMES = {
    **NAMES,
    **_NORM_AFTER_ATTENTION,
    f"{_LAYER}.attention.gate.weight": ("blk.{i}.attn_q_gate.weight",),
    f"{_LAYER}.delta.input.weight": tuple(
        f"blk.{{i}}.{name}.weight" for name in ("ssm_qkv", "attn_gate", "ssm_beta", "ssm_alpha")
    ),
    f"{_LAYER}.delta.kernel": ("blk.{i}.ssm_conv1d.weight",),
    f"{_LAYER}.delta.decay": ("blk.{i}.ssm_a",),
    f"{_LAYER}.delta.step_bias": ("blk.{i}.ssm_dt.bias",),
    f"{_LAYER}.delta.norm.weight": ("blk.{i}.ssm_norm.weight",),
    f"{_LAYER}.delta.out.weight": ("blk.{i}.ssm_out.weight",),
}
_GEMMA4_NAMES = {
    **NAMES,
    "decoder.layer_embedding.weight": ("per_layer_token_embd.weight",),
    "decoder.layer_projection.weight": ("per_layer_model_proj.weight",),
    "decoder.layer_projection_norm.weight": ("per_layer_proj_norm.weight",),
    f"{_LAYER}.layer_input.gate.weight": ("blk.{i}.inp_gate.weight",),
    f"{_LAYER}.layer_input.out.weight": ("blk.{i}.proj.weight",),
    f"{_LAYER}.layer_input_norm.weight": ("blk.{i}.post_norm.weight",),
    f"{_LAYER}.scale": ("blk.{i}.layer_output_scale.weight",),
    f"{_LAYER}.feed_forward_own_norm.weight": ("blk.{i}.post_ffw_norm_1.weight",),
    f"{_LAYER}.experts_norm.weight": ("blk.{i}.pre_ffw_norm_2.weight",),
    f"{_LAYER}.experts_post_norm.weight": ("blk.{i}.post_ffw_norm_2.weight",),
    f"{_LAYER}.experts.router.weight": ("blk.{i}.ffn_gate_inp.weight",),
    f"{_LAYER}.experts.router_norm.weight": ("blk.{i}.ffn_gate_inp.scale",),
    f"{_LAYER}.experts.scales": ("blk.{i}.ffn_down_exps.scale",),
    f"{_LAYER}.experts.gate_up": ("blk.{i}.ffn_gate_up_exps.weight.{e}",),
    f"{_LAYER}.experts.down": ("blk.{i}.ffn_down_exps.weight.{e}",),
}
QUERY_NORM, KEY_NORM = ".attn_q_norm.weight", ".attn_k_norm.weight"
_EPSILON, _RMS_EPSILON = "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"
_WINDOW = "attention.sliding_window"
_KEY_LENGTHS = ("attention.key_length", "attention.key_length_swa")
_KERNEL, _CONVOLUTION_BIAS = ".shortconv.conv.weight", ".shortconv.in_proj.bias"
_LAYER_NORMS = {"norm": "layer", "norm_bias": True}
_UNGATED = {"gated": False, "feed_forward_bias": True}
_PARALLEL = {"parallel": True, "shared_norm": True}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Properties of an architecture beyond the file's values.

    `neighbours`: rotary pairs of queries and keys are neighbouring rows, not halves of a head.
    `global_every`: with a window, every n-th layer sees everything; 0: no layer does.
    `turns_in_windows`: whether, in models with windows, layers without one have no rotation.
    `partial`: whether a part of a head may turn.
    `truncate`: whether whole pairs bound YaRN's blend.
    `uneven`: whether sizes of layers may differ.
    `hybrid`: whether layers with no heads of keys have other parts than attention.
    `names`: of the files' tensors.
    `particulars`: dimensions that other architectures do not have.
    `prepare`: changes tensors that a table of names cannot describe.
    `epsilon`: name of the value of the norms' epsilon.
    """

    neighbours: bool = False
    global_every: int = 0
    turns_in_windows: bool = False
    partial: bool = False
    truncate: bool = True
    uneven: bool = False
    hybrid: bool = False
    names: Mapping[str, Sequence[str]] = field(default_factory=lambda: NAMES)
    particulars: Callable[[Values], Mapping[str, Any]] = lambda _: {}
    prepare: Callable[[Mapping[str, StoredTensor], DecoderDimensions], dict[str, StoredTensor]] = (
        lambda stored, _: dict(stored)
    )
    epsilon: str = _RMS_EPSILON

    def names_in(self, tensors: Container[str]) -> Mapping[str, Sequence[str]]:
        """Return the names in a file, which may have queries, keys and values in one tensor."""
        is_fused = not self.hybrid and "blk.0.attn_qkv.weight" in tensors
        return {**self.names, **_FUSED_QKV} if is_fused else self.names

    def rotary(self, values: Values, rotary: Rotary) -> dict[str, Rotary | None]:
        """Return the dimensions of rotary embeddings."""
        if self.turns_in_windows and values.whole(_WINDOW, 0, least=0):
            return {"rotary": None, "window_rotary": rotary}
        return {"rotary": rotary}


def _gemma(values: Values) -> dict[str, Any]:
    scale = math.sqrt(values.whole("embedding_length"))
    return {"activation": "gelu_tanh", "embedding_scale": scale}


def _gemma2(values: Values, layers_scaled_by_width: int = 46) -> dict[str, Any]:
    width, heads = values.whole("embedding_length"), values.same_whole("attention.head_count")
    # Only the 27B model scales by its width; llama.cpp, too, recognises it by its layers.
    by_width = values.whole("block_count") == layers_scaled_by_width
    scaled = width // heads if by_width else values.head_dim
    attention, final = (
        values.positive(name) if values.has(name) else 0.0
        for name in ("attn_logit_softcapping", "final_logit_softcapping")
    )
    return _gemma(values) | {
        "attention_scale": scaled**-0.5,
        "attention_softcap": attention,
        "logit_softcap": final,
        "post_norms": True,
    }


def _gemma3(values: Values) -> dict[str, Any]:
    base = values.positive("rope.freq_base_swa", 10_000.0)
    return _gemma2(values, 62) | {
        "query_key_norm": True,
        "window_rotary": values.fields.make(Rotary, base=base),
    }


def _gemma4(values: Values) -> dict[str, Any]:
    layers, fields, heads = values.layers, values.fields, values.same_whole("attention.head_count")
    pattern = values.plain(f"{_WINDOW}_pattern")
    if not isinstance(pattern, np.ndarray) or len(pattern) != layers:
        raise fields.error(f"{_WINDOW}_pattern is not one for each of {layers} layers")
    windowed = [bool(flag) for flag in pattern]
    full, inside = (values.whole(name, values.head_dim) for name in _KEY_LENGTHS)
    if values.whole("rope.dimension_count_swa", inside) != inside:
        raise fields.error(f"rope.dimension_count_swa must be {inside}, as keys")
    shared = values.whole("attention.shared_kv_layers", 0, least=0, most=layers)
    window = min(values.whole(_WINDOW), values.whole("context_length"))
    base = values.positive("rope.freq_base_swa", 10_000.0)
    cap = "final_logit_softcapping"
    experts = {} if not values.plain("expert_count") else _experts(values)
    if experts:
        experts["expert_inner"] = values.same_whole("expert_feed_forward_length")
    return {
        **_gemma(values),
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


def _gemma4_tensors(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Leave out keys and values of layers that read those of others; divide norms of routers."""
    layers = range(dimensions.reading, dimensions.layers)
    unread = {
        f"blk.{i}.attn_{name}.weight" for i in layers for name in ("k", "v", "k_norm", "v_norm")
    }

    def scaled(weight: NDArray[Any]) -> NDArray[np.float32]:
        return weight.astype(np.float32) * np.float32(dimensions.width**-0.5)

    return {
        name: changed(tensor, scaled) if name.endswith(".ffn_gate_inp.scale") else tensor
        for name, tensor in stored.items()
        if name not in unread
    }


def _granite(values: Values) -> dict[str, Any]:
    scaled = values.fields.make(
        scaled_residuals,
        residual=values.positive("residual_scale", 1.0),
        embedding=values.positive("embedding_scale", 1.0),
        epsilon=values.positive(_RMS_EPSILON),
    )
    return scaled | {"logit_scale": 1 / values.positive("logit_scale", 1.0)}


def _smollm3(values: Values) -> dict[str, Any]:
    # llama.cpp, too, has the interval in its program and not from the file.
    return {"unrotated": tuple(range(3, values.whole("block_count"), 4))}


def _olmo2(values: Values) -> dict[str, Any]:
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


def _starcoder2(_: Values) -> dict[str, Any]:
    return _LAYER_NORMS | _UNGATED | {"activation": "gelu_tanh"}


def _cohere(values: Values) -> dict[str, Any]:
    scale = values.positive("logit_scale")
    return _PARALLEL | {"norm": "layer", "logit_scale": scale} | _own_norms(values)


def _own_norms(values: Values) -> dict[str, Any]:
    used = f"blk.0{QUERY_NORM}" in values.tensors
    return {"query_key_norm": used, "own_query_key_norms": used}


def _experts(values: Values) -> dict[str, int]:
    experts = values.whole("expert_count", 0, least=0)
    return {
        "experts": experts,
        "experts_per_token": values.whole("expert_used_count") if experts else 0,
    }


def _many_experts(values: Values) -> dict[str, int]:
    return _experts(values) | {"inner": values.same_whole("expert_feed_forward_length")}


def _qwen2_experts(values: Values) -> dict[str, Any]:
    shared = values.same_whole("expert_shared_feed_forward_length")
    return _many_experts(values) | {"experts_normalised": False, "shared_inner": shared}


def _gpt_oss(values: Values) -> dict[str, Any]:
    gates = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}  # which files do not name
    return _many_experts(values) | {"expert_bias": True, "sinks": True, **gates}


def _gpt2(_: Values) -> dict[str, Any]:
    positions = {"rotary": None, "learned_positions": True}
    return _LAYER_NORMS | _UNGATED | positions | {"activation": "gelu_tanh"}


def _gptneox(values: Values) -> dict[str, Any]:
    parallel = values.flag("use_parallel_residual", True)
    return _LAYER_NORMS | _UNGATED | {"activation": "gelu", "parallel": parallel}


def _phi2(_: Values) -> dict[str, Any]:
    return _LAYER_NORMS | _UNGATED | _PARALLEL | {"activation": "gelu_tanh", "head_bias": True}


def _stablelm(values: Values) -> dict[str, Any]:
    # As in llama.cpp: files say use_parallel_residual of models with a second norm, too.
    blocks = {} if "blk.0.ffn_norm.weight" in values.tensors else _PARALLEL
    return _LAYER_NORMS | blocks | _own_norms(values)


def _exaone4(_: Values) -> dict[str, Any]:
    return {"query_key_norm": True, "pre_norms": False, "post_norms": True}


def _lfm2(values: Values) -> dict[str, Any]:
    heads = np.atleast_1d(values.plain("attention.head_count_kv")).tolist()
    if 0 not in heads:
        return {"query_key_norm": True}
    return {
        "query_key_norm": True,
        "mixers": tuple(ATTENTION if count else CONVOLUTION for count in heads),
        "convolution": values.whole("shortconv.l_cache"),
        "convolution_bias": any(name.endswith(_CONVOLUTION_BIAS) for name in values.tensors),
    }


def _kernels_turned(
    stored: Mapping[str, StoredTensor], _: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Return kernels of convolutions, [width, length], as [length, width]."""
    return {
        n: transposed(tensor) if n.endswith(_KERNEL) else tensor for n, tensor in stored.items()
    }


def _qwen35(values: Values) -> dict[str, Any]:
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


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(neighbours=True, particulars=_experts),
    "qwen2": Architecture(),
    "qwen3": Architecture(particulars=lambda _: {"query_key_norm": True}),
    "qwen2moe": Architecture(particulars=_qwen2_experts),
    "qwen3moe": Architecture(
        particulars=lambda values: _many_experts(values) | {"query_key_norm": True}
    ),
    "gpt-oss": Architecture(
        global_every=2,
        truncate=False,
        names={**NAMES, **_NORM_AFTER_ATTENTION},
        particulars=_gpt_oss,
    ),
    "phi3": Architecture(partial=True, names={**NAMES, **_FUSED}),
    "glm4": Architecture(
        neighbours=True,
        partial=True,
        names={**NAMES, **_FUSED},
        particulars=lambda _: {"post_norms": True},
    ),
    "gemma": Architecture(particulars=_gemma),
    "gemma2": Architecture(global_every=2, particulars=_gemma2),
    "gemma3": Architecture(global_every=6, particulars=_gemma3),
    "gemma4": Architecture(
        uneven=True, names=_GEMMA4_NAMES, particulars=_gemma4, prepare=_gemma4_tensors
    ),
    "granite": Architecture(neighbours=True, particulars=_granite),
    "smollm3": Architecture(neighbours=True, particulars=_smollm3),
    "olmo2": Architecture(global_every=4, particulars=_olmo2),
    "starcoder2": Architecture(particulars=_starcoder2, epsilon=_EPSILON),
    "command-r": Architecture(neighbours=True, particulars=_cohere, epsilon=_EPSILON),
    "cohere2": Architecture(
        neighbours=True,
        global_every=4,
        turns_in_windows=True,
        particulars=_cohere,
        epsilon=_EPSILON,
    ),
    "exaone4": Architecture(global_every=4, turns_in_windows=True, particulars=_exaone4),
    "gpt2": Architecture(particulars=_gpt2, epsilon=_EPSILON),
    "gptneox": Architecture(partial=True, particulars=_gptneox, epsilon=_EPSILON),
    "phi2": Architecture(partial=True, particulars=_phi2, epsilon=_EPSILON),
    "stablelm": Architecture(partial=True, particulars=_stablelm, epsilon=_EPSILON),
    "lfm2": Architecture(
        hybrid=True, names=_LFM2_NAMES, particulars=_lfm2, prepare=_kernels_turned
    ),
    "qwen35": Architecture(
        partial=True,
        hybrid=True,
        names=_QWEN35_NAMES,
        particulars=_qwen35,
        prepare=delta_net_tensors,
    ),
}
