"""Dimensions of decoder-only models: all that a program depends on, checked."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any, Self

from kvcast.errors import KvcastError
from kvcast.families.alternating import Alternating, check_sparsities
from kvcast.families.feed_forwards import Routing, check_mixtures
from kvcast.families.latents import Latents, check_latents
from kvcast.families.mixers import ATTENTION, DELTA, STATE_SPACE, DeltaNet, StateSpace, check_mixers
from kvcast.families.programs import KeysAndValues
from kvcast.spec.position_encodings import Rotary
from kvcast.spec.sizes import (
    ACTIVATIONS,
    MOST_POSITIONS,
    require_layers,
    require_one_of,
    require_positions,
    require_positive,
)

SQUARED, XIELU = UNGATED = ("relu_squared", "xielu")
"""Activations of feed-forwards without a gate alone."""
NORMS = ("rms", "layer")
_LEAST_FACTOR = 1e-4  # published ones are 0.1 and more
_OF_LAYERS = (
    *("unrotated", "dense_layers", "layer_head_dims", "layer_kv_heads", "layer_inners"),
    *("sources", "keys_as_values", "rotary_bases", "without_feed_forward", "beside"),
    "sparsities",
)
"""Fields of lists of layers."""


@dataclass(frozen=True, kw_only=True)
class DecoderDimensions:
    architecture: str  # the checkpoint's name for it, for people only: "llama", "mistral", ...
    vocab_size: int
    width: int
    inner: int  # inner width of the feed-forward (of one expert)
    heads: int
    kv_heads: int  # number of key and value heads; `heads` is a multiple
    head_dim: int
    windows: tuple[int | None, ...]  # each layer's, the query's position included; None: full
    max_positions: int
    rotary: Rotary | None  # without a window, or for all unless `window_rotary`; None: none
    norm_eps: float
    attention_scale: float  # factor on scores
    scaled_by_depth: bool = False  # divided by the layer's index, too, from 1 (some GPT-2)
    window_rotary: Rotary | None = None  # for layers with a window (Gemma 3)
    unrotated: tuple[int, ...] = ()  # indices of further layers without rotation (SmolLM 3)
    rotary_bases: tuple[float, ...] = ()  # where layers differ (Granite SWA); 0: no rotation
    learned_positions: bool = False  # added to tokens' embeddings (GPT-2)
    norm: str = "rms"
    norm_bias: bool = False  # whether layer norms have biases (all but Cohere's)
    activation: str = "silu"  # one of `sizes.ACTIVATIONS`, or of UNGATED without a gate
    gated: bool = True  # all but StarCoder 2, GPT-2's kin and others
    qkv_limit: float = 0.0  # clamp of queries, keys, values before rotation (OLMo); 0: none
    qkv_bias: bool = False  # whether query, key and value have biases (Qwen 2)
    out_bias: bool = False  # whether attention's output projection has a bias (some Llamas)
    feed_forward_bias: bool = False
    head_bias: bool = False  # whether the head has a bias (Phi)
    query_key_norm: bool = False  # of each head before rotation (Qwen 3, Gemma 3)
    late_query_key_norm: bool = False  # whether that norm follows rotation (HunYuan)
    whole_query_key_norm: bool = False  # whether that norm is over all heads together (OLMo 2)
    own_query_key_norms: bool = False  # other weights for each head (StableLM, Cohere)
    pre_norms: bool = True  # norms before attention and feed-forward (all but OLMo 2 and EXAONE 4)
    post_norms: bool = False  # norms after attention and feed-forward (Gemma 2 and 3, OLMo 2)
    parallel: bool = False  # whether the feed-forward reads what attention reads (Cohere)
    shared_norm: bool = False  # whether both read one norm, attention's (Cohere; not GPT-NeoX)
    post_norm_eps: float | None = None  # of norms after attention and feed-forward; None: the same
    embedding_norm: bool = False  # whether embeddings are normed, without a weight (Muse Glimmer)
    embedding_scale: float = 1.0  # factor on embeddings (Gemma: square root of the width)
    attention_softcap: float = 0.0  # c in c tanh(x / c), on attention's logits; 0: none
    logit_softcap: float = 0.0  # the same, on the model's logits; 0: none
    logit_scale: float = 1.0  # factor on the head's input (Cohere's and Granite's on logits)
    tied: bool = True
    experts: int = 0  # number of experts in each feed-forward; 0: no mixture
    experts_per_token: int = 0
    experts_normalised: bool = True  # weights sum to 1 over a token's experts (Mixtral)
    routing: Routing = field(default_factory=Routing)
    shared_inner: int = 0  # inner width of an expert that all tokens go through (Qwen 2); 0: none
    shared_gated: bool = True  # whether a sigmoid gate scales it (not Granite 4)
    dense_layers: tuple[int, ...] = ()  # layers with a feed-forward instead of experts
    dense_inner: int = 0
    expert_bias: bool = False  # whether the router and the experts' matrices have biases (GPT-OSS)
    # upper clamp of gates, clamp of both sides of up projections, which get 1 added (GPT-OSS)
    swiglu_limit: float = 0.0  # 0: none
    swiglu_alpha: float = 0.0  # with a limit, factor on gates in their sigmoid
    sinks: bool = False  # learned logit per head in the softmax, without a value (GPT-OSS)
    experts_post_norm: bool = False  # a norm after experts alone (A.X K1)
    expert_inner: int = 0  # of experts in addition to a feed-forward (Gemma 4); 0: in its place
    without_feed_forward: tuple[int, ...] = ()  # layers of a mixer alone (Nemotron-H)
    beside: tuple[int, ...] = ()  # layers that mix what the one before them mixes (Falcon-H1)
    mixers: tuple[str, ...] = ()  # each layer's, of `convolutions.MIXERS`; empty: attention
    convolution: int = 0  # length of a convolution, its own position included; 0: there is none
    convolution_bias: bool = False
    delta: DeltaNet | None = None  # sizes of layers with delta nets (Qwen 3.5)
    state_space: StateSpace | None = None  # sizes of layers with state spaces (Granite 4)
    latents: Latents | None = None  # in place of keys and values of attention (DeepSeek V2)
    attention_gate: bool = False  # times the sigmoid of a projection (Qwen 3.5)
    head_gates: bool = False  # times the sigmoid of a projection to a number per head (LFM3)
    layer_head_dims: tuple[int, ...] = ()  # where layers differ (Gemma 4)
    layer_kv_heads: tuple[int, ...] = ()  # where layers differ
    layer_inners: tuple[int, ...] = ()  # where layers differ
    sources: tuple[int, ...] = ()  # whose cache each layer reads, last if another's; empty: its own
    keys_as_values: tuple[int, ...] = ()  # layers whose values are keys before norm, rotation
    value_norm: bool = False  # whether heads of values are normed, without a weight
    layer_embedding: int = 0  # width of per-layer token embeddings (Gemma 4); 0: none
    layer_vocabulary: int = 0  # rows of their table; later tokens have the first's; 0: vocab_size
    alternating: Alternating | None = None  # streams of a token (Gemma 3n)
    sparsities: tuple[float, ...] = ()  # share of each layer's gates that are zero (Gemma 3n)
    layer_scales: bool = False  # whether each layer's result is multiplied by a learned scalar

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "width", "inner", "heads", "kv_heads", "head_dim", "max_positions")
        require_positive(**{name: getattr(self, name) for name in sizes})
        require_positions(max_positions=self.max_positions)
        require_layers(self.layers)
        if not self.windows or not all(map(_is_window, self.windows)):
            raise KvcastError("windows must have one or more layers, each None or 1 or more")
        self._check_heads()
        if not all(type(i) is int and 0 <= i < self.layers for i in self.unrotated):
            raise KvcastError(f"layers without rotation must be some of {self.layers} layers")
        require_one_of("activation", self.activation, (*ACTIVATIONS, *UNGATED))
        if self.activation in UNGATED and self.gated:
            raise KvcastError(f"gates with {self.activation} are not supported")
        if not 0 <= self.qkv_limit < math.inf:
            raise KvcastError(f"qkv_limit {self.qkv_limit} must be a finite number, or 0")
        require_one_of("norm", self.norm, NORMS)
        self._check_norms()
        factors = ("norm_eps", "attention_scale", "embedding_scale", "logit_scale")
        for name in (*factors, "post_norm_eps"):
            value = getattr(self, name)
            if not (name not in factors and value is None) and not 0 < value < math.inf:
                raise KvcastError(f"{name} must be a finite number above 0")
        check_mixtures(self)
        check_mixers(self)
        check_latents(self)
        self._check_sources()
        self._check_blocks()
        self._check_streams()
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
        if len(self.rotary_bases) not in (0, self.layers):
            raise KvcastError(f"{len(self.rotary_bases)} rotary bases are not one for each layer")
        for i in range(self.layers):
            if rotary := self.rotary_of(i):
                rotary.check(self.rotary_dim_of(i))
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
        if self.reading < self.layers and self.late_query_key_norm:
            raise KvcastError("norms after rotation are not supported where layers share caches")

    def _check_blocks(self) -> None:
        for layers in (self.without_feed_forward, self.beside):
            are_layers = all(type(i) is int and 0 <= i < self.layers for i in layers)
            if not are_layers or len(set(layers)) != len(layers):
                raise KvcastError(f"layers {list(layers)} are not some of {self.layers}, each once")
        if not all(i - 1 in self.without_feed_forward for i in self.beside):
            raise KvcastError("only a layer without a feed-forward has another beside it")
        if (self.without_feed_forward or self.beside) and (self.parallel or self.sources):
            raise KvcastError("parallel blocks, and layers that share caches, have feed-forwards")

    def _check_streams(self) -> None:
        check_sparsities(self.sparsities, self.layers)
        if self.sparsities and (self.experts or not self.gated):
            raise KvcastError("only gates of feed-forwards without experts are sparse")
        if self.layer_vocabulary:
            require_positive(layer_vocabulary=self.layer_vocabulary)
        if self.alternating is None:
            return
        plain = self.norm == "rms" and self.pre_norms and self.post_norms and not self.parallel
        others = self.experts or set(self.mixers) - {ATTENTION} or self.without_feed_forward
        if not plain or others or not self.layer_embedding or self.layer_scales:
            raise KvcastError("streams of a token are of layers as Gemma 3n's")

    def _attends(self, layer: int) -> tuple[Any, ...]:
        sizes = self.head_dim_of(layer), self.kv_heads_of(layer)
        return *sizes, self.windows[layer], self.rotary_of(layer)

    def _check_norms(self) -> None:
        if self.norm_bias and self.norm == "rms":
            raise KvcastError("RMS norms with biases are not supported")
        own = self.own_query_key_norms
        if self.query_key_norm and self.norm == "layer" and not (self.norm_bias or own):
            raise KvcastError("layer norms of queries and keys without biases are not supported")
        plain = self.value_norm or self.embedding_norm or self.layer_embedding
        if self.norm != "rms" and plain:
            raise KvcastError("only RMS norms have no weights, or are of layer embeddings")
        if self.expert_inner and not (self.norm == "rms" and self.pre_norms and self.post_norms):
            raise KvcastError("experts beside a feed-forward have RMS norms before and after")
        if own and (self.norm == "rms" or self.whole_query_key_norm or not self.query_key_norm):
            raise KvcastError("heads have norms of their own in models with layer norms alone")
        if not (self.pre_norms or self.post_norms):
            raise KvcastError("a layer without norms is not supported")
        if self.late_query_key_norm and not self.query_key_norm:
            raise KvcastError("queries and keys without norms have none after rotation")
        if self.attention_gate and self.head_gates:
            raise KvcastError("attention with two gates is not supported")
        if self.shared_norm and not (self.parallel and self.pre_norms):
            raise KvcastError("only parallel blocks share a norm")

    @property
    def layers(self) -> int:
        return len(self.windows)

    def mixer(self, layer: int) -> str:
        return self.mixers[layer] if self.mixers else ATTENTION

    def has_keys(self, layer: int) -> bool:
        """Return whether a layer attends to keys and values: its own, or another's."""
        return self.mixer(layer) == ATTENTION and self.latents is None

    def head_dim_of(self, layer: int) -> int:
        return self.layer_head_dims[layer] if self.layer_head_dims else self.head_dim

    def rotary_dim_of(self, layer: int) -> int:
        """Return the channels of a head that rotary embeddings are of."""
        return self.latents.rotated_dim if self.latents else self.head_dim_of(layer)

    def kv_heads_of(self, layer: int) -> int:
        return self.layer_kv_heads[layer] if self.layer_kv_heads else self.kv_heads

    def inner_of(self, layer: int) -> int:
        return self.layer_inners[layer] if self.layer_inners else self.dense_inner or self.inner

    def deviations(self, layer: int) -> float | None:
        """Return by how many standard deviations a layer's gates exceed their mean; None: any."""
        share = self.sparsities[layer] if self.sparsities else 0.0
        return NormalDist().inv_cdf(share) if share else None

    def keys_and_values(self, layer: int) -> KeysAndValues:
        source = self.sources[layer] if self.sources else layer
        return KeysAndValues(
            heads=self.kv_heads_of(layer),
            head_dim=self.head_dim_of(layer),
            window=self.windows[layer],
            source=None if source == layer else source,
        )

    def projection_widths(self, layer: int) -> tuple[int, ...]:
        """Return the outputs of a layer's projection: queries, own keys and values."""
        reads, size = self.keys_and_values(layer), self.head_dim_of(layer)
        keys = reads.heads * size
        if reads.source is not None:
            return (self.heads * size,)
        return self.heads * size, *([keys] if layer in self.keys_as_values else [keys, keys])

    def mixed_width(self, layer: int) -> int:
        """Return the width of what attention gives its output projection."""
        return self.heads * (self.latents.value_dim if self.latents else self.head_dim_of(layer))

    def norms_of(self, layer: int) -> tuple[bool, bool]:
        """Whether a layer has norms before and after its blocks; with a state, before them."""
        return (True, False) if self.state(layer) else (self.pre_norms, self.post_norms)

    @property
    def reading(self) -> int:
        """Index of the first layer that reads another's cache, as all later ones do."""
        shared = (i for i, source in enumerate(self.sources) if source != i)
        return next(shared, self.layers)

    def state(self, layer: int) -> DeltaNet | StateSpace | None:
        states = {DELTA: self.delta, STATE_SPACE: self.state_space}
        return states.get(self.mixer(layer))

    def rotary_of(self, layer: int) -> Rotary | None:
        if layer in self.unrotated:
            return None
        if self.windows[layer] is not None and self.window_rotary is not None:
            return self.window_rotary
        if self.rotary is None or not self.rotary_bases:
            return self.rotary
        base = self.rotary_bases[layer]
        return replace(self.rotary, base=base) if base else None

    @cached_property
    def rotary_kinds(self) -> list[tuple[Rotary, int]]:
        """Rotary embeddings with the head sizes of their layers, each once."""
        kinds = [(self.rotary_of(i), self.rotary_dim_of(i)) for i in range(self.layers)]
        return list(dict.fromkeys((rotary, size) for rotary, size in kinds if rotary is not None))

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        try:
            rotaries = {name: fields[name] for name in ("rotary", "window_rotary")}
            rebuilt = dict(fields) | {
                "windows": tuple(fields["windows"]),
                "mixers": tuple(fields.get("mixers", ())),
                "routing": Routing(**fields.get("routing", {})),
                "delta": (sizes := fields.get("delta")) and DeltaNet(**sizes),
                "alternating": (sizes := fields.get("alternating")) and Alternating(**sizes),
                "state_space": (sizes := fields.get("state_space")) and StateSpace(**sizes),
                "latents": (sizes := fields.get("latents")) and Latents(**sizes),
                **{name: tuple(fields.get(name, ())) for name in _OF_LAYERS},
                **{name: part and Rotary(**part) for name, part in rotaries.items()},
            }
            return cls(**rebuilt)
        except (TypeError, KeyError) as error:
            raise KvcastError(f"not the dimensions of a decoder-only model: {error}") from None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _is_window(window: object) -> bool:
    return window is None or (type(window) is int and 1 <= window <= MOST_POSITIONS)


def scaled_residuals(*, residual: float, embedding: float, epsilon: float) -> dict[str, float]:
    """Dimensions of a model that multiplies each block's result by `residual` (Granite).

    Embeddings are divided by it instead. Only norms read the hidden state, and their epsilon makes
    up for it, so products still end with their residual.
    """
    if not _LEAST_FACTOR <= residual <= 1 / _LEAST_FACTOR:
        raise KvcastError(f"a factor of {residual} on each block's result is out of range")
    return {"embedding_scale": embedding / residual, "norm_eps": epsilon / residual**2}


def sources_of_types(*, kinds: Sequence[Hashable], shared: int) -> tuple[int, ...]:
    """Return `sources`: the last `shared` layers read the last cache of their kind (Gemma 4)."""
    own = kinds[: len(kinds) - shared]
    if not set(kinds) <= set(own):
        raise KvcastError(f"{shared} layers that share caches leave a kind of layers without any")
    last = {kind: i for i, kind in enumerate(own)}
    return (*range(len(own)), *(last[kind] for kind in kinds[len(own) :]))
