"""Reads GGUF files as llama.cpp converts them: the architectures of `ARCHITECTURES`.

llama.cpp's conversion/llama.py and gemma.py define the conversion. In the `llama`
architecture, rotary pairs of queries and keys are neighbouring rows of a head, so its rows are in
another order; Gemma's norms are stored as they multiply, not minus one; Llama 3's rotary scaling,
like any other that a model has for itself, is a tensor of divisors. Knows nothing of the
container's bytes or of the tokenizer.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import (
    Checkpoint,
    CheckpointReader,
    LazyTensors,
    StoredTensor,
    require_file,
)
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.gguf_file import GgufFile, GgufTensor, read_parts
from kvcast.checkpoints.gguf_text import read_text
from kvcast.checkpoints.merging import Adapter, merged
from kvcast.checkpoints.tables import fill_decoder, in_halves
from kvcast.errors import KvcastError, UsageError
from kvcast.families.decoder import DecoderDimensions, scaled_residuals
from kvcast.spec.rotary import Rotary

SUFFIX = ".gguf"
_PART = re.compile(
    r"(?P<stem>.+)-\d{5}-of-(?P<count>0*[1-9]\d{0,3})(?P<suffix>\.gguf)", re.IGNORECASE
)

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
}
_FUSED = {f"{_LAYER}.feed_forward.gate_up.weight": ("blk.{i}.ffn_up.weight",)}
_PHI3_NAMES = {**NAMES, **_FUSED, f"{_LAYER}.attention.qkv.weight": ("blk.{i}.attn_qkv.weight",)}
_GPT_OSS_NAMES = {
    **NAMES,
    f"{_LAYER}.feed_forward_norm.weight": ("blk.{i}.post_attention_norm.weight",),
}
_EPSILON, _RMS_EPSILON = "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"
_EXPERTS = ("_exps.weight", "_exps.bias")
_SHARED_GATE = ".ffn_gate_inp_shexp.weight"
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_ROTARY_DIVISORS = "rope_freqs.weight"
# The same of models that have one for long texts, too.
_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"
# Llama 3's scaling differs between models only in its factor.
_LLAMA3 = {"low_frequency": 1.0, "high_frequency": 4.0, "trained_positions": 8192}
# More than any model has, and few enough for a table.
_MOST_POSITIONS = 1 << 24


@dataclass(frozen=True, kw_only=True)
class _Architecture:
    """Properties of an architecture beyond the file's values.

    `neighbours`: rotary pairs of queries and keys are neighbouring rows, not halves of a head.
    `global_every`: with a window, every n-th layer sees everything; 0: no layer does.
    `partial`: whether a part of a head may turn.
    `truncate`: whether whole pairs bound YaRN's blend.
    `names`: of the files' tensors.
    `particulars`: dimensions that other architectures do not have.
    `epsilon`: name of the value of the norms' epsilon.
    """

    neighbours: bool = False
    global_every: int = 0
    partial: bool = False
    truncate: bool = True
    names: Mapping[str, Sequence[str]] = field(default_factory=lambda: NAMES)
    particulars: Callable[["_Values"], Mapping[str, Any]] = lambda _: {}
    epsilon: str = _RMS_EPSILON


@dataclass(frozen=True, kw_only=True)
class _Values:
    """The values of an architecture, whose names start with the architecture's."""

    fields: Fields
    architecture: str

    def has(self, name: str) -> bool:
        return self.fields.values.get(self._full(name)) is not None

    def whole(self, name: str, default: int | None = None, **limits: int) -> int:
        return self.fields.whole(self._full(name), default, **limits)

    def same_whole(self, name: str, default: int | None = None) -> int:
        """Return a number that the file may have once for each layer, if all are the same."""
        value = self.plain(name)
        if not isinstance(value, np.ndarray):
            return self.whole(name, default)
        numbers, layers = set(value.tolist()), self.whole("block_count")
        if len(value) != layers or len(numbers) != 1:
            raise self.fields.error(
                f"{self._full(name)} must be one number, the same for each of {layers} layers: "
                "models whose layers differ are not supported"
            )
        alone = {self._full(name): numbers.pop()}
        return Fields(values=alone, label=self.fields.label).whole(self._full(name))

    def positive(self, name: str, default: float | None = None) -> float:
        return self.fields.positive(self._full(name), default)

    def plain(self, name: str) -> Any:
        """Return the value, of any type."""
        return self.fields.values.get(self._full(name))

    def text(self, name: str, default: str) -> str:
        value = self.plain(name)
        if not isinstance(value, str | None):
            raise self.fields.error(f"{self._full(name)} must be a text")
        return default if value is None else value

    def _full(self, name: str) -> str:
        return f"{self.architecture}.{name}"


def _gemma(values: _Values) -> dict[str, Any]:
    scale = math.sqrt(values.whole("embedding_length"))
    return {"activation": "gelu_tanh", "embedding_scale": scale}


def _gemma2(values: _Values, layers_scaled_by_width: int = 46) -> dict[str, Any]:
    width, heads = values.whole("embedding_length"), values.same_whole("attention.head_count")
    # Only the 27B model scales by its width; llama.cpp, too, recognises it by its layers.
    by_width = values.whole("block_count") == layers_scaled_by_width
    scaled = width // heads if by_width else _head_dim(values)
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


def _gemma3(values: _Values) -> dict[str, Any]:
    base = values.positive("rope.freq_base_swa", 10_000.0)
    return _gemma2(values, 62) | {
        "query_key_norm": True,
        "window_rotary": values.fields.make(Rotary, base=base),
    }


def _granite(values: _Values) -> dict[str, Any]:
    scaled = values.fields.make(
        scaled_residuals,
        residual=values.positive("residual_scale", 1.0),
        embedding=values.positive("embedding_scale", 1.0),
        epsilon=values.positive(_RMS_EPSILON),
    )
    return scaled | {"logit_scale": 1 / values.positive("logit_scale", 1.0)}


def _smollm3(values: _Values) -> dict[str, Any]:
    # llama.cpp, too, has the interval in its program and not from the file.
    return {"unrotated": tuple(range(3, values.whole("block_count"), 4))}


def _olmo2(values: _Values) -> dict[str, Any]:
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


def _starcoder2(_: _Values) -> dict[str, Any]:
    return {
        "norm": "layer",
        "norm_bias": True,
        "activation": "gelu_tanh",
        "gated": False,
        "feed_forward_bias": True,
    }


def _cohere(values: _Values) -> dict[str, Any]:
    scale = values.positive("logit_scale")
    return {"norm": "layer", "parallel": True, "shared_norm": True, "logit_scale": scale}


def _cohere2(values: _Values) -> dict[str, Any]:
    base = values.positive("rope.freq_base", 10_000.0)
    rotary = values.fields.make(Rotary, base=base)
    return _cohere(values) | {"rotary": None, "window_rotary": rotary}


def _experts(values: _Values) -> dict[str, int]:
    experts = values.whole("expert_count", 0, least=0)
    return {
        "experts": experts,
        "experts_per_token": values.whole("expert_used_count") if experts else 0,
    }


def _many_experts(values: _Values) -> dict[str, int]:
    return _experts(values) | {"inner": values.same_whole("expert_feed_forward_length")}


def _qwen2_experts(values: _Values) -> dict[str, Any]:
    shared = values.same_whole("expert_shared_feed_forward_length")
    return _many_experts(values) | {"experts_normalised": False, "shared_inner": shared}


def _gpt_oss(values: _Values) -> dict[str, Any]:
    gates = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}  # which files do not name
    return _many_experts(values) | {"expert_bias": True, "sinks": True, **gates}


ARCHITECTURES: Mapping[str, _Architecture] = {
    "llama": _Architecture(neighbours=True, particulars=_experts),
    "qwen2": _Architecture(),
    "qwen3": _Architecture(particulars=lambda _: {"query_key_norm": True}),
    "qwen2moe": _Architecture(particulars=_qwen2_experts),
    "qwen3moe": _Architecture(
        particulars=lambda values: _many_experts(values) | {"query_key_norm": True}
    ),
    "gpt-oss": _Architecture(
        global_every=2, truncate=False, names=_GPT_OSS_NAMES, particulars=_gpt_oss
    ),
    "phi3": _Architecture(partial=True, names=_PHI3_NAMES),
    "glm4": _Architecture(
        neighbours=True,
        partial=True,
        names={**NAMES, **_FUSED},
        particulars=lambda _: {"post_norms": True},
    ),
    "gemma": _Architecture(particulars=_gemma),
    "gemma2": _Architecture(global_every=2, particulars=_gemma2),
    "gemma3": _Architecture(global_every=6, particulars=_gemma3),
    "granite": _Architecture(neighbours=True, particulars=_granite),
    "smollm3": _Architecture(neighbours=True, particulars=_smollm3),
    "olmo2": _Architecture(global_every=4, particulars=_olmo2),
    "starcoder2": _Architecture(particulars=_starcoder2, epsilon=_EPSILON),
    "command-r": _Architecture(neighbours=True, particulars=_cohere, epsilon=_EPSILON),
    "cohere2": _Architecture(
        neighbours=True, global_every=4, particulars=_cohere2, epsilon=_EPSILON
    ),
}


def _read(source: Path, adapters: Sequence[Adapter] = ()) -> Checkpoint:
    paths = _parts(source)
    path, file = paths[0], read_parts(paths)
    dimensions, tensors = read_model(file, str(path), adapters)
    text = read_text(file.values, str(path))
    tokens = len(file.values["tokenizer.ggml.tokens"])
    if tokens > dimensions.vocab_size:
        raise KvcastError(f"{path}: {tokens} tokens do not fit {dimensions.vocab_size} embeddings")
    return Checkpoint(
        dimensions=dimensions,
        tensors=tensors,
        text=text,
        source=f"GGUF file {path}",
    )


def read_model(
    file: GgufFile, label: str, adapters: Sequence[Adapter] = ()
) -> tuple[DecoderDimensions, LazyTensors]:
    """Return the dimensions, and tensors by canonical names; the tokenizer is read apart."""
    fields = Fields(values=file.values, label=label)
    name = str(file.values.get("general.architecture"))
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise fields.error(
            f"architecture {name[:40]!r} is not supported (supported: {', '.join(ARCHITECTURES)})"
        )
    values = _Values(fields=fields, architecture=name)
    dimensions = _dimensions(values, architecture, file)
    stored = _stored(file, dimensions, fields)
    if adapters:
        _check_architecture(adapters, name, label)
        stored = merged(stored, adapters, label, {_HEAD: (_EMBEDDING,)})
        dimensions = replace(dimensions, tied=_HEAD not in stored)
    stored = in_halves(stored, dimensions, is_rotated, neighbours=architecture.neighbours)
    return dimensions, fill_decoder(dimensions, architecture.names, stored, label)


def _check_architecture(adapters: Sequence[Adapter], architecture: str, label: str) -> None:
    """Raise KvcastError for an adapter of another architecture, whose names mean something else."""
    for adapter in adapters:
        if adapter.base != architecture:
            raise KvcastError(
                f"{adapter.name} is for models of the architecture {adapter.base!r}, and {label} "
                f"is {architecture!r}"
            )


def _dimensions(values: _Values, architecture: _Architecture, file: GgufFile) -> DecoderDimensions:
    embedding = file.tensors.get(_EMBEDDING)
    if embedding is None:
        raise values.fields.error(f"it has no tensor {_EMBEDDING}: it is not a whole model")
    head_dim = _head_dim(values)
    turning = "rope.dimension_count"
    for name in ("attention.value_length", *(() if architecture.partial else (turning,))):
        if values.whole(name, head_dim) != head_dim:
            raise values.fields.error(f"{values.architecture}.{name} must be {head_dim}, as keys")
    share = values.whole(turning, head_dim, most=head_dim) / head_dim
    rotary = _rotary(values, head_dim, file.tensors)
    scale, heads = "attention.scale", values.same_whole("attention.head_count")
    given = {
        "architecture": values.architecture,
        "vocab_size": embedding.shape[0],
        "width": values.whole("embedding_length"),
        "inner": values.same_whole("feed_forward_length"),
        "heads": heads,
        "kv_heads": values.same_whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "windows": _windows(values, architecture, len(file.tensors)),
        "max_positions": values.whole("context_length", most=_MOST_POSITIONS),
        "rotary": replace(rotary, partial=share, truncate=architecture.truncate),
        "norm_eps": values.positive(architecture.epsilon),
        "attention_scale": values.positive(scale) if values.has(scale) else head_dim**-0.5,
        "qkv_bias": "blk.0.attn_q.bias" in file.tensors,
        "out_bias": "blk.0.attn_output.bias" in file.tensors,
        "tied": _HEAD not in file.tensors,
    }
    return values.fields.make(DecoderDimensions, **{**given, **architecture.particulars(values)})


def _head_dim(values: _Values) -> int:
    width, heads = values.whole("embedding_length"), values.same_whole("attention.head_count")
    return values.whole("attention.key_length", max(width // heads, 1))


def _windows(values: _Values, architecture: _Architecture, most: int) -> tuple[int | None, ...]:
    """Return each layer's window; `most` is more layers than there can be."""
    layers = values.whole("block_count", most=most)
    window = values.whole("attention.sliding_window", 0, least=0)
    if window >= values.whole("context_length", most=_MOST_POSITIONS):
        window = 0
    pattern = values.plain("attention.sliding_window_pattern")
    if not window:
        return (None,) * layers
    if isinstance(pattern, np.ndarray):
        if len(pattern) != layers:
            raise values.fields.error("attention.sliding_window_pattern is not one for each layer")
        windowed = [bool(flag) for flag in pattern]
    else:
        every = values.whole("attention.sliding_window_pattern", architecture.global_every, least=0)
        windowed = [not every or (layer + 1) % every != 0 for layer in range(layers)]
    return tuple(window if has_window else None for has_window in windowed)


def _rotary(values: _Values, head_dim: int, tensors: Mapping[str, GgufTensor]) -> Rotary:
    fields, base = values.fields, values.positive("rope.freq_base", 10_000.0)
    if _LONG in tensors and _SHORT in tensors:
        return _longrope(values, base, *(tensors[name] for name in (_SHORT, _LONG)))
    scaling, factor = _scaling(values)
    divisors = tensors.get(_ROTARY_DIVISORS)
    if divisors is not None:
        if scaling != "none":
            raise fields.error(f"rotary scaling both by {_ROTARY_DIVISORS} and by its type")
        return _divided(values, base, head_dim, divisors)
    if scaling == "none":
        return fields.make(Rotary, base=base)
    if scaling == "linear":
        return fields.make(Rotary, base=base, scaling="linear", factor=factor)
    if scaling != "yarn":
        raise fields.error(f"rotary scaling {scaling[:40]!r} is not supported")
    return _yarn(values, base, factor)


def _scaling(values: _Values) -> tuple[str, float]:
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


def _yarn(values: _Values, base: float, factor: float) -> Rotary:
    """Read YaRN scaling as ggml does, where an attention factor multiplies the usual one."""
    extra = values.positive("rope.scaling.attn_factor", 1.0)
    extra *= values.positive("rope.scaling.yarn_attn_factor", 1.0)
    usual = 0.1 * math.log(max(factor, 1.0)) + 1.0
    for name, only in (("yarn_ext_factor", 1.0), ("yarn_log_multiplier", 0.0)):
        value = values.plain(f"rope.scaling.{name}")
        # The conversion writes -1 if the model does not specify it.
        if value is not None and (type(value) is not float or value not in (only, -1.0)):
            raise values.fields.error(f"rope.scaling.{name} other than {only} is not supported")
    return values.fields.make(
        Rotary,
        base=base,
        scaling="yarn",
        factor=factor,
        low_frequency=values.positive("rope.scaling.yarn_beta_slow", 1.0),
        high_frequency=values.positive("rope.scaling.yarn_beta_fast", 32.0),
        trained_positions=values.whole(
            "rope.scaling.original_context_length", values.whole("context_length")
        ),
        attention_factor=None if extra == 1.0 else extra * usual,
    )


def _divided(values: _Values, base: float, head_dim: int, divisors: GgufTensor) -> Rotary:
    """Find the factor of Llama 3's scaling, if it explains all divisors; keep any others."""
    fields = values.fields
    plain = fields.make(Rotary, base=base)
    if divisors.shape != (head_dim // 2,):
        raise fields.error(f"{_ROTARY_DIVISORS} has shape {list(divisors.shape)}")
    divided_by: NDArray[Any] = divisors.stored().read()
    if not np.isfinite(divided_by).all() or divided_by.min() < 1:
        raise fields.error(f"{_ROTARY_DIVISORS} is damaged: a divisor is below 1")
    if (divided_by == 1).all():
        return plain
    factor = float(divided_by.max())
    scaled = fields.make(Rotary, base=base, scaling="llama3", factor=factor, **_LLAMA3)
    expected = plain.frequencies(head_dim) / divided_by
    if np.allclose(scaled.frequencies(head_dim), expected, rtol=1e-4, atol=0):
        return scaled
    each = tuple(map(float, divided_by))
    return fields.make(
        Rotary,
        base=base,
        scaling="longrope",
        trained_positions=values.whole("context_length"),
        attention_factor=1.0,
        divisors=each,
        long_divisors=each,
    )


def _longrope(values: _Values, base: float, short: GgufTensor, long: GgufTensor) -> Rotary:
    divisors, long_divisors = (
        tuple(map(float, tensor.stored().read().ravel())) for tensor in (short, long)
    )
    return values.fields.make(
        Rotary,
        base=base,
        scaling="longrope",
        trained_positions=values.whole(
            "rope.scaling.original_context_length", values.whole("context_length")
        ),
        attention_factor=values.positive("rope.scaling.attn_factor", 1.0),
        divisors=divisors,
        long_divisors=long_divisors,
    )


def _stored(
    file: GgufFile, dimensions: DecoderDimensions, fields: Fields
) -> dict[str, StoredTensor]:
    """Return tensors by name, with stacked experts split and numbered at the end of their names."""
    stored = {}
    for name, tensor in file.tensors.items():
        if name.endswith(_EXPERTS):
            axes = 3 if name.endswith(_EXPERTS[0]) else 2
            if len(tensor.shape) != axes or tensor.shape[0] != dimensions.experts:
                raise fields.error(f"tensor {name} does not hold {dimensions.experts} experts")
            for number, expert in enumerate(tensor.slices()):
                stored[f"{name}.{number}"] = expert.stored()
        elif name.endswith(_SHARED_GATE):
            stored[name] = replace(tensor, shape=(1, *tensor.shape)).stored()
        elif name not in (_ROTARY_DIVISORS, _SHORT, _LONG):
            stored[name] = tensor.stored()
    return stored


def is_rotated(name: str) -> bool:
    """Tell whether a tensor of the file projects queries or keys, whose rows are rotary pairs."""
    return any(part in name for part in (".attn_q.", ".attn_k.", ".attn_qkv."))


def _parts(source: Path) -> list[Path]:
    """Return the file that `source` is, or the only one in it, with all parts of its model."""
    if source.is_file():
        return _all_parts(source)
    files = _files_in(source)
    models = {tuple(_all_parts(path)) for path in files}
    if len(models) != 1:
        raise UsageError(f"{source} holds {len(files)} GGUF files: give one of them")
    return list(models.pop())


def _all_parts(path: Path) -> list[Path]:
    """Return the parts of a model, by the name of one; InputMissingError if one is missing."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    names = [f"{match['stem']}-{i:05}-of-{count:05}{match['suffix']}" for i in range(1, count + 1)]
    return [require_file(path.parent / name, f"{path.name} is one of its parts") for name in names]


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if is_gguf(path))


def is_gguf(path: Path) -> bool:
    """Tell by its name whether `path` is a GGUF file."""
    return path.suffix.lower() == SUFFIX and path.is_file()


READER = CheckpointReader(
    name="GGUF (a file *.gguf)",
    detect=lambda source: is_gguf(source) or (source.is_dir() and bool(_files_in(source))),
    files=_parts,
    read=_read,
    types={DecoderDimensions: tuple(ARCHITECTURES)},
    adapter_layout="GGUF",
)
