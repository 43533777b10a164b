"""Attention to latents (MLA, DeepSeek-V2, arXiv:2405.04434, section 2.1).

A position's keys and values of all heads are products of one normed vector, the latent, which is
cached in their place, with a rotated part of the key that all heads share. Queries may come from a
latent, too, which is not cached. Mistral Large 4 has layers without the rotated part, and layers
that read an earlier one's latents; caches are numbered without the layers that have none.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.families.blocks import LENGTHS, rows_at_positions, sigmoid
from kvcast.families.mixers import ATTENTION
from kvcast.families.programs import CacheLayers
from kvcast.spec.program import (
    Constant,
    LatentAttention,
    Node,
    PositionSelection,
    ProgramWriter,
)
from kvcast.spec.sizes import MOST_POSITIONS, require_positive

if TYPE_CHECKING:
    from kvcast.families.decoder_dimensions import DecoderDimensions

_SELECT = "select_positions"
_GIVEN = LatentAttention._fields.index("cosines")
_ASKED = PositionSelection._fields.index("cosines")
"""Arguments of operations that are not keywords."""
_INDEX_EPSILON = 1e-6  # of the norm of index keys
_KEYS, _ABSORB = "decoder.layers.{}.attention.key_b", "decoder.layers.{}.attention.absorb"
_LOGS = "logarithms_of_positions"


@dataclass(frozen=True, kw_only=True)
class Indexer:
    """A small attention that chooses the positions that each query reads (DeepSeek V3.2)."""

    heads: int
    dim: int  # of a head, and of the one key of a position
    count: int  # of positions that a query reads; queries without latents are of normed inputs
    followers: tuple[int, ...] = ()  # layers that read what an earlier one chose (GLM 5)

    def __post_init__(self) -> None:
        object.__setattr__(self, "followers", tuple(self.followers))  # a list in manifests
        require_positive(heads=self.heads, dim=self.dim, count=self.count)
        if max(self.heads, self.dim, self.count) > MOST_POSITIONS:
            raise KvcastError("an indexer is larger than any model's")


@dataclass(frozen=True, kw_only=True)
class Latents:
    rank: int  # width of a latent
    query_rank: int  # width of a query's; 0: queries are projected without one
    plain_dim: int  # channels of a head's queries and keys that are not rotated
    rotated_dim: int  # channels after them that are, of keys the same in all heads; where a layer
    # does not rotate (`unrotated`), more plain ones
    value_dim: int  # of a head
    norm_eps: float  # of latents' norms
    bias: bool = False  # whether the projections to latents have biases
    indexer: Indexer | None = None  # None: queries read all positions
    sources: tuple[int, ...] = ()  # whose latents each layer reads; empty: its own
    # whether each head's queries, also an indexer's, are multiplied by a ln(position + 1) + b
    scaled_queries: bool = False
    head_gate: bool = False  # whether sigmoids of a projection scale the heads' results (Ling 3)

    def __post_init__(self) -> None:
        if isinstance(self.indexer, dict):  # as manifests have it
            object.__setattr__(self, "indexer", Indexer(**self.indexer))
        object.__setattr__(self, "sources", tuple(self.sources))  # a list in manifests
        if self.indexer and self.indexer.dim < self.rotated_dim:
            raise KvcastError("an indexer's queries are no narrower than their rotated channels")
        names = ("rank", "plain_dim", "rotated_dim", "value_dim")
        require_positive(**{name: getattr(self, name) for name in names})
        if self.query_rank:
            require_positive(query_rank=self.query_rank)
        if self.rotated_dim % 2:
            raise KvcastError(f"rotated channels come in pairs, not {self.rotated_dim}")
        if max(self.rank, self.query_rank, self.plain_dim, self.value_dim) > MOST_POSITIONS:
            raise KvcastError("latents are larger than any model's")
        if not 0 < self.norm_eps < math.inf:
            raise KvcastError("norm_eps must be a finite number above 0")

    @property
    def head_dim(self) -> int:
        """Channels of a head's queries and keys."""
        return self.plain_dim + self.rotated_dim

    def chooses(self, layer: int) -> bool:
        """Return whether a layer computes top-k indices, rather than reuse an earlier layer's."""
        return self.indexer is not None and layer not in self.indexer.followers

    def source(self, layer: int) -> int:
        return self.sources[layer] if self.sources else layer

    def rotated(self, layer: int, sizes: "DecoderDimensions") -> int:
        return 0 if layer in sizes.unrotated else self.rotated_dim

    def cache(self, layer: int, sizes: "DecoderDimensions") -> CacheLayers | None:
        """Return a layer's cache; None if it reads another's and has no index either."""
        index = self.indexer.dim if self.indexer and self.chooses(layer) else 0
        own, rotated = self.source(layer) == layer, self.rotated(layer, sizes)
        if not (own or index):
            return None
        return CacheLayers(
            kind="latent" if own else "index",
            layers=1,
            heads=1,
            head_dim=self.rank + rotated if own else index,
            capacity=sizes.max_positions,
            rotated=rotated if own else 0,
            index=index if own else 0,
        )

    def attend(
        self, write: ProgramWriter, normed: Node, i: int, sizes: "DecoderDimensions", **rotary: Any
    ) -> Node:
        """[rows, new, width] to [rows, new, heads * value_dim]; `rotary`: its tables by name."""
        layer, width, heads = f"decoder.layers.{i}.attention", sizes.width, sizes.heads
        source = normed
        if self.query_rank:
            shape, name = (self.query_rank, width), f"{layer}.query_latent"
            projected = write.linear(normed, name, shape, bias=self.bias)
            source = write.rms_norm(projected, f"{name}_norm", self.query_rank, self.norm_eps)
        shape = heads * self.head_dim, self.query_rank or width
        query = write.linear(source, f"{layer}.query", shape)
        if scales := rotary.pop("query_scales", None):
            query = write.step("mul", query, rows_at_positions(write, scales, 1))
        query = self._scaled(write, query, f"{layer}.query_scaling", heads)
        latent, key = self._written(write, normed, i, sizes)
        if self.indexer:
            rotary["selected"] = self._selected(write, source, normed, i, sizes, **rotary)
        plain = self.head_dim - self.rotated(i, sizes)
        call = LatentAttention[Any](
            query=query,
            latent=latent,
            key=key,
            cache=self._past("latent", self.source(i)),
            lengths=LENGTHS,
            key_b=write.tensor(_KEYS.format(i), heads, plain, self.rank),
            absorb=Constant(_ABSORB.format(i)),
            value_b=write.tensor(f"{layer}.value_b", heads, self.value_dim, self.rank),
            scale=sizes.attention_scale,
        )
        mixed = write.step("latent_attention", *call[:_GIVEN], **rotary)
        if not self.head_gate:
            return mixed
        gate = sigmoid(write, write.linear(normed, f"{layer}.gate", (heads, width)))
        parts = write.step("unflatten", mixed, -1, [-1, self.value_dim])
        gated = write.step("mul", parts, write.step("unsqueeze", gate, -1))
        return write.step("flatten", gated, -2)

    def _written(
        self, write: ProgramWriter, normed: Node, i: int, sizes: "DecoderDimensions"
    ) -> tuple[Node | None, Node | None]:
        """Return a layer's own latents, and the parts of keys to rotate."""
        if self.source(i) != i:
            return None, None
        name, rotated = f"decoder.layers.{i}.attention.latent", self.rotated(i, sizes)
        shape = self.rank + rotated, sizes.width
        latent, key = write.linear(normed, name, shape, bias=self.bias), None
        if rotated:
            latent, key = write.split(latent, (self.rank, rotated))
        return write.rms_norm(latent, f"{name}_norm", self.rank, self.norm_eps), key

    def _scaled(self, write: ProgramWriter, query: Node, name: str, heads: int) -> Node:
        if not self.scaled_queries:
            return query
        logs = rows_at_positions(write, Constant(_LOGS), 1)
        scale, bias = (write.tensor(f"{name}.{part}", heads) for part in ("scale", "bias"))
        factors = write.step("add", write.step("mul", logs, scale), bias)
        each = write.step("unflatten", query, -1, [heads, -1])
        scaled = write.step("mul", each, write.step("unsqueeze", factors, -1))
        return write.step("flatten", scaled, -2)

    def _selected(
        self,
        write: ProgramWriter,
        source: Node,
        normed: Node,
        i: int,
        sizes: "DecoderDimensions",
        **rotary: Any,
    ) -> Node:
        """Return the positions to read: this layer's choice, or the last one of those before."""
        indexer, layer = self.indexer, f"decoder.layers.{i}.attention.indexer"
        if indexer is None or not self.chooses(i):
            earlier = (step for step in reversed(write.steps) if step.operation == _SELECT)
            return Node(next(earlier).name)
        width = sizes.width
        if not self.query_rank:
            source = write.layer_norm(source, f"{layer}.query_norm", width, _INDEX_EPSILON)
        shape = indexer.heads * indexer.dim, self.query_rank or width
        query = write.linear(source, f"{layer}.query", shape)
        key = write.linear(normed, f"{layer}.key", (indexer.dim, width))
        call = PositionSelection[Any](
            query=self._scaled(write, query, f"{layer}.query_scaling", indexer.heads),
            key=write.layer_norm(key, f"{layer}.key_norm", indexer.dim, _INDEX_EPSILON),
            weights=write.linear(normed, f"{layer}.weights", (indexer.heads, width)),
            cache=self._past("index", i),
            lengths=LENGTHS,
            most=indexer.count,
        )
        return write.step(_SELECT, *call[:_ASKED], **rotary)

    def _past(self, part: str, layer: int) -> Node:
        number = sum(self.source(i) == i or self.chooses(i) for i in range(layer))
        return Node(f"past_{part}_{number}")

    def constants(
        self, layers: Sequence[int], positions: int, tensors: Mapping[str, NDArray[np.generic]]
    ) -> dict[str, NDArray[np.generic]]:
        """Return the matrices of keys transposed, [heads, rank, plain], and logarithms."""
        transposed: dict[str, NDArray[np.generic]] = {
            _ABSORB.format(i): tensors[_KEYS.format(i)].swapaxes(1, 2) for i in layers
        }
        if not self.scaled_queries:
            return transposed
        logs = np.log1p(np.arange(positions))[:, None].astype(np.float32)
        return {**transposed, _LOGS: logs}


def check_latents(dimensions: "DecoderDimensions") -> None:
    latents = dimensions.latents
    if latents is None:
        return
    if dimensions.head_dim != latents.head_dim or dimensions.kv_heads != dimensions.heads:
        raise KvcastError("heads of keys are as large and as many as those of queries")
    others = (
        *("qkv_limit", "qkv_bias", "query_key_norm", "attention_gate", "attention_softcap"),
        *("sinks", "layer_head_dims", "layer_kv_heads", "sources", "keys_as_values", "value_norm"),
        *("window_rotary", "post_norms", "parallel", "scaled_by_depth"),
    )
    for name in others:
        if getattr(dimensions, name):
            raise KvcastError(f"latents with {name} are not supported")
    followers = latents.indexer.followers if latents.indexer else ()
    if not all(type(i) is int and 0 < i < dimensions.layers for i in followers):
        raise KvcastError("layers that take another's choice are some after the first")
    _check_sources(dimensions, latents)
    if not dimensions.pre_norms or any(dimensions.windows):
        raise KvcastError("latents with windows, or without norms before, are not supported")


def _check_sources(dimensions: "DecoderDimensions", latents: Latents) -> None:
    sources = latents.sources
    if len(sources) not in (0, dimensions.layers):
        raise KvcastError(f"{len(sources)} sources of latents are not one for each layer")
    for i, source in enumerate(sources):
        known = type(source) is int and 0 <= source <= i and sources[source] == source
        if not known or (i in dimensions.unrotated) != (source in dimensions.unrotated):
            raise KvcastError(f"layer {i} cannot read the latents of layer {source}")
        if dimensions.mixer(i) != ATTENTION and source != i:
            raise KvcastError("only attention reads latents")
