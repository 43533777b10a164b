"""Attention weights of all layers and heads, from the queries and keys of a family's own program.

The fp32 reference runs `decode` over all tokens of a sequence at once, and returns the queries of
its attention steps and the caches. Their products, with the step's scale, rotation, bias, window,
softcap and sinks, are the weights. Weights times values must equal the step's result; the largest
difference is reported, so that a wrong picture is noticed.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.base import Float32
from kvcast.runtimes.reference import Reference
from kvcast.spec.program import Constant, Node, Program, SelfAttention, SharedAttention, Step
from kvcast.spec.ring import visible

Kind: TypeAlias = Literal["self", "cross"]

_LAYER = re.compile(r"layers\.(\d+)\.")
TOLERANCE = 1e-3
"""Largest difference that comes from summing in another order, relative to the largest number."""
_TINY = 1e-30


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerWeights:
    """The attention weights of one layer, [heads, queries, keys].

    A query's weights sum to 1, minus the share of a sink, or of the other kind's keys in the same
    softmax. `error` is the largest relative difference of weights times values from the result.
    """

    kind: Kind
    layer: int
    weights_hst: Float32
    error: float


@dataclass(frozen=True, kw_only=True, eq=False)
class _Attention:
    """One row's attention: softmax(cap(scale * query @ key) + bias) over the seen keys."""

    query_hsd: Float32
    key_htd: Float32  # rotated; of every head of queries
    value_htd: Float32
    seen_st: NDArray[np.bool_]
    bias_hst: Float32 | None  # added to the scaled products; [h or 1, s, t]
    scale: float
    softcap: float  # c in c tanh(x / c); 0: none
    sinks_h: Float32 | None = None  # a logit in each head's softmax without a value
    encoded: int = 0  # how many of the keys, the last ones, are of an encoded input

    def of_kind(self, weights_hst: Float32, kind: Kind) -> Float32:
        own = weights_hst.shape[-1] - self.encoded
        return weights_hst[..., own:] if kind == "cross" else weights_hst[..., :own]

    def beside(self, other: "_Attention") -> "_Attention":
        """Attend to the keys of both; `other` has an encoded input's."""
        bias_hst = self.bias_hst
        if bias_hst is not None:
            bias_hst = np.pad(bias_hst, ((0, 0), (0, 0), (0, other.encoded)))
        return replace(
            self,
            key_htd=np.concatenate([self.key_htd, other.key_htd], axis=1),
            value_htd=np.concatenate([self.value_htd, other.value_htd], axis=1),
            seen_st=np.concatenate([self.seen_st, other.seen_st], axis=1),
            bias_hst=bias_hst,
            encoded=other.encoded,
        )

    def weights_hst(self) -> Float32:
        scores_hst = self.query_hsd @ self.key_htd.swapaxes(1, 2) * np.float32(self.scale)
        if self.softcap:
            scores_hst = self.softcap * np.tanh(scores_hst / self.softcap)
        if self.bias_hst is not None:
            scores_hst = scores_hst + self.bias_hst
        scores_hst = np.where(self.seen_st, scores_hst, -np.inf).astype(np.float32)
        highest_hs1 = scores_hst.max(axis=-1, keepdims=True)
        if self.sinks_h is not None:
            highest_hs1 = np.maximum(highest_hs1, self.sinks_h[:, None, None])
        weights_hst: Float32 = np.exp(scores_hst - highest_hs1)
        whole_hs1 = weights_hst.sum(axis=-1, keepdims=True)
        if self.sinks_h is not None:
            whole_hs1 += np.exp(self.sinks_h[:, None, None] - highest_hs1)
        weights_hst /= whole_hs1
        return weights_hst

    def mixed_sx(self, weights_hst: Float32) -> Float32:
        """Weights times values, the heads of a query side by side."""
        mixed_shd = (weights_hst @ self.value_htd).transpose(1, 0, 2)
        return mixed_shd.reshape(len(mixed_shd), -1)


def _over_own_cache(*arguments: Any) -> _Attention:
    call = SelfAttention[Any](*arguments)
    positions_s = int(call.lengths[0]) + np.arange(call.query.shape[1])
    seen_st = _visible(positions_s, call.window)
    if not call.causal:
        seen_st[:] = True
    own = _over_cache(call, positions_s, seen_st, call.bias)
    if call.cross_key is None or call.cross_value is None:
        return own
    encoded = call.cross_key, call.cross_value, call.scale, call.cross_lengths
    return own.beside(_over_encoded(call.query, *encoded))


def _over_shared_cache(*arguments: Any) -> _Attention:
    call = SharedAttention[Any](*arguments)
    positions_s = int(call.lengths[0]) + call.offsets
    return _over_cache(call, positions_s, _visible(positions_s, call.window), None)


def _over_cache(
    call: SelfAttention[Any] | SharedAttention[Any],
    positions_s: NDArray[np.int64],
    seen_st: NDArray[np.bool_],
    bias: Float32 | None,
) -> _Attention:
    query_hsd = _heads(call.query[0], call.key_cache.shape[-1])
    if call.cosines is not None and call.sines is not None:
        query_hsd = _rotate(query_hsd, call.cosines[positions_s], call.sines[positions_s])
    held = seen_st.shape[1]
    key_htd, value_htd = (
        _repeat(cache[0, :, :held], len(query_hsd)) for cache in (call.key_cache, call.value_cache)
    )
    return _Attention(
        query_hsd=query_hsd,
        key_htd=key_htd,
        value_htd=value_htd,
        seen_st=seen_st,
        bias_hst=None if bias is None else bias[0, :, :, :held],
        scale=call.scale,
        softcap=call.softcap,
        sinks_h=call.sinks,
    )


def _over_encoded(
    query: Float32,
    key: Float32,
    value: Float32,
    scale: float,
    lengths: NDArray[np.int32] | None = None,
    bias: Float32 | None = None,
    softcap: float = 0.0,
) -> _Attention:
    held = key.shape[2] if lengths is None else int(lengths[0])
    query_hsd = _heads(query[0], key.shape[-1])
    key_htd, value_htd = (_repeat(part[0, :, :held], len(query_hsd)) for part in (key, value))
    return _Attention(
        query_hsd=query_hsd,
        key_htd=key_htd,
        value_htd=value_htd,
        seen_st=np.ones((query.shape[1], held), np.bool_),
        bias_hst=None if bias is None else bias[0, :, :, :held],
        scale=scale,
        softcap=softcap,
        encoded=held,
    )


def _heads(flat_sx: Float32, head_dim: int) -> Float32:
    return flat_sx.reshape(len(flat_sx), -1, head_dim).transpose(1, 0, 2)


def _repeat(part_ktd: Float32, heads: int) -> Float32:
    return np.repeat(part_ktd, heads // len(part_ktd), axis=0)


def _rotate(query_hsd: Float32, cosines_se: Float32, sines_se: Float32) -> Float32:
    """Rotate pairs (i, i + d / 2)."""
    first, second = np.split(query_hsd, 2, axis=-1)
    turned = [first * cosines_se - second * sines_se, second * cosines_se + first * sines_se]
    return np.concatenate(turned, axis=-1)


def _visible(positions_s: NDArray[np.int64], window: int) -> NDArray[np.bool_]:
    """[s, t]: which positions up to the last each query sees."""
    return visible(positions_s, np.arange(int(positions_s.max()) + 1), window or None)


_ATTENTION: Mapping[str, Callable[..., _Attention]] = {
    "self_attention": _over_own_cache,
    "shared_attention": _over_shared_cache,
    "cross_attention": _over_encoded,
}


def attention_kinds(program: Program) -> set[Kind]:
    return {kind for step in program.steps for kind in _kinds(step)}


def _kinds(step: Step) -> set[Kind]:
    match step.operation:
        case "self_attention":
            call = SelfAttention[Any](*step.arguments, **step.keywords)
            return {"self", "cross"} if call.crosses else {"self"}
        case "shared_attention":
            return {"self"}
        case "cross_attention":
            return {"cross"}
    return set()


def layer_weights(
    reference: Reference,
    program: Program,
    inputs: Mapping[str, NDArray[Any]],
    constants: Callable[[str], NDArray[Any]],
    kind: Kind,
) -> Iterator[LayerWeights]:
    """Run a program; yield the weights of each layer with attention of that kind, in order.

    `inputs` are of one empty row; its self caches are written. `constants`: tensors by name.
    """
    steps = [(layer, step) for layer, step in _with_layers(program.steps) if kind in _kinds(step)]
    names = [step.name for _, step in steps]
    read = {name for _, step in steps for name in step.reads if name not in inputs}
    results = reference.results(program, inputs, [*names, *sorted(read)])
    values = {**inputs, **results}

    def given(argument: Any) -> Any:
        if isinstance(argument, Node):
            return values[argument.name]
        return constants(argument.name) if isinstance(argument, Constant) else argument

    for layer, step in steps:
        arguments = map(given, step.arguments)
        named = {name: given(argument) for name, argument in step.keywords.items()}
        attention = _ATTENTION[step.operation](*arguments, **named)
        weights_hst = attention.weights_hst()
        expected_sx = results[step.name][0]
        difference = np.abs(attention.mixed_sx(weights_hst) - expected_sx).max()
        error = float(difference / max(np.abs(expected_sx).max(), _TINY))
        of_kind = attention.of_kind(weights_hst, kind)
        yield LayerWeights(kind=kind, layer=layer, weights_hst=of_kind, error=error)


def _with_layers(steps: Sequence[Step]) -> Iterator[tuple[int, Step]]:
    """Yield steps with the index of the layer whose matrices were read last."""
    layer = 0
    for step in steps:
        for part in step.arguments:
            found = _LAYER.search(part.name) if isinstance(part, Constant) else None
            layer = layer if found is None else int(found[1])
        yield layer, step
