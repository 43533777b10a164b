"""Layout of caches, for every runtime. Knows sizes and no family."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from kvcast.errors import KvcastError
from kvcast.spec.sizes import MOST_POSITIONS, require_one_of, require_positive

_KINDS = ("linear", "ring", "inputs", "state", "cross", "embeddings")
_PARTS = {
    "inputs": ("inputs",),
    "state": ("inputs", "state"),
    "embeddings": ("embeddings",),
}
ENCODED = ("cross", "embeddings")
"""Kinds that `encode` fills, in slots of inputs."""
KEY_VALUE = ("key", "value")
"""Names of the tensors of a layer with attention."""
_DTYPES = ("float32", "float16", "bfloat16", "int8")


@dataclass(frozen=True, kw_only=True)
class CacheLayers:
    """Consecutive cache layers of one shape, keys and values [rows, heads, capacity, head_dim].

    `kind` is "linear" (capacity is the longest sequence), "ring" (capacity is the window), "inputs"
    (the last inputs of a convolution in one tensor, not keys and values; capacity is its length),
    "state" (a matrix [heads, capacity, head_dim] that each token rewrites, and the last inputs of
    a convolution before it), "cross" (filled once by encode) or "embeddings" (filled by encode too:
    vectors of `head_dim` numbers that tokens of a prompt stand for, in one tensor). `dtype` is a
    self cache's dtype, such as "float32". `length` and `channels` are of the convolution before a
    state; 0: there is none.
    """

    kind: str
    layers: int
    heads: int
    head_dim: int
    capacity: int
    dtype: str = "float32"
    length: int = 0
    channels: int = 0

    def __post_init__(self) -> None:
        require_one_of("a cache's kind", self.kind, _KINDS)
        require_one_of("a cache's dtype", self.dtype, _DTYPES)
        names = ("layers", "heads", "head_dim", "capacity")
        require_positive(**{name: getattr(self, name) for name in names})
        if max(self.layers, self.heads, self.head_dim, self.capacity) > MOST_POSITIONS:
            raise KvcastError("a cache is larger than any model's")

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of a layer's tensors."""
        if self.kind == "state" and not self.length:
            return ("state",)
        return _PARTS.get(self.kind, KEY_VALUE)

    @property
    def sizes(self) -> tuple[tuple[int, int | None, int], ...]:
        """Heads, positions and size of a head of each of a layer's tensors.

        Positions are None where a runtime has as many as it wants.
        """
        if self.kind != "state":
            return ((self.heads, None, self.head_dim),) * len(self.parts)
        state = self.heads, self.capacity, self.head_dim
        return ((1, None, self.channels), state) if self.length else (state,)

    def of_dtype(self, dtype: str) -> Self:
        """Return the layers with keys and values of a dtype; others stay as they are."""
        return self if self.kind in _PARTS else replace(self, dtype=dtype)


@dataclass(frozen=True, kw_only=True)
class KeysAndValues:
    """Keys and values of a layer.

    Attributes:
        heads: number of their heads.
        head_dim: size of a head.
        window: how many positions a query sees, its own included; None: all.
        source: number of an earlier layer whose cache is read instead; None: the layer has its own.

    """

    heads: int
    head_dim: int
    window: int | None
    source: int | None = None


class EncoderDecoderSizes(Protocol):
    """The dimensions of a model with an encoder that determine its caches."""

    @property
    def decoder_layers(self) -> int:
        """Number of layers of the decoder."""

    @property
    def decoder_heads(self) -> int:
        """Number of heads of each."""

    @property
    def head_dim(self) -> int:
        """Size of a head."""

    @property
    def source_positions(self) -> int:
        """Length of the longest encoded source."""

    @property
    def target_positions(self) -> int:
        """Length of the longest target."""


def self_caches(layers: Sequence[KeysAndValues], max_positions: int) -> tuple[CacheLayers, ...]:
    """Describe self caches, one entry for each layer that has its own, in order.

    A ring's capacity is its window, the smallest possible. What later layers read is no ring: a
    chunk displaces positions that its own queries see, and these layers come when it is written.
    """
    read = {layer.source for layer in layers}
    return tuple(
        CacheLayers(
            kind="ring" if layer.window and i not in read else "linear",
            layers=1,
            heads=layer.heads,
            head_dim=layer.head_dim,
            capacity=layer.window if layer.window and i not in read else max_positions,
        )
        for i, layer in enumerate(layers)
        if layer.source is None
    )


def self_and_cross_caches(dimensions: EncoderDecoderSizes) -> tuple[CacheLayers, ...]:
    """Describe the self caches and the cross caches of a decoder over encoded sources."""
    capacities = {"linear": dimensions.target_positions, "cross": dimensions.source_positions}
    return tuple(
        CacheLayers(
            kind=kind,
            layers=dimensions.decoder_layers,
            heads=dimensions.decoder_heads,
            head_dim=dimensions.head_dim,
            capacity=capacity,
        )
        for kind, capacity in capacities.items()
    )


def embeddings_cache(positions: int, width: int) -> CacheLayers:
    """Describe what `encode` gives a decoder without cross-attention to read."""
    return CacheLayers(kind="embeddings", layers=1, heads=1, head_dim=width, capacity=positions)
