"""Decoder-only models: Llama, Mistral, Qwen, Gemma, OLMo, Cohere, GPT-NeoX and others as data.

Canonical tensors are [out, in], as in torch's Linear. Query, key and value are one tensor in this
order, and so are gate and up. RMS norms multiply by their weight as it is (Gemma's files store it
minus one). Rotary pairs are in halves of a head. Knows no file format, weights, text or runtimes.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.families import convolutions, layer_embeddings, mixtures
from kvcast.families.base import PROBE_STEPS, Family, PrecisionRoles, Probe
from kvcast.families.blocks import (
    TOKENS,
    attended,
    attended_elsewhere,
    chosen,
    flat,
    in_rows,
    positions,
    written,
)
from kvcast.families.caches import CacheLayers, KeysAndValues, self_caches
from kvcast.families.convolutions import ATTENTION, DELTA, STATE_SPACE
from kvcast.families.delta_nets import DeltaNet
from kvcast.families.programs import ProgramSignature, decode_program
from kvcast.families.state_spaces import StateSpace
from kvcast.spec.program import Constant, Node, Program
from kvcast.spec.rotary import Rotary
from kvcast.spec.runtimes import CALIBRATED
from kvcast.spec.sizes import MOST_POSITIONS, require_layers, require_one_of, require_positive
from kvcast.spec.writer import ProgramWriter

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
NORMS = ("rms", "layer")
_PROMPT, _LONGEST_PROMPT = 4, 600
_LEAST_FACTOR = 1e-4  # published ones are 0.1 and more
_POSITIONS, _NO_BIAS, _NO_WEIGHT = "decoder.positions", "no_bias", "no_weight_{}"
_ONES, _ZEROS = "ones_of_a_head", "zeros_of_a_head"
EMBEDDING = "decoder.embedding.weight"
_OF_LAYERS = (
    *("unrotated", "dense_layers", "layer_head_dims", "layer_kv_heads", "layer_inners"),
    *("sources", "keys_as_values"),
)
"""Fields of lists of layers."""


@dataclass(frozen=True, kw_only=True)
class DecoderDimensions:
    """Everything that determines a decoder-only model's tensor shapes and computation.

    Attributes:
        architecture: the checkpoint's name for it, for people only: "llama", "mistral", ...
        vocab_size: rows of the embedding.
        width: size of a hidden state.
        inner: inner width of the feed-forward (of one expert).
        heads: number of query heads.
        kv_heads: number of key and value heads; `heads` is a multiple.
        head_dim: size of a head, even.
        windows: how many positions a query of each layer sees, including its own; None: all.
        max_positions: length of the longest sequence.
        rotary: for layers without a window, and for all layers unless `window_rotary` is given;
            None: no rotation (Cohere 2).
        window_rotary: for layers with a window (Gemma 3).
        unrotated: numbers of further layers without rotation (SmolLM 3).
        learned_positions: whether an embedding of each position is added to tokens' (GPT-2).
        norm: kind of the norms, one of NORMS.
        norm_eps: of every norm.
        norm_bias: whether layer norms have biases (all but Cohere's).
        activation: of the gate, one of ACTIVATIONS; of the inner layer where there is no gate.
        gated: whether feed-forwards have a gate (all but StarCoder 2, GPT-NeoX and Phi).
        attention_scale: factor on the products of queries and keys.
        scaled_by_depth: whether that factor is divided by a layer's number, from 1 (some GPT-2).
        qkv_bias: whether query, key and value have biases (Qwen 2).
        out_bias: whether attention's output projection has a bias (some Llamas).
        feed_forward_bias: whether the feed-forward's matrices have biases.
        head_bias: whether the head has a bias (Phi).
        query_key_norm: norm of each head of queries and keys before rotation (Qwen 3, Gemma 3).
        whole_query_key_norm: whether that norm is of all heads together (OLMo 2).
        own_query_key_norms: whether that norm has other weights for each head (StableLM, Cohere).
        pre_norms: norms before attention and feed-forward (all but OLMo 2 and EXAONE 4).
        post_norms: norms after attention and feed-forward (Gemma 2 and 3, OLMo 2).
        parallel: whether the feed-forward reads what attention reads, and not its result (Cohere).
        shared_norm: whether both read one norm, attention's (Cohere; not GPT-NeoX).
        embedding_scale: factor on embeddings (Gemma: square root of the width).
        attention_softcap: c in c tanh(x / c), on attention's logits; 0: none.
        logit_softcap: the same, on the model's logits; 0: none.
        logit_scale: factor on the head's input (Cohere's and Granite's on logits).
        tied: whether the head is the embedding.
        experts: number of experts in each feed-forward; 0: no mixture.
        experts_per_token: how many of them each token uses.
        experts_normalised: whether the shares of a token's experts sum to 1 (Mixtral), and not
            those of all (Qwen 2).
        shared_inner: inner width of an expert that all tokens go through (Qwen 2); 0: none.
        shared_gated: whether each token has a share of it (not Granite 4).
        dense_layers: numbers of layers that have one feed-forward instead of experts.
        dense_inner: inner width of their feed-forward.
        expert_bias: whether the router and the experts' matrices have biases (GPT-OSS).
        expert_inner: inner width of an expert, where layers have experts beside a feed-forward
            (Gemma 4); 0: experts are in its place.
        swiglu_limit: of experts' gates and, on both sides, of what they multiply, to which 1 is
            added (GPT-OSS); 0: none.
        swiglu_alpha: with a limit, factor on gates in their sigmoid.
        sinks: whether each head has a learned logit beside those of a query, whose share gives
            nothing (GPT-OSS).
        mixers: of each layer one of `convolutions.MIXERS`; empty: all are attention.
        convolution: length of a convolution, its own position included; 0: there is none.
        convolution_bias: whether convolutions and their projections have biases.
        delta: sizes of layers with delta nets (Qwen 3.5).
        state_space: sizes of layers with state spaces (Granite 4).
        attention_gate: whether attention is multiplied by the sigmoid of a projection (Qwen 3.5).
        layer_head_dims: size of a head of each layer, where layers differ (Gemma 4).
        layer_kv_heads: number of key and value heads of each layer, where layers differ.
        layer_inners: inner width of each layer's feed-forward, where layers differ.
        sources: of each layer the layer whose keys and values it reads, itself or an earlier one;
            empty: its own. Layers that read those of others come last.
        keys_as_values: numbers of layers whose values are their keys before norm and rotation.
        value_norm: whether heads of values are normed, without a weight.
        layer_embedding: width of the embeddings that tokens have for each layer; 0: none.
        layer_scales: whether the result of each layer is multiplied by a number of its own.

    """

    architecture: str
    vocab_size: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    max_positions: int
    rotary: Rotary | None
    norm_eps: float
    attention_scale: float
    scaled_by_depth: bool = False
    window_rotary: Rotary | None = None
    unrotated: tuple[int, ...] = ()
    learned_positions: bool = False
    norm: str = "rms"
    norm_bias: bool = False
    activation: str = "silu"
    gated: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    feed_forward_bias: bool = False
    head_bias: bool = False
    query_key_norm: bool = False
    whole_query_key_norm: bool = False
    own_query_key_norms: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    parallel: bool = False
    shared_norm: bool = False
    embedding_scale: float = 1.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    logit_scale: float = 1.0
    tied: bool = True
    experts: int = 0
    experts_per_token: int = 0
    experts_normalised: bool = True
    shared_inner: int = 0
    shared_gated: bool = True
    dense_layers: tuple[int, ...] = ()
    dense_inner: int = 0
    expert_bias: bool = False
    swiglu_limit: float = 0.0
    swiglu_alpha: float = 0.0
    sinks: bool = False
    expert_inner: int = 0
    mixers: tuple[str, ...] = ()
    convolution: int = 0
    convolution_bias: bool = False
    delta: DeltaNet | None = None
    state_space: StateSpace | None = None
    attention_gate: bool = False
    layer_head_dims: tuple[int, ...] = ()
    layer_kv_heads: tuple[int, ...] = ()
    layer_inners: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()
    keys_as_values: tuple[int, ...] = ()
    value_norm: bool = False
    layer_embedding: int = 0
    layer_scales: bool = False

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "width", "inner", "heads", "kv_heads", "head_dim", "max_positions")
        require_positive(**{name: getattr(self, name) for name in sizes})
        if self.max_positions > MOST_POSITIONS:
            raise KvcastError(f"max_positions {self.max_positions} is more than any model has")
        require_layers(self.layers)
        if not self.windows or not all(map(_is_window, self.windows)):
            raise KvcastError("windows must have one or more layers, each None or 1 or more")
        self._check_heads()
        if not all(type(i) is int and 0 <= i < self.layers for i in self.unrotated):
            raise KvcastError(f"layers without rotation must be some of {self.layers} layers")
        require_one_of("activation", self.activation, ACTIVATIONS)
        require_one_of("norm", self.norm, NORMS)
        self._check_norms()
        for name in ("norm_eps", "attention_scale", "embedding_scale", "logit_scale"):
            if not 0 < getattr(self, name) < math.inf:
                raise KvcastError(f"{name} must be a finite number above 0")
        mixtures.check(self)
        convolutions.check(self)
        self._check_sources()
        if self.experts and (self.feed_forward_bias or not self.gated):
            raise KvcastError("experts with biases or without gates are not supported")

    def _check_heads(self) -> None:
        for name in ("layer_head_dims", "layer_kv_heads", "layer_inners"):
            sizes = getattr(self, name)
            if len(sizes) not in (0, self.layers):
                raise KvcastError(f"{len(sizes)} {name} are not one for each layer")
            for i, size in enumerate(sizes):
                require_positive(**{f"{name} of layer {i}": size})
        for kv_heads in {self.kv_heads, *self.layer_kv_heads}:
            if self.heads % kv_heads:
                raise KvcastError(f"{self.heads} heads are not a multiple of {kv_heads} kv_heads")
        for head_dim in {self.head_dim, *self.layer_head_dims}:
            if head_dim % 2:
                raise KvcastError(f"head_dim must be even, not {head_dim}")
        for i in range(self.layers):
            if rotary := self.rotary_of(i):
                rotary.check(self.head_dim_of(i))
        if not all(type(i) is int and 0 <= i < self.layers for i in self.keys_as_values):
            raise KvcastError(f"keys are values in some of {self.layers} layers")
        if not 0 <= self.layer_embedding <= MOST_POSITIONS:
            raise KvcastError(f"embeddings of {self.layer_embedding} for each layer: not possible")

    def _check_sources(self) -> None:
        if len(self.sources) not in (0, self.layers):
            raise KvcastError(f"{len(self.sources)} sources are not one for each layer")
        for i, source in enumerate(self.sources):
            if type(source) is not int or not 0 <= source <= i or self.sources[source] != source:
                raise KvcastError(f"layer {i} cannot read the keys and values of layer {source}")
            if source == i and i > self.reading:
                raise KvcastError("layers that read the keys and values of others come last")
            if self.mixer(i) != ATTENTION and (source != i or i in self.sources[i + 1 :]):
                raise KvcastError("only attention has keys and values")
            if self._attends(i) != self._attends(source):
                raise KvcastError(f"layer {i} attends otherwise than layer {source}")
        rotaries = filter(None, (self.rotary, self.window_rotary))
        if self.reading < self.layers and any(rotary.query_beta for rotary in rotaries):
            raise KvcastError("factors on queries are not supported where layers share caches")

    def _attends(self, layer: int) -> tuple[Any, ...]:
        sizes = self.head_dim_of(layer), self.kv_heads_of(layer)
        return *sizes, self.windows[layer], self.rotary_of(layer)

    def _check_norms(self) -> None:
        if self.norm_bias and self.norm == "rms":
            raise KvcastError("RMS norms with biases are not supported")
        own = self.own_query_key_norms
        if self.query_key_norm and self.norm == "layer" and not (self.norm_bias or own):
            raise KvcastError("layer norms of queries and keys without biases are not supported")
        if self.norm != "rms" and (self.value_norm or self.layer_embedding):
            raise KvcastError("only models with RMS norms norm values, or have layer embeddings")
        if self.expert_inner and not (self.norm == "rms" and self.pre_norms and self.post_norms):
            raise KvcastError("experts beside a feed-forward have RMS norms before and after")
        if own and (self.norm == "rms" or self.whole_query_key_norm or not self.query_key_norm):
            raise KvcastError("heads have norms of their own in models with layer norms alone")
        if not (self.pre_norms or self.post_norms):
            raise KvcastError("a layer without norms is not supported")
        if self.shared_norm and not (self.parallel and self.pre_norms):
            raise KvcastError("only parallel blocks share a norm")

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.windows)

    def mixer(self, layer: int) -> str:
        """Return how a layer mixes positions, one of `convolutions.MIXERS`."""
        return self.mixers[layer] if self.mixers else ATTENTION

    def head_dim_of(self, layer: int) -> int:
        """Return the size of a head of a layer."""
        return self.layer_head_dims[layer] if self.layer_head_dims else self.head_dim

    def kv_heads_of(self, layer: int) -> int:
        """Return the number of a layer's key and value heads."""
        return self.layer_kv_heads[layer] if self.layer_kv_heads else self.kv_heads

    def inner_of(self, layer: int) -> int:
        """Return the inner width of a layer's feed-forward without experts."""
        return self.layer_inners[layer] if self.layer_inners else self.dense_inner or self.inner

    def keys_and_values(self, layer: int) -> KeysAndValues:
        """Return what a layer's attention reads."""
        source = self.sources[layer] if self.sources else layer
        return KeysAndValues(
            heads=self.kv_heads_of(layer),
            head_dim=self.head_dim_of(layer),
            window=self.windows[layer],
            source=None if source == layer else source,
        )

    def projected(self, layer: int) -> tuple[int, ...]:
        """Return the outputs of a layer's projection: queries, and keys and values of its own."""
        reads, size = self.keys_and_values(layer), self.head_dim_of(layer)
        keys = reads.heads * size
        if reads.source is not None:
            return (self.heads * size,)
        return self.heads * size, *([keys] if layer in self.keys_as_values else [keys, keys])

    @property
    def reading(self) -> int:
        """Number of the first layer that reads another's keys and values, as all later ones do."""
        shared = (i for i, source in enumerate(self.sources) if source != i)
        return next(shared, self.layers)

    def state(self, layer: int) -> DeltaNet | StateSpace | None:
        """Return the sizes of a layer's state; None where it has none."""
        states = {DELTA: self.delta, STATE_SPACE: self.state_space}
        return states.get(self.mixer(layer))

    def rotary_of(self, layer: int) -> Rotary | None:
        """Return the rotary embedding of a layer; None where there is none."""
        if layer in self.unrotated:
            return None
        if self.windows[layer] is not None and self.window_rotary is not None:
            return self.window_rotary
        return self.rotary

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuild from `asdict`'s output; raises KvcastError for missing or unknown fields."""
        try:
            rotaries = {name: fields[name] for name in ("rotary", "window_rotary")}
            rebuilt = dict(fields) | {
                "windows": tuple(fields["windows"]),
                "mixers": tuple(fields.get("mixers", ())),
                "delta": (sizes := fields.get("delta")) and DeltaNet(**sizes),
                "state_space": (sizes := fields.get("state_space")) and StateSpace(**sizes),
                **{name: tuple(fields.get(name, ())) for name in _OF_LAYERS},
                **{name: part and Rotary(**part) for name, part in rotaries.items()},
            }
            return cls(**rebuilt)
        except (TypeError, KeyError) as error:
            raise KvcastError(f"not the dimensions of a decoder-only model: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as in the manifest."""
        return asdict(self)


def _is_window(window: object) -> bool:
    return window is None or (type(window) is int and 1 <= window <= MOST_POSITIONS)


def scaled_residuals(*, residual: float, embedding: float, epsilon: float) -> dict[str, float]:
    """Return the dimensions of a model that multiplies each block's result by `residual` (Granite).

    Embeddings are divided by it instead, so the hidden state is as much smaller or larger
    throughout. Norms alone read that, and their epsilon makes up for it. So products still end with
    their residual.
    """
    if not _LEAST_FACTOR <= residual <= 1 / _LEAST_FACTOR:
        raise KvcastError(f"a factor of {residual} on each block's result is out of range")
    return {"embedding_scale": embedding / residual, "norm_eps": epsilon / residual**2}


def sources_of_types(*, kinds: Sequence[Hashable], shared: int) -> tuple[int, ...]:
    """Return `sources` of layers of which the last `shared` read those of others (Gemma 4).

    Each reads the keys and values of the last layer of its kind that has any.
    """
    own = kinds[: len(kinds) - shared]
    if not set(kinds) <= set(own):
        raise KvcastError(f"{shared} layers that share caches leave a kind of layers without any")
    last = {kind: i for i, kind in enumerate(own)}
    return (*range(len(own)), *(last[kind] for kind in kinds[len(own) :]))


def tensor_shapes(dimensions: DecoderDimensions) -> dict[str, tuple[int, ...]]:
    """Return every canonical name with its shape."""
    shapes = {
        "embedding.weight": (dimensions.vocab_size, dimensions.width),
        **_norm_shapes(dimensions, "norm", dimensions.width),
    }
    if dimensions.learned_positions:
        shapes["positions"] = (dimensions.max_positions, dimensions.width)
    if not dimensions.tied:
        shapes["head.weight"] = (dimensions.vocab_size, dimensions.width)
    if dimensions.head_bias:
        shapes["head.bias"] = (dimensions.vocab_size,)
    shapes = {f"decoder.{name}": shape for name, shape in shapes.items()}
    if width := dimensions.layer_embedding:
        shapes |= layer_embeddings.shapes(
            width,
            layers=dimensions.layers,
            vocab_size=dimensions.vocab_size,
            hidden=dimensions.width,
        )
    for i in range(dimensions.layers):
        layer = _layer_shapes(dimensions, i)
        shapes |= {f"decoder.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def _layer_shapes(dimensions: DecoderDimensions, i: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for block, matrices in (
        ("attention", _mixer_shapes(dimensions, i)),
        ("feed_forward", _feed_forward_shapes(dimensions, i)),
    ):
        if dimensions.pre_norms and not (dimensions.shared_norm and block == "feed_forward"):
            shapes |= _norm_shapes(dimensions, f"{block}_norm", dimensions.width)
        shapes |= matrices
        if dimensions.post_norms:
            shapes |= _norm_shapes(dimensions, f"{block}_post_norm", dimensions.width)
    if mixtures.has_experts_beside(dimensions, i):
        norms = ("feed_forward_own_norm", "experts_norm", "experts_post_norm")
        shapes |= {f"{name}.weight": (dimensions.width,) for name in norms}
        experts = mixtures.mixture_shapes(dimensions)
        shapes |= {f"experts.{name}": shape for name, shape in experts.items()}
    if width := dimensions.layer_embedding:
        shapes |= layer_embeddings.layer_shapes(width, hidden=dimensions.width)
    if dimensions.layer_scales:
        shapes["scale"] = (1,)
    return shapes


def _norm_shapes(
    dimensions: DecoderDimensions, name: str, width: int
) -> dict[str, tuple[int, ...]]:
    leaves = ("weight", "bias") if dimensions.norm_bias else ("weight",)
    return {f"{name}.{leaf}": (width,) for leaf in leaves}


def _mixer_shapes(dimensions: DecoderDimensions, i: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of what mixes positions: attention or another layer in its place."""
    if dimensions.mixer(i) == ATTENTION:
        return _attention_shapes(dimensions, i)
    if state := dimensions.state(i):
        return state.shapes(dimensions.width)
    return convolutions.shapes(dimensions)


def _attention_shapes(dimensions: DecoderDimensions, i: int) -> dict[str, tuple[int, ...]]:
    width, head_dim = dimensions.width, dimensions.head_dim_of(i)
    reads = dimensions.keys_and_values(i)
    mixed = dimensions.heads * head_dim
    projected = sum(dimensions.projected(i))
    shapes: dict[str, tuple[int, ...]] = {
        "attention.qkv.weight": (projected, width),
        "attention.out.weight": (width, mixed),
    }
    if dimensions.qkv_bias:
        shapes["attention.qkv.bias"] = (projected,)
    if dimensions.out_bias:
        shapes["attention.out.bias"] = (width,)
    if dimensions.attention_gate:
        shapes["attention.gate.weight"] = (mixed, width)
    if dimensions.query_key_norm:
        own = dimensions.own_query_key_norms
        each = own or dimensions.whole_query_key_norm
        normed_heads = {"query": dimensions.heads}
        if reads.source is None:
            normed_heads["key"] = reads.heads
        for name, heads in normed_heads.items():
            norm, normed = f"attention.{name}_norm", head_dim * (heads if each else 1)
            weight = {f"{norm}.weight": (normed,)}
            shapes |= weight if own else _norm_shapes(dimensions, norm, normed)
    if dimensions.sinks:
        shapes["attention.sinks"] = (dimensions.heads,)
    return shapes


def _feed_forward_shapes(dimensions: DecoderDimensions, i: int) -> dict[str, tuple[int, ...]]:
    if mixtures.is_mixture(dimensions, i):
        of_experts = mixtures.mixture_shapes(dimensions)
        return {f"feed_forward.{name}": shape for name, shape in of_experts.items()}
    width, inner, up = dimensions.width, dimensions.inner_of(i), _up(dimensions)
    rows = (2 if dimensions.gated else 1) * inner
    shapes: dict[str, tuple[int, ...]] = {
        f"feed_forward.{up}.weight": (rows, width),
        "feed_forward.down.weight": (width, inner),
    }
    if dimensions.feed_forward_bias:
        shapes |= {f"feed_forward.{up}.bias": (rows,), "feed_forward.down.bias": (width,)}
    return shapes


def _up(dimensions: DecoderDimensions) -> str:
    """Return the name of the feed-forward's first matrix."""
    return "gate_up" if dimensions.gated else "up"


def caches(dimensions: DecoderDimensions) -> tuple[CacheLayers, ...]:
    """Return the layout of the layers' caches, in order."""
    layers = list(map(dimensions.keys_and_values, range(dimensions.layers)))
    return tuple(
        layer if dimensions.mixer(i) == ATTENTION else _other_cache(dimensions, i)
        for i, layer in enumerate(self_caches(layers, dimensions.max_positions))
    )


def _other_cache(dimensions: DecoderDimensions, i: int) -> CacheLayers:
    state = dimensions.state(i)
    return state.cache() if state else convolutions.inputs_cache(dimensions)


def _programs(dimensions: DecoderDimensions) -> Mapping[str, ProgramSignature]:
    return {"decode": decode_program(caches(dimensions), ["logits"])}


def _written(dimensions: DecoderDimensions) -> Mapping[str, Program]:
    return written(_programs(dimensions), dimensions, decode=_decode)


def _decode(write: ProgramWriter, dimensions: DecoderDimensions) -> Program:
    """Write `decode`: new tokens to logits."""
    return decoded(write, write.embedding(EMBEDDING, TOKENS), dimensions)


def decoded(write: ProgramWriter, x: Node, dimensions: DecoderDimensions) -> Program:
    """Write the rest of `decode`: embeddings of new tokens [rows, new, width] to logits."""
    if dimensions.embedding_scale != 1:
        x = write.step("mul", x, dimensions.embedding_scale)
    if dimensions.learned_positions:
        learned = _at_positions(write, Constant(_POSITIONS), dimensions.width)
        x = write.step("add", x, learned)
    x = _layers(write, x, dimensions)
    normed = _norm(write, flat(write, x), "decoder.norm", dimensions)
    if dimensions.logit_scale != 1:
        normed = write.step("mul", normed, dimensions.logit_scale)
    logits = _head(write, normed, dimensions)
    if softcap := dimensions.logit_softcap:
        capped = write.step("tanh", write.step("div", logits, softcap))
        logits = write.step("mul", capped, softcap)
    return write.program(logits=in_rows(write, logits))


def _layers(write: ProgramWriter, x: Node, dimensions: DecoderDimensions) -> Node:
    """Send embeddings through all layers; return the hidden states at `offsets`."""
    inputs = _layer_inputs(write, x, dimensions)
    for i in range(dimensions.layers):
        x = _layer(write, x, dimensions, i)
        if inputs:
            of: dict[str, Any] = {
                "activation": dimensions.activation,
                "epsilon": dimensions.norm_eps,
            }
            x = layer_embeddings.added(write, x, inputs[i], i, **of)
        if dimensions.layer_scales:
            x = write.step("mul", x, Constant(f"decoder.layers.{i}.scale"))
    return x


def _layer_inputs(write: ProgramWriter, x: Node, dimensions: DecoderDimensions) -> list[Node]:
    """Return the embeddings of each layer that tokens have beside `x`; none in most models."""
    width, all_new = dimensions.layer_embedding, dimensions.reading - 1
    if not width:
        return []
    epsilon = dimensions.norm_eps
    whole = layer_embeddings.embedded(write, x, width, hidden=dimensions.width, epsilon=epsilon)
    of_chosen = dimensions.layers - all_new
    if not all_new:
        return write.split(chosen(write, whole), [width] * of_chosen)
    early, late = write.split(whole, [width * all_new, width * of_chosen])
    late = chosen(write, late)
    return write.split(early, [width] * all_new) + write.split(late, [width] * of_chosen)


def _layer(write: ProgramWriter, x: Node, dimensions: DecoderDimensions, i: int) -> Node:
    """Add attention and feed-forward to the hidden state.

    The result of the last layer with a cache is that of the positions that meet the head,
    [rows, asked, width], and so are those of layers that read the caches of others: all that other
    positions leave for later tokens is in the caches by then.
    """
    layer = f"decoder.layers.{i}"
    before = _before(write, x, f"{layer}.attention", dimensions)
    mixed = _mixed(write, before, dimensions, i)
    if i == dimensions.reading - 1:
        x, mixed = chosen(write, x), chosen(write, mixed)
        before = chosen(write, before) if dimensions.shared_norm else before
    out = _projected(write, x, mixed, dimensions, i)
    if not dimensions.shared_norm:
        source = x if dimensions.parallel else out
        before = _before(write, source, f"{layer}.feed_forward", dimensions)
    if mixtures.is_mixture(dimensions, i):
        return _experts(write, out, before, f"{layer}.feed_forward", dimensions)
    if mixtures.has_experts_beside(dimensions, i):
        return _feed_forward_and_experts(write, out, before, layer, dimensions)
    return _feed_forward(write, out, before, f"{layer}.feed_forward", dimensions)


def _mixed(write: ProgramWriter, before: Node, dimensions: DecoderDimensions, i: int) -> Node:
    """Return what attention, or another layer in its place, has before its last product."""
    if dimensions.mixer(i) == ATTENTION:
        return _attention(write, before, dimensions, i)
    match dimensions.state(i):
        case DeltaNet() as net:
            return net.mixed(write, before, i, dimensions.norm_eps)
        case StateSpace() as space:
            return space.mixed(write, before, i)
    return convolutions.convolved(write, before, dimensions, i)


def _projected(
    write: ProgramWriter, x: Node, mixed: Node, dimensions: DecoderDimensions, i: int
) -> Node:
    """Add the last product of attention, or of another layer in its place, to the hidden state."""
    layer = f"decoder.layers.{i}"
    if dimensions.mixer(i) == ATTENTION:
        return _added(write, x, mixed, f"{layer}.attention", "out", dimensions)
    match dimensions.state(i):
        case DeltaNet():
            return write.linear(mixed, f"{layer}.delta.out", residual=x)
        case StateSpace() as space:
            out = f"{layer}.state_space.out"
            return write.linear(mixed, out, bias=space.bias, residual=x)
    bias = dimensions.convolution_bias
    return write.linear(mixed, f"{layer}.convolution.out", bias=bias, residual=x)


def _before(write: ProgramWriter, x: Node, block: str, dimensions: DecoderDimensions) -> Node:
    return _norm(write, x, f"{block}_norm", dimensions) if dimensions.pre_norms else x


def _norm(write: ProgramWriter, x: Node, name: str, dimensions: DecoderDimensions) -> Node:
    if dimensions.norm == "rms":
        return write.rms_norm(x, name, dimensions.norm_eps)
    bias = f"{name}.bias" if dimensions.norm_bias else _NO_BIAS
    weight = Constant(f"{name}.weight")
    return write.step("layer_norm", x, weight, Constant(bias), dimensions.norm_eps)


def _head(write: ProgramWriter, x: Node, dimensions: DecoderDimensions) -> Node:
    owner = "decoder.embedding" if dimensions.tied else "decoder.head"
    bias = "decoder.head.bias" if dimensions.head_bias else None
    return write.step("linear", x, Constant(f"{owner}.weight", bias))


def _attention(write: ProgramWriter, normed: Node, dimensions: DecoderDimensions, i: int) -> Node:
    layer, source = f"decoder.layers.{i}.attention", dimensions.keys_and_values(i).source
    projected = write.linear(normed, f"{layer}.qkv", bias=dimensions.qkv_bias)
    query, *own = write.split(projected, dimensions.projected(i))
    if dimensions.query_key_norm:
        query = _normed_heads(write, query, f"{layer}.query_norm", dimensions, i)
    tables = _rotary_tables(dimensions, i)
    if scales := tables.pop("query_scales", None):
        query = write.step("mul", query, _at_positions(write, scales, 1))
    options: dict[str, Any] = {
        "window": dimensions.windows[i] or 0,
        "softcap": dimensions.attention_softcap,
        **tables,
        "sinks": Constant(f"{layer}.sinks") if dimensions.sinks else None,
    }
    scale = dimensions.attention_scale / (i + 1 if dimensions.scaled_by_depth else 1)
    if source is None:
        given = query, *_keys_and_values(write, own, dimensions, i)
        mixed = attended(write, i, given, scale, **options)
    else:
        mixed = attended_elsewhere(write, source, query, scale, **options)
    if not dimensions.attention_gate:
        return mixed
    gate = write.linear(normed, f"{layer}.gate")
    return write.step("gated", gate, mixed, activation="sigmoid")


def _keys_and_values(
    write: ProgramWriter, own: Sequence[Node], dimensions: DecoderDimensions, i: int
) -> tuple[Node, Node]:
    """Return the keys and the values of a layer, normed in models that norm them."""
    key, value = own[0], own[-1]
    if dimensions.query_key_norm:
        name = f"decoder.layers.{i}.attention.key_norm"
        key = _normed_heads(write, key, name, dimensions, i)
    if dimensions.value_norm:
        size = dimensions.head_dim_of(i)
        heads = write.step("unflatten", value, -1, [-1, size])
        weight = Constant(_NO_WEIGHT.format(size))
        normed = write.step("rms_norm", heads, weight, dimensions.norm_eps)
        value = write.step("flatten", normed, -2)
    return key, value


def _at_positions(write: ProgramWriter, table: Constant, width: int) -> Node:
    """Return the rows of a table [positions, width] for the new tokens, [rows, new, width]."""
    rows = write.step("index_select", table, 0, write.step("flatten", positions(write)))
    return write.step("view", rows, [write.size(TOKENS, 0), write.size(TOKENS, 1), width])


def _normed_heads(
    write: ProgramWriter, x: Node, name: str, dimensions: DecoderDimensions, i: int
) -> Node:
    if dimensions.whole_query_key_norm:
        return _norm(write, x, name, dimensions)
    heads = write.step("unflatten", x, -1, [-1, dimensions.head_dim_of(i)])
    if not dimensions.own_query_key_norms:
        return write.step("flatten", _norm(write, heads, name, dimensions), -2)
    plain = Constant(_ONES), Constant(_ZEROS), dimensions.norm_eps
    normed = write.step("flatten", write.step("layer_norm", heads, *plain), -2)
    return write.step("mul", normed, Constant(f"{name}.weight"))


def _rotary_tables(dimensions: DecoderDimensions, i: int) -> dict[str, Constant]:
    """Return a layer's tables of angles, and of factors on queries where it has such."""
    rotary = dimensions.rotary_of(i)
    if rotary is None:
        return {}
    kind = _rotary_kinds(dimensions).index((rotary, dimensions.head_dim_of(i)))
    names = ["cosines", "sines", *(["query_scales"] if rotary.query_beta else [])]
    return {name: Constant(f"{name}_{kind}") for name in names}


def _feed_forward(
    write: ProgramWriter, x: Node, before: Node, block: str, dimensions: DecoderDimensions
) -> Node:
    """Add the feed-forward of `before` to `x`."""
    return _added(write, x, _inner(write, before, block, dimensions), block, "down", dimensions)


def _inner(write: ProgramWriter, before: Node, block: str, dimensions: DecoderDimensions) -> Node:
    up, bias = f"{block}.{_up(dimensions)}", dimensions.feed_forward_bias
    epilogue = {"gate" if dimensions.gated else "activation": dimensions.activation}
    return write.linear(before, up, bias=bias, **epilogue)


def _feed_forward_and_experts(
    write: ProgramWriter, x: Node, before: Node, layer: str, dimensions: DecoderDimensions
) -> Node:
    """Add a feed-forward of `before` and experts of `x` to `x`, each with norms of its own."""
    block, experts = f"{layer}.feed_forward", f"{layer}.experts"
    inner, bias = _inner(write, before, block, dimensions), dimensions.feed_forward_bias
    product = write.linear(inner, f"{block}.down", bias=bias)
    product = _norm(write, product, f"{block}_own_norm", dimensions)
    routed = _norm(write, x, f"{experts}.router_norm", dimensions)
    normed = _norm(write, x, f"{experts}_norm", dimensions)
    mixed = mixtures.mixture(write, normed, experts, dimensions, routed)
    mixed = _norm(write, mixed, f"{experts}_post_norm", dimensions)
    whole = _norm(write, write.step("add", product, mixed), f"{block}_post_norm", dimensions)
    return write.step("add", x, whole)


def _added(
    write: ProgramWriter, x: Node, inner: Node, block: str, name: str, dimensions: DecoderDimensions
) -> Node:
    """Add a block's last product, normed in models that norm it, to its input."""
    bias = dimensions.out_bias if name == "out" else dimensions.feed_forward_bias
    if not dimensions.post_norms:
        return write.linear(inner, f"{block}.{name}", bias=bias, residual=x)
    product = write.linear(inner, f"{block}.{name}", bias=bias)
    return write.step("add", x, _norm(write, product, f"{block}_post_norm", dimensions))


def _experts(
    write: ProgramWriter, x: Node, normed: Node, block: str, dimensions: DecoderDimensions
) -> Node:
    mixed = mixtures.mixture(write, normed, block, dimensions)
    if dimensions.post_norms:
        mixed = _norm(write, mixed, f"{block}_post_norm", dimensions)
    return write.step("add", x, mixed)


def is_rotary(dimensions: DecoderDimensions) -> bool:
    """Tell whether any layer rotates queries and keys."""
    return bool(_rotary_kinds(dimensions))


def _rotary_kinds(dimensions: DecoderDimensions) -> list[tuple[Rotary, int]]:
    """Return the layers' rotary embeddings with the sizes of their heads, each once."""
    kinds = [(dimensions.rotary_of(i), dimensions.head_dim_of(i)) for i in range(dimensions.layers)]
    return list(dict.fromkeys((rotary, size) for rotary, size in kinds if rotary is not None))


def constants(
    dimensions: DecoderDimensions,
    tensors: Mapping[str, NDArray[np.generic]],  # noqa: ARG001
) -> dict[str, NDArray[np.generic]]:
    """Return the tables of angles, of factors on queries, and what norms without weights have."""
    tables: dict[str, NDArray[np.generic]] = {}
    for i, (rotary, size) in enumerate(_rotary_kinds(dimensions)):
        cosines, sines = rotary.tables(dimensions.max_positions, size)
        tables |= {f"cosines_{i}": cosines, f"sines_{i}": sines}
        if rotary.query_beta:
            tables[f"query_scales_{i}"] = rotary.query_scales(dimensions.max_positions)
    if dimensions.norm == "layer" and not dimensions.norm_bias:
        tables[_NO_BIAS] = np.zeros(dimensions.width, np.float32)
    if dimensions.value_norm:
        for size in {dimensions.head_dim_of(i) for i in range(dimensions.reading)}:
            tables[_NO_WEIGHT.format(size)] = np.ones(size, np.float32)
    if space := dimensions.state_space:
        tables |= space.constants()
    if dimensions.own_query_key_norms:
        tables[_ONES] = np.ones(dimensions.head_dim, np.float32)
        tables[_ZEROS] = np.zeros(dimensions.head_dim, np.float32)
    return tables


def _probe(dimensions: DecoderDimensions) -> Probe:
    """Return prompts as long as the longest window of up to 600 positions, if there are so many.

    So every step wraps around its ring. Rings of longer windows do not wrap here.
    """
    windows = [window for window in dimensions.windows if window and window <= _LONGEST_PROMPT]
    most = dimensions.max_positions - PROBE_STEPS
    length = max(min(max(windows, default=_PROMPT), most), 1)
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, dimensions.vocab_size, length) for _ in range(2)]
    return Probe(prompts=prompts)


def _calibration_problem(dimensions: DecoderDimensions) -> str:
    if dimensions.experts:
        return f"mixtures of experts have no {CALIBRATED}"
    if dimensions.attention_gate or set(dimensions.mixers) - {ATTENTION}:
        return f"models with other layers than attention have no {CALIBRATED}"
    if dimensions.layer_head_dims or dimensions.layer_kv_heads or dimensions.sources:
        return f"models whose layers differ have no {CALIBRATED}"
    return ""


DECODER = Family(
    name="decoder",
    title="a decoder-only model",
    task="generate",
    interface="decoder-only",
    dimensions=DecoderDimensions,
    positions=lambda dimensions: dimensions.max_positions,
    caches=caches,
    programs=_programs,
    written=_written,
    constants=constants,
    tensor_shapes=tensor_shapes,
    precision=PrecisionRoles(
        outliers=("gate",),
        smoothed=True,
        int8_self_cache=True,
    ),
    probe=_probe,
    model_class="kvcast.text.model:TextModel",
    work_class="kvcast.inspect.work.decoder:DecoderWork",
    rotary=is_rotary,
    calibration_problem=_calibration_problem,
)
