"""Typed access to a GGUF file's metadata; reads the settings of rotary embeddings."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.gguf.file import GgufTensor
from kvcast.spec.position_encodings import Rotary


@dataclass(frozen=True, kw_only=True)
class Values:
    """The values of an architecture, whose names start with the architecture's.

    `tensors`: names of the file's tensors.
    """

    fields: Fields
    architecture: str
    tensors: Collection[str] = ()

    @property
    def layers(self) -> int:
        """Number of layers, without those that predict further tokens, which come last."""
        return self.whole("block_count") - self.whole("nextn_predict_layers", 0, least=0)

    @property
    def head_dim(self) -> int:
        """Size of a head of queries and keys."""
        width, heads = self.whole("embedding_length"), self.same_whole("attention.head_count")
        return self.whole("attention.key_length", max(width // heads, 1))

    def has(self, name: str) -> bool:
        """Tell whether the file has a value."""
        return self.plain(name) is not None

    def whole(self, name: str, default: int | None = None, **limits: int) -> int:
        """Return a whole number."""
        return self.fields.whole(self._full(name), default, **limits)

    def same_whole(self, name: str, default: int | None = None, absent: int | None = None) -> int:
        """Return a number that the file may have once for each layer, if all are the same.

        Layers with the number `absent` have nothing that it is of.
        """
        value = self.plain(name)
        if not isinstance(value, np.ndarray):
            return self.whole(name, default)
        numbers, layers = set(value.tolist()) - {absent}, self.whole("block_count")
        if len(value) != layers or len(numbers) != 1:
            raise self.fields.error(
                f"{self._full(name)} must be one number, the same for each of {layers} layers: "
                "models whose layers differ are not supported"
            )
        alone = {self._full(name): numbers.pop()}
        return Fields(values=alone, label=self.fields.label).whole(self._full(name))

    def each(self, name: str, default: int | None = None) -> tuple[int, ...]:
        """Return a number of each layer, which the file may have once for all of them."""
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
        """Return a finite number above 0."""
        return self.fields.positive(self._full(name), default)

    def optional(self, name: str) -> float:
        """Return a number above 0; 0 for none, which conversions may write as 0 or -1."""
        value = self.plain(name)
        is_none = value is None or (type(value) in (int, float) and value in (0, -1))
        return 0.0 if is_none else self.positive(name)

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        return self.fields.flag(self._full(name), default)

    def plain(self, name: str) -> Any:
        """Return the value, of any type."""
        return self.fields.values.get(self._full(name))

    def text(self, name: str, default: str) -> str:
        """Return a text."""
        value = self.plain(name)
        if not isinstance(value, str | None):
            raise self.fields.error(f"{self._full(name)} must be a text")
        return default if value is None else value

    def _full(self, name: str) -> str:
        return f"{self.architecture}.{name}"


_ROTARY_DIVISORS = "rope_freqs.weight"
# The same of models that have one for long texts, too.
_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"
TABLES = (_ROTARY_DIVISORS, _SHORT, _LONG)
"""Names of the tensors that rotary embeddings are read from."""
# Ministral 3's: less of the usual attention factor, and more of the factor on queries.
_LOG_MULTIPLIER, _QUERY_BETA = "rope.scaling.yarn_log_multiplier", "attention.temperature_scale"
# The divisor of pairs that do not turn, as Gemma 4's, is this or more.
_STILL = 1e29
# Llama 3's scaling differs between models only in its factor.
_LLAMA3 = {"low_frequency": 1.0, "high_frequency": 4.0, "trained_positions": 8192}


def read_rotary(values: Values, head_dim: int, tensors: Mapping[str, GgufTensor]) -> Rotary:
    """Return the rotary embeddings of a model; KvcastError for those of an unknown kind."""
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


def _yarn(values: Values, base: float, factor: float) -> Rotary:
    """Read YaRN scaling as ggml does, where an attention factor multiplies the usual one."""
    extra = values.positive("rope.scaling.attn_factor", 1.0)
    extra *= values.positive("rope.scaling.yarn_attn_factor", 1.0)
    usual = 0.1 * math.log(max(factor, 1.0)) + 1.0
    blend = values.plain("rope.scaling.yarn_ext_factor")
    # The conversion writes -1 if the model does not specify it.
    if blend is not None and (type(blend) is not float or blend not in (1.0, -1.0)):
        raise values.fields.error("rope.scaling.yarn_ext_factor other than 1.0 is not supported")
    less = values.optional(_LOG_MULTIPLIER)
    usual /= 0.1 * less * math.log(max(factor, 1.0)) + 1.0
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
        attention_factor=None if extra == 1.0 and not less else extra * usual,
        query_beta=values.optional(_QUERY_BETA),
    )


def _divided(values: Values, base: float, head_dim: int, divisors: GgufTensor) -> Rotary:
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
    turning = int((divided_by < _STILL).sum())
    if turning and (divided_by[:turning] == 1).all() and (divided_by[turning:] >= _STILL).all():
        share = turning / len(divided_by)
        return fields.make(Rotary, base=base, scaling="proportional", partial=share)
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


def _longrope(values: Values, base: float, short: GgufTensor, long: GgufTensor) -> Rotary:
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
