"""Signatures of programs, and layouts of caches: names, shapes and dtypes as data.

A size that callers vary has a name in a shape: "rows", "new", "asked", "capacity", "ring",
"inputs", "batch", "source", "n", and in audio encoders others, such as "frames".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.spec.program import Program
from kvcast.spec.sizes import MOST_POSITIONS, require_one_of, require_positive

Shape = tuple[int | str, ...]
"""Sizes of a tensor; a name stands for a size that callers vary."""

SOURCE_LENGTHS = "source_lengths"
"""The argument of `encode`, [batch], with how many positions each input becomes."""

SOURCE = "source"
"""The argument of `encode`, [batch, t], that has as many positions as its results, if they vary."""

ALIGNMENT_QUERIES = "alignment_queries"
"""The result of `decode` with the queries of alignment heads, in models with alignment heads."""

_ATTENDED = {"linear": "capacity", "ring": "ring"}
_CAPACITIES = {
    **_ATTENDED,
    "latent": "capacity",
    "index": "capacity",
    "inputs": "inputs",
    "state": "inputs",
}


@dataclass(frozen=True, kw_only=True)
class Argument:
    """An input tensor of a program; `example`: values that it may have, zeros if empty."""

    name: str
    shape: Shape
    dtype: str
    example: tuple[int, ...] = ()

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return (self.shape,)


LENGTHS_OF_SOURCES = Argument(name=SOURCE_LENGTHS, shape=("batch",), dtype="int32", example=(5, 3))
"""It, where sources differ in length; `decode` takes it too where it attends to them."""


@dataclass(frozen=True, kw_only=True)
class CacheArgument:
    """A key and a value for each layer, or other `parts`; `dtype` is of keys and values."""

    name: str
    shapes: tuple[Shape, ...]
    dtype: str = "float32"
    parts: tuple[tuple[str, ...], ...] = ()

    @property
    def names(self) -> list[str]:
        return _part_names(self.name, self._parts)

    @property
    def dtypes(self) -> list[str]:
        each = [part for layer in self._parts for part in layer]
        return [self.dtype if part in QUANTIZED else "float32" for part in each]

    @property
    def _parts(self) -> Sequence[Sequence[str]]:
        return self.parts or (KEY_VALUE,) * (len(self.shapes) // len(KEY_VALUE))


@dataclass(frozen=True, kw_only=True)
class ProgramSignature:
    """The arguments of one program and the names of its flattened results, in order."""

    arguments: tuple[Argument | CacheArgument, ...]
    outputs: tuple[str, ...]

    @property
    def inputs(self) -> list[str]:
        return [name for argument in self.arguments for name in _names(argument)]

    @property
    def sizes(self) -> set[str]:
        shapes = [shape for argument in self.arguments for shape in argument.shapes]
        return {size for shape in shapes for size in shape if isinstance(size, str)}

    @property
    def kinds(self) -> list[str]:
        """Kinds of the self caches that are attended to, each once: "linear", "ring"."""
        return [kind for kind, size in _ATTENDED.items() if size in self.sizes]


def _names(argument: Argument | CacheArgument) -> Sequence[str]:
    if isinstance(argument, Argument):
        return [argument.name]
    return argument.names


def cache_names(prefix: str, layers: int) -> list[str]:
    return _part_names(prefix, (KEY_VALUE,) * layers)


def _part_names(prefix: str, parts: Sequence[Sequence[str]]) -> list[str]:
    return [f"{prefix}_{part}_{i}" for i, layer in enumerate(parts) for part in layer]


@dataclass(frozen=True, kw_only=True)
class CacheLayers:
    """Consecutive cache layers of one shape, keys and values [rows, heads, capacity, head_dim].

    `kind` is "linear" (capacity is the longest sequence), "ring" (capacity is the window), "latent"
    (linear, one tensor for keys and values of all heads: a latent and a rotated key), "index"
    (linear, index keys alone, of a layer that reads another's latents), "inputs" (the last inputs
    of a convolution in one tensor, not keys and values; capacity is its length), "state" (a matrix
    [heads, capacity, head_dim] that each token rewrites, and the last inputs of a convolution
    before it), "cross" (filled once by encode) or "embeddings" (filled by encode too: vectors of
    `head_dim` values that token ids of a prompt refer to, in one tensor). `dtype` is a self cache's
    dtype, such as "float32". `length` and `channels` are of the convolution before a state; 0:
    there is none. The last `rotated` channels of a latent line are the rotated key; `index` is the
    width of the layer's index keys, 0: it has none.
    """

    kind: str
    layers: int
    heads: int
    head_dim: int
    capacity: int
    dtype: str = "float32"
    length: int = 0
    channels: int = 0
    rotated: int = 0
    index: int = 0

    def __post_init__(self) -> None:
        require_one_of("a cache's kind", self.kind, _KINDS)
        require_one_of("a cache's dtype", self.dtype, _DTYPES)
        names = ("layers", "heads", "head_dim", "capacity")
        require_positive(**{name: getattr(self, name) for name in names})
        if max(self.layers, self.heads, self.head_dim, self.capacity) > MOST_POSITIONS:
            raise KvcastError("a cache is larger than any model's")

    @property
    def parts(self) -> tuple[str, ...]:
        if self.kind == "state" and not self.length:
            return ("state",)
        if self.index:
            return ("latent", "index")
        return _PARTS.get(self.kind, KEY_VALUE)

    @property
    def sizes(self) -> tuple[tuple[int, int | None, int], ...]:
        """Heads, positions (None: the runtime's choice) and head_dim of each tensor of a layer."""
        if self.index:
            return ((1, None, self.head_dim), (1, None, self.index))
        if self.kind != "state":
            return ((self.heads, None, self.head_dim),) * len(self.parts)
        state = self.heads, self.capacity, self.head_dim
        return ((1, None, self.channels), state) if self.length else (state,)

    def of_dtype(self, dtype: str) -> Self:
        """Keys and values in this dtype; other caches are unchanged."""
        return replace(self, dtype=dtype) if set(self.parts) & QUANTIZED else self


def decode_program(
    caches: Sequence[CacheLayers],
    results: Sequence[str],
    *inputs: Argument | CacheArgument,
) -> ProgramSignature:
    """Describe a program that appends tokens to self caches, and returns `results` and these."""
    each = [layers for layers in caches for _ in range(layers.layers)]
    shapes = tuple(
        ("rows", heads, positions or _CAPACITIES[layers.kind], size)
        for layers in each
        for heads, positions, size in layers.sizes
    )
    past, present = (
        CacheArgument(name=name, shapes=shapes, parts=tuple(layers.parts for layers in each))
        for name in ("past", "present")
    )
    return ProgramSignature(
        arguments=(
            Argument(name="tokens", shape=("rows", "new"), dtype="int64"),
            Argument(name="lengths", shape=("rows",), dtype="int32"),
            Argument(name="offsets", shape=("asked",), dtype="int64", example=(0, 2)),
            past,
            *inputs,
        ),
        outputs=(*results, *present.names),
    )


def encode_program(cross: CacheLayers, *inputs: Argument) -> ProgramSignature:
    """Describe a program that returns cross caches, or embeddings for the decoder."""
    names = _part_names("cross", (cross.parts,) * cross.layers)
    return ProgramSignature(arguments=inputs, outputs=tuple(names))


def cross_argument(cross: CacheLayers, positions: int | str) -> CacheArgument:
    shape = ("batch", cross.heads, positions, cross.head_dim)
    parts = (cross.parts,) * cross.layers
    shapes = (shape,) * (len(cross.parts) * cross.layers)
    return CacheArgument(name="cross", shapes=shapes, parts=parts)


LISTEN, FINISH = "listen", "finish"
NEXT = "next_"
"""Names of a streamed source's programs; begins the names of what `listen` leaves."""


@dataclass(frozen=True, kw_only=True)
class StreamedSource:
    """Streaming encoding of a source, by programs over the weights of `encode`.

    `listen` takes "samples", the count of positions "done" and its previous state by name, and
    returns cross keys and values that later audio cannot change, and its new state, named NEXT and
    the name. `finish` takes the same without samples, and returns the last positions.
    """

    programs: Mapping[str, Program]  # `listen` and `finish`
    left: Mapping[str, tuple[int, int]]  # initial shapes of `listen`'s state [positions, width]


def empty_caches(caches: Sequence[CacheLayers], positions: int) -> dict[str, NDArray[np.float32]]:
    """Self-attention caches of one row, by the names of `decode`'s inputs."""
    each = [layers for layers in caches if layers.kind not in ENCODED for _ in range(layers.layers)]
    names = _part_names("past", [layers.parts for layers in each])
    sizes = [
        (1, heads, held or max(positions, _read(layers)), size)
        for layers in each
        for heads, held, size in layers.sizes
    ]
    return {n: np.zeros(shape, np.float32) for n, shape in zip(names, sizes, strict=True)}


def _read(layers: CacheLayers) -> int:
    return layers.capacity if layers.kind == "inputs" else layers.length


_KINDS = ("linear", "ring", "latent", "index", "inputs", "state", "cross", "embeddings")
_PARTS = {
    "latent": ("latent",),
    "index": ("index",),
    "inputs": ("inputs",),
    "state": ("inputs", "state"),
    "embeddings": ("embeddings",),
}
ENCODED = ("cross", "embeddings")
"""Kinds that `encode` fills, in slots of inputs."""
KEY_VALUE = ("key", "value")
"""Names of the tensors of a layer with attention."""
QUANTIZED = frozenset({*KEY_VALUE, "latent", "index"})
"""Names of the tensors that have a cache's dtype; others are fp32."""
_DTYPES = ("float32", "float16", "bfloat16", "int8")


@dataclass(frozen=True, kw_only=True)
class KeysAndValues:
    heads: int
    head_dim: int
    window: int | None  # the sliding window, the query's position included; None: full attention
    source: int | None = None  # earlier layer whose cache is read instead; None: its own


class EncoderDecoderSizes(Protocol):
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
    """Describe caches of layers that have one: rings of the smallest size, linear if shared."""
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
    return CacheLayers(kind="embeddings", layers=1, heads=1, head_dim=width, capacity=positions)
