"""Encoder-decoder programs run by PyTorch as they are.

The programs come as an argument: this module knows their signatures and no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvcast.errors import KvcastError
from kvcast.runtimes.base import Float32, Int32, Int64
from kvcast.runtimes.lineage import Lineage

LayerCache = tuple[Tensor, Tensor]


class Programs(Protocol):
    """What eager runs: see `kvcast.programs.whisper` and `kvcast.programs.t5`."""

    @property
    def dimensions(self) -> Any:
        """Sizes: decoder_layers, decoder_heads, head_dim, target_positions."""

    @property
    def encode(self) -> Any:
        """A source to cross caches."""

    @property
    def decode(self) -> Any:
        """Tokens over caches to logits and caches."""


@dataclass(frozen=True)
class EagerCrossCache:
    """(key, value) [batch, heads, t, d] of every layer.

    `given`: what `encode` took beside its first argument; `decode` takes it as well.
    """

    layers: list[LayerCache]
    given: tuple[Tensor, ...]

    @property
    def batch(self) -> int:
        """Number of encoded inputs."""
        return len(self.layers[0][0])


@dataclass(frozen=True)
class EagerCache:
    """All layers' self cache in one tensor [layers, 2, rows, heads, capacity, d]."""

    cells: Tensor
    cross: EagerCrossCache
    lineage: Lineage

    @property
    def lengths(self) -> Int32:
        """[rows]: number of positions that each row has seen."""
        return self.lineage.lengths


class EagerEncoderDecoder:
    """Meets `kvcast.runtimes.base.EncoderDecoder`."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    @torch.inference_mode()
    def encode(self, *source: NDArray[Any]) -> EagerCrossCache:
        """See the protocol."""
        # Copies: a cache keeps lengths, and the caller's arrays may become something else.
        first, *given = (torch.from_numpy(np.array(part, order="C")) for part in source)
        return EagerCrossCache(self._programs.encode(first, *given), tuple(given))

    def new_cache(
        self, cross: EagerCrossCache, rows: int, capacity: int | None = None
    ) -> EagerCache:
        """See the protocol."""
        dimensions = self._programs.dimensions
        positions = min(capacity or dimensions.target_positions, dimensions.target_positions)
        cells = torch.zeros(
            dimensions.decoder_layers,
            2,
            rows,
            dimensions.decoder_heads,
            positions,
            dimensions.head_dim,
        )
        return EagerCache(cells, cross, Lineage.empty(rows, positions))

    @torch.inference_mode()
    def decode(
        self, tokens_rs: Int64, cache: EagerCache, positions: Sequence[int] = (-1,)
    ) -> tuple[Float32, EagerCache]:
        """See the protocol."""
        new, capacity = tokens_rs.shape[1], cache.cells.shape[4]
        if cache.lengths.max(initial=0) + new > capacity:
            raise KvcastError(f"the cache holds {capacity} positions and is full")
        logits, _ = self._programs.decode(
            torch.from_numpy(np.ascontiguousarray(tokens_rs)),
            torch.from_numpy(cache.lengths),
            torch.from_numpy(np.asarray(positions, np.int64) % new),
            [(layer[0], layer[1]) for layer in cache.cells],
            cache.cross.layers,
            *cache.cross.given,
        )
        return logits.numpy(), replace(cache, lineage=cache.lineage.append(new))

    @torch.inference_mode()
    def reorder(self, cache: EagerCache, sources: Sequence[int]) -> EagerCache:
        """See the protocol."""
        if len(sources) != cache.cells.shape[2]:
            cells = cache.cells[:, :, list(sources)]
            return replace(cache, cells=cells, lineage=cache.lineage.select(sources))
        lineage, copy = cache.lineage.reorder(sources)
        if copy is not None:
            span = cache.cells[..., copy.first : copy.stop, :]
            span[:, :, copy.targets] = span[:, :, copy.sources]
        return replace(cache, lineage=lineage)

    def reset(self, cache: EagerCache, rows: Sequence[int]) -> EagerCache:
        """See the protocol."""
        return replace(cache, lineage=cache.lineage.reset(rows))
