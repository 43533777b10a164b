"""Translates GGUF metadata to a Hugging Face config.json: a row for each architecture.

llama.cpp's conversion/*.py define how models are converted. The reader of the model type then makes
the dimensions, so a GGUF file and the folder that it was converted from mean the same.
"""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.decoder.huggingface import TYPES, dimensions_of
from kvcast.checkpoints.decoder.hybrid import CONVOLVED, LINEAR
from kvcast.checkpoints.decoder.rotary import FULL, QUERY_BETA, SHARE, SLIDING
from kvcast.checkpoints.gguf.file import GgufFile, GgufTensor
from kvcast.checkpoints.gguf.metadata import Values
from kvcast.checkpoints.gguf.tensors import (
    FUSED_EXPERTS,
    FUSED_GATE_UP,
    FUSED_QKV,
    GEMMA4_NAMES,
    LFM2_NAMES,
    NAMES,
    NORM_AFTER_ATTENTION,
    QUERY_NORM,
    QWEN35_NAMES,
    STATE_SPACE_NAMES,
    delta_net_tensors,
    gemma4_tensors,
    grouped_delta_net_tensors,
    kernels_turned,
    norms_of_ones,
    second_norm_first,
    state_space_tensors,
)
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.spec.position_encodings import Rotary

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_EPSILON, _RMS_EPSILON = "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"
_WINDOW, _PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
_SCALE, _BASE, _KV_HEADS = "attention.scale", "rope.freq_base", "attention.head_count_kv"
_FINAL_CAP = "final_logit_softcapping"
_INNER, _EXPERT_INNER = "feed_forward_length", "expert_feed_forward_length"
_TRAINED, _ORIGINAL = "rope.scaling.original_context_length", "original_max_position_embeddings"
# More than any model has, and few enough for a table.
_MOST_POSITIONS = 1 << 24
# Of rotary embeddings: divisors of frequencies; the same of models with others for long texts.
_DIVISORS = "rope_freqs.weight"
_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"
ROTARY_TENSORS = (_DIVISORS, _SHORT, _LONG)
# The divisor of pairs that do not turn, as Gemma 4's, is this or more.
_STILL = 1e29

Config = dict[str, Any]


def _experts(values: Values) -> Config:
    """Return the numbers of experts and of experts per token, under any model type's names."""
    experts = values.count("expert_count")
    used = values.whole("expert_used_count") if experts else 0
    return {
        **dict.fromkeys(("num_experts", "num_local_experts"), experts),
        **dict.fromkeys(("num_experts_per_tok", "top_k_experts"), used),
    }


def _many_experts(values: Values) -> Config:
    """Return experts whose width differs from other feed-forwards'."""
    inner = values.same_whole(_EXPERT_INNER)
    config = _experts(values) | {"norm_topk_prob": True, "decoder_sparse_step": 1}
    return config | {"moe_intermediate_size": inner, "intermediate_size": inner}


def _shared_expert(values: Values) -> Config:
    shared = values.same_whole("expert_shared_feed_forward_length")
    return _many_experts(values) | {"shared_expert_intermediate_size": shared}


def _gemma2(values: Values, layers_scaled_by_width: int = 46) -> Config:
    width, heads = values.whole("embedding_length"), values.same_whole("attention.head_count")
    # Only the 27B model scales by its width; llama.cpp, too, recognises it by its layers.
    by_width = values.whole("block_count") == layers_scaled_by_width
    caps = ("attn_logit_softcapping", _FINAL_CAP)
    return {
        "query_pre_attn_scalar": width // heads if by_width else values.head_dim,
        **{name: values.positive(name) if values.has(name) else None for name in caps},
    }


def _gemma4(values: Values) -> Config:
    layers, heads = values.layers, values.same_whole("attention.head_count")
    pattern = values.plain(_PATTERN)
    if not isinstance(pattern, np.ndarray) or len(pattern) != layers:
        raise values.fields.error(f"{_PATTERN} is not one for each of {layers} layers")
    full, inside = (
        values.whole(f"attention.{name}", values.head_dim)
        for name in ("key_length", "key_length_swa")
    )
    if values.whole("rope.dimension_count_swa", inside) != inside:
        raise values.fields.error(f"rope.dimension_count_swa must be {inside}, as keys")
    kv_heads = values.each(_KV_HEADS, heads)
    of_experts = bool(values.count("expert_count"))
    return {
        **(_experts(values) if of_experts else {}),
        "enable_moe_block": of_experts,
        "moe_intermediate_size": values.same_whole(_EXPERT_INNER) if of_experts else None,
        "sliding_window": values.whole(_WINDOW),
        "head_dim": inside,
        "per_layer_config": {
            str(i): {"head_dim": inside if windowed else full, "num_key_value_heads": kv_heads[i]}
            for i, windowed in enumerate(pattern)
        },
        "num_kv_shared_layers": values.whole("attention.shared_kv_layers", 0, least=0, most=layers),
        "hidden_size_per_layer_input": values.count("embedding_length_per_layer_input"),
        _FINAL_CAP: values.positive(_FINAL_CAP) if values.has(_FINAL_CAP) else None,
    }


def _granite(values: Values) -> Config:
    shared, experts = (
        values.count("expert_shared_feed_forward_length"),
        _experts(values),
    )
    return experts | {
        "embedding_multiplier": values.positive("embedding_scale", 1.0),
        "residual_multiplier": values.positive("residual_scale", 1.0),
        "logits_scaling": values.positive("logit_scale", 1.0),
        "attention_multiplier": values.positive(_SCALE, values.head_dim**-0.5),
        "shared_intermediate_size": (
            shared if experts["num_experts"] else values.same_whole(_INNER)
        ),
    }


def _granite_hybrid(values: Values) -> Config:
    rotates = values.flag("rope.scaling.finetuned", False)
    config = _granite(values) | {"position_embedding_type": "rope" if rotates else "nope"}
    kinds = _without_keys(values, LINEAR)
    if LINEAR not in kinds:
        return config | {"layer_types": kinds}
    steps, inner = values.whole("ssm.time_step_rank"), values.whole("ssm.inner_size")
    return config | {
        "layer_types": kinds,
        "mamba_n_heads": steps,
        "mamba_d_head": inner // steps,
        "mamba_expand": inner // values.whole("embedding_length"),
        "mamba_n_groups": values.whole("ssm.group_count"),
        "mamba_d_state": values.whole("ssm.state_size"),
        "mamba_d_conv": values.whole("ssm.conv_kernel"),
        "mamba_conv_bias": values.has_tensor(".ssm_conv1d.bias"),
    }


def _without_keys(values: Values, kind: str) -> list[str]:
    """Return layer types: `kind` where a layer has no heads of keys."""
    heads = np.atleast_1d(values.plain(_KV_HEADS)).tolist()
    kinds = [FULL if count else kind for count in heads]
    return kinds if kind in kinds else [FULL] * values.layers


def _lfm2(values: Values) -> Config:
    kinds = _without_keys(values, CONVOLVED)
    return {
        "layer_types": kinds,
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": values.whole("shortconv.l_cache") if CONVOLVED in kinds else 1,
        "conv_bias": values.has_tensor(".shortconv.in_proj.bias"),
    }


def _qwen35(values: Values) -> Config:
    every, layers = values.whole("full_attention_interval", 4), range(1, values.layers + 1)
    kinds = [LINEAR if i % every else FULL for i in layers]
    if LINEAR not in kinds:
        return {"layer_types": kinds}
    heads = values.whole("ssm.time_step_rank")
    return {
        "layer_types": kinds,
        "linear_num_key_heads": values.whole("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": values.whole("ssm.state_size"),
        "linear_value_head_dim": values.whole("ssm.inner_size") // heads,
        "linear_conv_kernel_dim": values.whole("ssm.conv_kernel"),
    }


def _own_norms(values: Values) -> Config:
    used = f"blk.0{QUERY_NORM}" in values.tensors
    return dict.fromkeys(("use_qk_norm", "qk_layernorm"), used)


def _cohere(values: Values) -> Config:
    return _own_norms(values) | {"logit_scale": values.positive("logit_scale")}


def _stablelm(values: Values) -> Config:
    # As in llama.cpp: files say use_parallel_residual of models with a second norm, too.
    return _own_norms(values) | {
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in values.tensors
    }


def _falcon(values: Values) -> Config:
    """Return Falcon's, whose newer architecture has a norm before each of two blocks."""
    return {
        "new_decoder_architecture": True,
        "num_kv_heads": values.same_whole(_KV_HEADS, values.same_whole("attention.head_count")),
        "num_ln_in_parallel_attn": 1 + ("blk.0.attn_norm_2.weight" in values.tensors),
    }


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How llama.cpp converts a model type: facts missing in a file's metadata."""

    model_type: str | Callable[[Values], str]
    fields: Callable[[Values], Config] = lambda _: {}
    neighbours: bool = False  # whether rotary pairs are neighbouring rows, not halves of a head
    global_every: int = 0  # with a window, every n-th layer sees everything; 0: no layer does
    partial: bool = False  # whether a part of a head may turn
    truncate: bool = True  # whether whole pairs bound YaRN's blend
    uneven: bool = False  # whether sizes of layers may differ
    hybrid: bool = False  # whether layers with no heads of keys have other parts than attention
    names: Mapping[str, Sequence[str]] = field(default_factory=lambda: NAMES)
    prepare: Callable[[Mapping[str, StoredTensor], DecoderDimensions], dict[str, StoredTensor]] = (
        lambda stored, _: dict(stored)
    )
    epsilon: str = _RMS_EPSILON

    def names_in(self, tensors: Container[str]) -> Mapping[str, Sequence[str]]:
        """Return the names in a file, which may have several matrices in one tensor."""
        is_fused = not self.hybrid and "blk.0.attn_qkv.weight" in tensors
        of_experts = "blk.0.ffn_gate_up_exps.weight" in tensors
        return {
            **self.names,
            **(FUSED_QKV if is_fused else {}),
            **(FUSED_EXPERTS if of_experts else {}),
        }

    def dimensions(self, values: Values, file: GgufFile) -> DecoderDimensions:
        """Return the dimensions, as the reader of the model type makes them from config.json."""
        embedding = file.tensors.get(EMBEDDING)
        if embedding is None:
            raise values.fields.error(f"it has no tensor {EMBEDDING}: it is not a whole model")
        head_dim, turning = values.head_dim, "rope.dimension_count"
        for name in ("attention.value_length", *(() if self.partial else (turning,))):
            if values.whole(name, head_dim) != head_dim:
                raise values.fields.error(
                    f"{values.architecture}.{name} must be {head_dim}, as keys"
                )
        share = values.whole(turning, head_dim, most=head_dim) / head_dim
        values.whole("block_count", most=len(file.tensors))
        name = self.model_type if isinstance(self.model_type, str) else self.model_type(values)
        # Settings that some model types alone have may be in any file.
        kind = replace(TYPES[name], rotary=(SHARE, QUERY_BETA))
        tied = HEAD not in file.tensors
        heads = values.same_whole("attention.head_count")
        config = {
            "vocab_size": embedding.shape[0],
            "vocab_size_per_layer_input": embedding.shape[0],
            "hidden_size": values.whole("embedding_length"),
            "num_hidden_layers": values.layers,
            "num_attention_heads": heads,
            **self._sizes(values, heads),
            "head_dim": head_dim,
            "max_position_embeddings": values.whole("context_length", most=_MOST_POSITIONS),
            "sliding_window": values.count(_WINDOW) or None,
            "layer_types": self._layer_types(values),
            kind.epsilon: values.positive(self.epsilon),
            **dict.fromkeys(("tie_word_embeddings", "tie_embedding"), tied),
            "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
            **_rotary(values, file.tensors, share, self.truncate),
            **self.fields(values),
        }
        made = dimensions_of(config, values.fields.label, kind, values.architecture)
        own: Config = {
            "qkv_bias": any(f"blk.0.attn_{name}.bias" in file.tensors for name in ("q", "qkv")),
            "out_bias": "blk.0.attn_output.bias" in file.tensors,
            "tied": tied,
        }
        if values.has(_SCALE) and not values.architecture.startswith("gemma"):
            own["attention_scale"] = values.positive(_SCALE)
        if self.uneven:
            own["layer_inners"] = values.each(_INNER)
            own["keys_as_values"] = tuple(
                i for i in range(made.reading) if f"blk.{i}.attn_v.weight" not in file.tensors
            )
        return replace(made, **own)

    def _sizes(self, values: Values, heads: int) -> Config:
        if self.uneven:  # of the first layer
            inner, kv_heads = values.each(_INNER)[0], values.each(_KV_HEADS, heads)[0]
        else:
            # Models of experts alone may have no other width.
            of_experts = values.count(_EXPERT_INNER) or None
            inner = values.same_whole(_INNER, of_experts)
            absent = 0 if self.hybrid else None
            kv_heads = values.same_whole(_KV_HEADS, heads, absent=absent)
        return {"intermediate_size": inner, "num_key_value_heads": kv_heads}

    def _layer_types(self, values: Values) -> list[str]:
        layers, pattern = values.layers, values.plain(_PATTERN)
        if not values.count(_WINDOW):
            return [FULL] * layers
        if isinstance(pattern, np.ndarray):
            if len(pattern) != layers:
                raise values.fields.error(f"{_PATTERN} is not one for each layer")
            windowed = [bool(flag) for flag in pattern]
        else:
            every = values.whole(_PATTERN, self.global_every, least=0)
            windowed = [not every or (layer + 1) % every != 0 for layer in range(layers)]
        return [SLIDING if has_window else FULL for has_window in windowed]


def _rotary(
    values: Values, tensors: Mapping[str, GgufTensor], share: float, truncate: bool
) -> Config:
    """Return the fields of rotary embeddings; KvcastError for an unknown kind."""
    base = values.positive(_BASE, 10_000.0)
    config: Config = {"rope_theta": base, _ORIGINAL: values.whole("context_length")}
    if _LONG in tensors and _SHORT in tensors:
        config[_ORIGINAL] = values.whole(_TRAINED, config[_ORIGINAL])
        attention = values.positive("rope.scaling.attn_factor", 1.0)
        short, long = (tensors[name].stored().read().ravel() for name in (_SHORT, _LONG))
        parameters = _longrope(short, long, attention)
    else:
        scaling, factor = _scaling(values)
        parameters = {}
        if _DIVISORS in tensors:
            if scaling != "none":
                raise values.fields.error(f"rotary scaling both by {_DIVISORS} and by its type")
            parameters = _divided(values, base, tensors[_DIVISORS])
            if parameters.get("rope_type") == "llama3":
                config[_ORIGINAL] = parameters.pop(_ORIGINAL)
        elif scaling == "yarn":
            config[_ORIGINAL] = values.whole(_TRAINED, config[_ORIGINAL])
            parameters = _yarn(values, factor) | {"truncate": truncate}
        elif scaling == "linear":
            parameters = {"rope_type": "linear", "factor": factor}
        elif scaling != "none":
            raise values.fields.error(f"rotary scaling {scaling[:40]!r} is not supported")
    return config | {
        "rope_parameters": {"rope_theta": base, SHARE: share} | parameters,
        "rope_local_base_freq": values.positive("rope.freq_base_swa", 10_000.0),
    }


def _scaling(values: Values) -> tuple[str, float]:
    """Return the kind of rotary scaling and its factor; "none" for no scaling.

    As in llama.cpp, a factor without a kind is linear, and 0 is no factor; older files have
    rope.scale_linear for it.
    """
    name = "rope.scaling.factor"
    if not values.has(name) and values.has("rope.scale_linear"):
        name = "rope.scale_linear"
    kind = values.text("rope.scaling.type", "linear" if values.has(name) else "none")
    factor = values.plain(name)
    is_zero = type(factor) in (int, float) and factor == 0
    if kind == "none" or (kind == "linear" and is_zero):
        return "none", 1.0
    return kind, values.positive(name)


def _yarn(values: Values, factor: float) -> Config:
    """Read YaRN scaling as ggml does, where an attention factor multiplies the usual one."""
    extra = values.positive("rope.scaling.attn_factor", 1.0)
    extra *= values.positive("rope.scaling.yarn_attn_factor", 1.0)
    usual = 0.1 * math.log(max(factor, 1.0)) + 1.0
    blend = values.plain("rope.scaling.yarn_ext_factor")
    # The conversion writes -1 if the model does not specify it.
    if blend is not None and (type(blend) is not float or blend not in (1.0, -1.0)):
        raise values.fields.error("rope.scaling.yarn_ext_factor other than 1.0 is not supported")
    # Ministral 3's: less of the usual attention factor, and more of the factor on queries.
    less = values.optional("rope.scaling.yarn_log_multiplier")
    usual /= 0.1 * less * math.log(max(factor, 1.0)) + 1.0
    return {
        "rope_type": "yarn",
        "factor": factor,
        "beta_slow": values.positive("rope.scaling.yarn_beta_slow", 1.0),
        "beta_fast": values.positive("rope.scaling.yarn_beta_fast", 32.0),
        "attention_factor": None if extra == 1.0 and not less else extra * usual,
        QUERY_BETA: values.optional("attention.temperature_scale"),
    }


def _divided(values: Values, base: float, divisors: GgufTensor) -> Config:
    """Find the factor of Llama 3's scaling, if it explains all divisors; keep any others."""
    fields, head_dim = values.fields, values.head_dim
    if divisors.shape != (head_dim // 2,):
        raise fields.error(f"{_DIVISORS} has shape {list(divisors.shape)}")
    divided_by: NDArray[Any] = divisors.stored().read()
    if not np.isfinite(divided_by).all() or divided_by.min() < 1:
        raise fields.error(f"{_DIVISORS} is damaged: a divisor is below 1")
    if (divided_by == 1).all():
        return {}
    turning = int((divided_by < _STILL).sum())
    if turning and (divided_by[:turning] == 1).all() and (divided_by[turning:] >= _STILL).all():
        return {"rope_type": "proportional", SHARE: turning / len(divided_by)}
    factor = float(divided_by.max())
    # Llama 3's scaling differs between models only in its factor.
    sizes = {"low_frequency": 1.0, "high_frequency": 4.0, "trained_positions": 8192}
    scaled = fields.make(Rotary, base=base, scaling="llama3", factor=factor, **sizes)
    expected = fields.make(Rotary, base=base).frequencies(head_dim) / divided_by
    if not np.allclose(scaled.frequencies(head_dim), expected, rtol=1e-4, atol=0):
        return _longrope(divided_by, divided_by, 1.0)
    frequencies = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, _ORIGINAL: 8192}
    return {"rope_type": "llama3", "factor": factor, **frequencies}


def _longrope(short: NDArray[Any], long: NDArray[Any], attention_factor: float) -> Config:
    divisors = {"short_factor": list(map(float, short)), "long_factor": list(map(float, long))}
    return {"rope_type": "longrope", "factor": 1.0, "attention_factor": attention_factor} | divisors


def _llama(plain: str) -> Callable[[Values], str]:
    return lambda values: "mixtral" if values.count("expert_count") else plain


def _granite_type(values: Values) -> str:
    shared = values.count("expert_shared_feed_forward_length")
    of_experts = "granitemoeshared" if shared else "granitemoe"
    return of_experts if values.count("expert_count") else "granite"


def _windowed(windowed: str, plain: str) -> Callable[[Values], str]:
    return lambda values: windowed if values.count(_WINDOW) else plain


_LLAMA = Architecture(model_type=_llama("llama"), fields=_experts, neighbours=True)
_QWEN3_EXPERTS = Architecture(model_type="qwen3_moe", fields=_many_experts)
_QWEN35 = Architecture(
    model_type="qwen3_5_text",
    fields=_qwen35,
    partial=True,
    hybrid=True,
    names=QWEN35_NAMES,
    prepare=delta_net_tensors,
)
_QWEN35_EXPERTS = replace(
    _QWEN35,
    model_type="qwen3_5_moe_text",
    fields=lambda values: _shared_expert(values) | _qwen35(values),
)
_GPT2 = Architecture(model_type="gpt2", epsilon=_EPSILON)
_COHERE = Architecture(model_type="cohere", fields=_cohere, neighbours=True, epsilon=_EPSILON)
_NEMOTRON = Architecture(model_type="nemotron", partial=True, epsilon=_EPSILON)
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": _LLAMA,
    "qwen2": Architecture(model_type="qwen2"),
    "qwen3": Architecture(model_type="qwen3"),
    "qwen2moe": Architecture(
        model_type="qwen2_moe",
        fields=lambda values: _shared_expert(values) | {"norm_topk_prob": False},
    ),
    "qwen3moe": _QWEN3_EXPERTS,
    "gpt-oss": Architecture(
        model_type="gpt_oss",
        fields=_many_experts,
        global_every=2,
        truncate=False,
        names={**NAMES, **NORM_AFTER_ATTENTION},
    ),
    "phi3": Architecture(model_type="phi3", partial=True, names={**NAMES, **FUSED_GATE_UP}),
    "glm4": Architecture(
        model_type="glm4", neighbours=True, partial=True, names={**NAMES, **FUSED_GATE_UP}
    ),
    "gemma": Architecture(model_type="gemma"),
    "gemma2": Architecture(model_type="gemma2", fields=_gemma2, global_every=2),
    "gemma3": Architecture(
        model_type="gemma3_text", fields=lambda values: _gemma2(values, 62), global_every=6
    ),
    "gemma4": Architecture(
        model_type="gemma4_text",
        fields=_gemma4,
        uneven=True,
        names=GEMMA4_NAMES,
        prepare=gemma4_tensors,
    ),
    "granite": Architecture(model_type="granite", fields=_granite, neighbours=True),
    # llama.cpp, too, has the interval of layers without rotation in its program.
    "smollm3": Architecture(model_type="smollm3", neighbours=True),
    "olmo2": Architecture(model_type=_windowed("olmo3", "olmo2"), global_every=4),
    "starcoder2": Architecture(model_type="starcoder2", epsilon=_EPSILON),
    "command-r": _COHERE,
    "cohere2": replace(_COHERE, model_type=_windowed("cohere2", "cohere"), global_every=4),
    "exaone4": Architecture(model_type="exaone4", global_every=4),
    "gpt2": _GPT2,
    "gptneox": Architecture(
        model_type="gpt_neox",
        fields=lambda values: {"use_parallel_residual": values.flag("use_parallel_residual", True)},
        partial=True,
        epsilon=_EPSILON,
    ),
    "phi2": Architecture(model_type="phi", partial=True, epsilon=_EPSILON),
    "stablelm": Architecture(
        model_type="stablelm", fields=_stablelm, partial=True, epsilon=_EPSILON
    ),
    "lfm2": Architecture(
        model_type="lfm2", fields=_lfm2, hybrid=True, names=LFM2_NAMES, prepare=kernels_turned
    ),
    "qwen35": _QWEN35,
    "qwen35moe": _QWEN35_EXPERTS,
    "qwen3next": replace(
        _QWEN35_EXPERTS, model_type="qwen3_next", prepare=grouped_delta_net_tensors
    ),
    "qwen2vl": Architecture(model_type="qwen2"),
    "qwen3vl": Architecture(model_type="qwen3"),
    "qwen3vlmoe": _QWEN3_EXPERTS,
    "mistral3": replace(_LLAMA, model_type=_llama("ministral3")),
    "granitemoe": Architecture(model_type=_granite_type, fields=_granite, neighbours=True),
    "granitehybrid": Architecture(
        model_type="granitemoehybrid",
        fields=_granite_hybrid,
        neighbours=True,
        hybrid=True,
        names=STATE_SPACE_NAMES,
        prepare=state_space_tensors,
    ),
    "ernie4_5": Architecture(
        model_type="ernie4_5", fields=lambda _: {"use_bias": False}, neighbours=True
    ),
    "seed_oss": Architecture(model_type="seed_oss", names={**NAMES, **NORM_AFTER_ATTENTION}),
    "arcee": Architecture(model_type="arcee", neighbours=True),
    "nemotron": _NEMOTRON,
    "jais2": replace(_NEMOTRON, model_type="jais2", partial=False),
    "olmo": Architecture(
        model_type="olmo",
        fields=lambda values: {"clip_qkv": values.optional("attention.clamp_kqv") or None},
        neighbours=True,
        prepare=norms_of_ones,
        epsilon=_EPSILON,
    ),
    "olmoe": Architecture(
        model_type="olmoe", fields=lambda values: _experts(values) | {"norm_topk_prob": False}
    ),
    "starcoder": _GPT2,
    "falcon": Architecture(
        model_type="falcon", fields=_falcon, prepare=second_norm_first, epsilon=_EPSILON
    ),
}
