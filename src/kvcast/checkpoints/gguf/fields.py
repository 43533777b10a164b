"""Typed access to GGUF metadata, and the fields of a config.json that metadata or tensors imply."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.decoder.hybrid import CONVOLVED, LINEAR, MLP
from kvcast.checkpoints.decoder.rotary import FULL, QUERY_BETA, SHARE
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.gguf.file import GgufTensor
from kvcast.checkpoints.gguf.tensors import CHOICE_BIAS, QUERY_NORM
from kvcast.spec.position_encodings import Rotary

Config = dict[str, Any]
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
SCALE, KV_HEADS = "attention.scale", "attention.head_count_kv"
RANK = "attention.kv_lora_rank"
INNER, EXPERT_INNER = "feed_forward_length", "expert_feed_forward_length"
_FINAL_CAP = "final_logit_softcapping"
_TRAINED, _ORIGINAL = "rope.scaling.original_context_length", "original_max_position_embeddings"
_FLOOR = "attention.temperature_length"
# Of rotary embeddings: divisors of frequencies; the same of models with others for long texts.
_DIVISORS = "rope_freqs.weight"
_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"
ROTARY_TENSORS = (_DIVISORS, _SHORT, _LONG)
SOFTMAX, SIGMOID = 1, 2
"""How routers score, in files."""
# The divisor of pairs that do not turn, as Gemma 4's, is this or more.
_STILL = 1e29


@dataclass(frozen=True, kw_only=True)
class Values:
    """Values of an architecture, by names without its prefix; `tensors`: names of the file's."""

    fields: Fields
    architecture: str
    tensors: Collection[str] = ()

    @property
    def layers(self) -> int:
        """Without multi-token prediction layers, which come last."""
        return self.whole("block_count") - self.whole("nextn_predict_layers", 0, least=0)

    @property
    def head_dim(self) -> int:
        width, heads = self.whole("embedding_length"), self.same_whole("attention.head_count")
        return self.whole("attention.key_length", max(width // heads, 1))

    def has_tensor(self, ending: str) -> bool:
        return any(name.endswith(ending) for name in self.tensors)

    def has(self, name: str) -> bool:
        return self.plain(name) is not None

    def whole(self, name: str, default: int | None = None, **limits: int) -> int:
        return self.fields.whole(self._full(name), default, **limits)

    def count(self, name: str) -> int:
        return self.whole(name, 0, least=0)

    def same_whole(self, name: str, default: int | None = None, absent: int | None = None) -> int:
        """Return the value of all layers but `absent` ones, which lack the feature."""
        value = self.plain(name)
        if not isinstance(value, np.ndarray):
            return self.whole(name, default)
        values_of_layers, layers = set(value.tolist()) - {absent}, self.whole("block_count")
        if len(value) != layers or len(values_of_layers) != 1:
            raise self.fields.error(
                f"{self._full(name)} must be one number, the same for each of {layers} layers: "
                "models whose layers differ are not supported"
            )
        alone = {self._full(name): values_of_layers.pop()}
        return Fields(values=alone, label=self.fields.label).whole(self._full(name))

    def each(self, name: str, default: int | None = None) -> tuple[int, ...]:
        """Return each layer's value, which the file may have once for all of them."""
        layers = self.whole("block_count", most=len(self.tensors))
        value = self.plain(name)
        if not isinstance(value, np.ndarray):
            return (self.whole(name, default),) * layers
        if len(value) != layers:
            raise self.fields.error(f"{self._full(name)} is not one for each of {layers} layers")
        label = self.fields.label
        return tuple(
            Fields(values={self._full(name): number}, label=label).whole(self._full(name))
            for number in value.tolist()
        )

    def positive(self, name: str, default: float | None = None) -> float:
        return self.fields.positive(self._full(name), default)

    def optional(self, name: str) -> float:
        """0 for none, which conversions may write as 0 or -1."""
        value = self.plain(name)
        is_none = value is None or (type(value) in (int, float) and value in (0, -1))
        return 0.0 if is_none else self.positive(name)

    def flag(self, name: str, default: bool) -> bool:
        return self.fields.flag(self._full(name), default)

    def plain(self, name: str) -> Any:
        return self.fields.values.get(self._full(name))

    def text(self, name: str, default: str) -> str:
        value = self.plain(name)
        if not isinstance(value, str | None):
            raise self.fields.error(f"{self._full(name)} must be a text")
        return default if value is None else value

    def _full(self, name: str) -> str:
        return f"{self.architecture}.{name}"


def experts_fields(values: Values) -> Config:
    experts = values.count("expert_count")
    used = values.whole("expert_used_count") if experts else 0
    return {
        **dict.fromkeys(("num_experts", "num_local_experts"), experts),
        **dict.fromkeys(("num_experts_per_tok", "top_k_experts"), used),
    }


def many_experts_fields(values: Values) -> Config:
    inner = values.same_whole(EXPERT_INNER)
    config = experts_fields(values) | {"norm_topk_prob": True, "decoder_sparse_step": 1}
    return config | {"moe_intermediate_size": inner, "intermediate_size": inner}


def shared_expert_fields(values: Values) -> Config:
    shared = values.same_whole("expert_shared_feed_forward_length")
    return many_experts_fields(values) | {"shared_expert_intermediate_size": shared}


def routed_fields(values: Values, gating: int = SIGMOID) -> Config:
    """Fields of models whose routers have more than a softmax; `gating`: how they score."""
    if values.whole("expert_gating_func", gating, least=0) != gating:
        raise values.fields.error(f"{values.architecture}.expert_gating_func must be {gating}")
    known = experts_fields(values)
    scale = values.optional("expert_weights_scale") or 1.0
    dense, shared = values.count("leading_dense_block_count"), values.count("expert_shared_count")
    named = {
        ("n_routed_experts", "moe_num_experts"): known["num_experts"],
        ("moe_k",): known["num_experts_per_tok"],
        ("moe_intermediate_size",): values.same_whole(EXPERT_INNER),
        ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"): shared,
        ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"): dense,
        ("moe_layer_interval",): values.whole("interleave_moe_layer_step", 1),
        ("norm_topk_prob", "route_norm"): values.flag("expert_weights_norm", True),
        ("routed_scaling_factor", "route_scale"): scale,
        ("n_group",): values.count("expert_group_count") or 1,
        ("topk_group",): values.count("expert_group_used_count") or 1,
        ("use_expert_bias",): values.has_tensor(CHOICE_BIAS),
    }
    return known | {name: value for names, value in named.items() for name in names}


def glm4_experts_fields(values: Values) -> Config:
    return routed_fields(values) | _own_norms(values)


def gemma2_fields(values: Values, layers_scaled_by_width: int = 46) -> Config:
    width, heads = values.whole("embedding_length"), values.same_whole("attention.head_count")
    # Only the 27B model scales by its width; llama.cpp, too, recognises it by its layers.
    by_width = values.whole("block_count") == layers_scaled_by_width
    caps = ("attn_logit_softcapping", _FINAL_CAP)
    return {
        "query_pre_attn_scalar": width // heads if by_width else values.head_dim,
        **{name: values.positive(name) if values.has(name) else None for name in caps},
    }


def gemma4_fields(values: Values) -> Config:
    layers, heads = values.layers, values.same_whole("attention.head_count")
    pattern = values.plain(PATTERN)
    if not isinstance(pattern, np.ndarray) or len(pattern) != layers:
        raise values.fields.error(f"{PATTERN} is not one for each of {layers} layers")
    full, inside = (
        values.whole(f"attention.{name}", values.head_dim)
        for name in ("key_length", "key_length_swa")
    )
    if values.whole("rope.dimension_count_swa", inside) != inside:
        raise values.fields.error(f"rope.dimension_count_swa must be {inside}, as keys")
    kv_heads = values.each(KV_HEADS, heads)
    of_experts = bool(values.count("expert_count"))
    return {
        **(experts_fields(values) if of_experts else {}),
        "enable_moe_block": of_experts,
        "moe_intermediate_size": values.same_whole(EXPERT_INNER) if of_experts else None,
        "sliding_window": values.whole(WINDOW),
        "head_dim": inside,
        "per_layer_config": {
            str(i): {"head_dim": inside if windowed else full, "num_key_value_heads": kv_heads[i]}
            for i, windowed in enumerate(pattern)
        },
        "num_kv_shared_layers": values.whole("attention.shared_kv_layers", 0, least=0, most=layers),
        "hidden_size_per_layer_input": values.count("embedding_length_per_layer_input"),
        _FINAL_CAP: values.positive(_FINAL_CAP) if values.has(_FINAL_CAP) else None,
    }


def granite_fields(values: Values) -> Config:
    shared, experts = (
        values.count("expert_shared_feed_forward_length"),
        experts_fields(values),
    )
    return experts | {
        "embedding_multiplier": values.positive("embedding_scale", 1.0),
        "residual_multiplier": values.positive("residual_scale", 1.0),
        "logits_scaling": values.positive("logit_scale", 1.0),
        "attention_multiplier": values.positive(SCALE, values.head_dim**-0.5),
        "shared_intermediate_size": (
            shared if experts["num_experts"] else values.same_whole(INNER)
        ),
    }


def granite_hybrid_fields(values: Values) -> Config:
    rotates = values.flag("rope.scaling.finetuned", False)
    config = granite_fields(values) | {"position_embedding_type": "rope" if rotates else "nope"}
    kinds = without_keys(values, LINEAR)
    sizes = _state_space_fields(values) if LINEAR in kinds else {}
    return config | {"layer_types": kinds} | sizes


def nemotron_h_fields(values: Values) -> Config:
    """Blocks with heads of keys attend, those with an inner width are feed-forwards."""
    heads, inners = (np.atleast_1d(values.plain(name)).tolist() for name in (KV_HEADS, INNER))
    if not len(heads) == len(inners) == values.layers:
        raise values.fields.error(f"{KV_HEADS} and {INNER} are not one for each block")
    blocks = [
        FULL if keys else MLP if inner else LINEAR
        for keys, inner in zip(heads, inners, strict=True)
    ]
    sizes = _state_space_fields(values) if LINEAR in blocks else {}
    biased = values.has_tensor(".ffn_up.bias")
    return {"layer_types": blocks, "mlp_bias": biased} | sizes


def falcon_h1_fields(values: Values) -> Config:
    """Files have the multipliers in their weights; llama.cpp norms behind gates alone."""
    return _state_space_fields(values) | {
        "mamba_d_ssm": values.whole("ssm.inner_size"),
        "mamba_expand": 1,  # which is not read
        "mamba_rms_norm": values.has_tensor(".ssm_norm.weight"),
        "mamba_norm_before_gate": False,
    }


def _state_space_fields(values: Values) -> Config:
    steps, inner = values.whole("ssm.time_step_rank"), values.whole("ssm.inner_size")
    return {
        "mamba_n_heads": steps,
        "mamba_d_head": inner // steps,
        "mamba_expand": inner // values.whole("embedding_length"),
        "mamba_n_groups": values.whole("ssm.group_count"),
        "mamba_d_state": values.whole("ssm.state_size"),
        "mamba_d_conv": values.whole("ssm.conv_kernel"),
        "mamba_conv_bias": values.has_tensor(".ssm_conv1d.bias"),
    }


def without_keys(values: Values, kind: str) -> list[str]:
    heads = np.atleast_1d(values.plain(KV_HEADS)).tolist()
    kinds = [FULL if count else kind for count in heads]
    return kinds if kind in kinds else [FULL] * values.layers


def lfm2_fields(values: Values) -> Config:
    kinds = without_keys(values, CONVOLVED)
    return {
        "layer_types": kinds,
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": values.whole("shortconv.l_cache") if CONVOLVED in kinds else 1,
        "conv_bias": values.has_tensor(".shortconv.in_proj.bias"),
    }


def qwen35_fields(values: Values) -> Config:
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


def cohere_fields(values: Values) -> Config:
    return _own_norms(values) | {"logit_scale": values.positive("logit_scale")}


def stablelm_fields(values: Values) -> Config:
    # As in llama.cpp: files say use_parallel_residual of models with a second norm, too.
    return _own_norms(values) | {
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in values.tensors
    }


def falcon_fields(values: Values) -> Config:
    """Falcon's newer architecture has a norm before each of two blocks."""
    return {
        "new_decoder_architecture": True,
        "num_kv_heads": values.same_whole(KV_HEADS, values.same_whole("attention.head_count")),
        "num_ln_in_parallel_attn": 1 + ("blk.0.attn_norm_2.weight" in values.tensors),
    }


def xielu_tensors(values: Values) -> dict[str, StoredTensor]:
    """Numbers of each layer's activation, as Apertus' folder has them."""
    tensors = {}
    for name in ("alpha_n", "alpha_p", "beta"):
        numbers = values.fields.values.get(f"xielu.{name}")
        if not isinstance(numbers, np.ndarray) or len(numbers) != values.layers:
            raise values.fields.error(f"xielu.{name} is not one for each of {values.layers} layers")
        for i, number in enumerate(numbers.astype(np.float32)):
            tensors[f"blk.{i}.act_fn.{name}"] = _alone(number)
    return tensors


def _alone(number: np.float32) -> StoredTensor:
    return StoredTensor(shape=(1,), read=lambda: np.array([number]))


def rotary_fields(
    values: Values, tensors: Mapping[str, GgufTensor], share: float, truncate: bool
) -> Config:
    base = values.positive("rope.freq_base", 10_000.0)
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
            parameters = _find_scaling(values, base, tensors[_DIVISORS])
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
    """As in llama.cpp, a factor without a kind is linear; older files have rope.scale_linear."""
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
    """As in ggml, an attention factor multiplies the usual one."""
    extra = values.positive("rope.scaling.attn_factor", 1.0)
    extra *= values.positive("rope.scaling.yarn_attn_factor", 1.0)
    usual = 0.1 * math.log(max(factor, 1.0)) + 1.0
    blend = values.plain("rope.scaling.yarn_ext_factor")
    # The conversion writes -1 if the model does not specify it.
    if blend is not None and (type(blend) is not float or blend not in (1.0, -1.0)):
        raise values.fields.error("rope.scaling.yarn_ext_factor other than 1.0 is not supported")
    less = values.optional("rope.scaling.yarn_log_multiplier")
    parameters = {
        "rope_type": "yarn",
        "factor": factor,
        "beta_slow": values.positive("rope.scaling.yarn_beta_slow", 1.0),
        "beta_fast": values.positive("rope.scaling.yarn_beta_fast", 32.0),
        QUERY_BETA: values.optional("attention.temperature_scale"),
    }
    if values.has(RANK):
        return parameters | _attention_to_latents(values, extra, less)
    # Ministral 3's: less of the usual attention factor, and more of the factor on queries.
    usual /= 0.1 * less * math.log(max(factor, 1.0)) + 1.0
    return parameters | {"attention_factor": None if extra == 1.0 and not less else extra * usual}


def _attention_to_latents(values: Values, extra: float, multiplier: float) -> Config:
    """As in llama.cpp: a tenth of `mscale_all_dim`; of `mscale`, files say nothing."""
    if extra != 1.0:
        raise values.fields.error("attention factors of YaRN with latents are not supported")
    trained = values.whole(_TRAINED, values.whole("context_length"))
    if values.whole(_FLOOR, trained) != trained:
        raise values.fields.error(f"{values.architecture}.{_FLOOR} must be {trained}, as trained")
    if not multiplier:
        return {}
    all_dim = 10 * multiplier
    mscale = all_dim if values.architecture == "deepseek2" else 1.0
    return {"mscale": mscale, "mscale_all_dim": all_dim}


def _find_scaling(values: Values, base: float, divisors: GgufTensor) -> Config:
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
