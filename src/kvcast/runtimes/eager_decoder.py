"""A decoder-only program run by PyTorch as it is.

The program comes as an argument: this module knows its signature and no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from kvcast.runtimes.base import Float32, Int32, Int64
from kvcast.runtimes.history import History

LayerCache = tuple[Tensor, Tensor]


class Programs(Protocol):
    """What eager runs: see `kvcast.programs.decoder`."""

    @property
    def dimensions(self) -> Any:
        """Sizes: windows, kv_heads, head_dim."""

    @property
    def decode_packed(self) -> Any:
        """Packed tokens over caches to logits and caches."""


@dataclass(frozen=True)
class EagerDecoderCache:
    """(key, value) [rows, kv_heads, capacity, d] of every layer, and what they hold."""

    layers: list[LayerCache]
    history: History

    @property
    def lengths(self) -> Int32:
        """[rows]: number of positions that each row has seen."""
        return self.history.lengths

    @property
    def capacity(self) -> int:
        """Longest sequence that a row can come to."""
        return self.history.capacity


class EagerDecoderOnly:
    """Meets `kvcast.runtimes.base.DecoderOnly`. A ring has as many slots as the window."""

    _history: type[History] = History

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def new_cache(self, rows: int, capacity: int) -> EagerDecoderCache:
        """See the protocol."""
        dimensions = self._programs.dimensions
        layers = []
        for window in dimensions.windows:
            shape = (rows, dimensions.kv_heads, min(window or capacity, capacity))
            layers.append(
                (
                    torch.zeros(*shape, dimensions.head_dim),
                    torch.zeros(*shape, dimensions.head_dim),
                )
            )
        return EagerDecoderCache(layers, self._history.empty(rows, capacity))

    @torch.inference_mode()
    def decode(
        self,
        tokens: Sequence[Int64],
        cache: EagerDecoderCache,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, EagerDecoderCache]:
        """See the protocol."""
        taking_part = list(range(len(cache.lengths)) if rows is None else rows)
        grown = cache.history.append(taking_part, tokens)
        counts = [len(new) for new in tokens]
        ends = np.cumsum(counts)
        asked = [
            end - new + position % new
            for end, new in zip(ends.tolist(), counts, strict=True)
            for position in positions
        ]
        logits, _ = self._programs.decode_packed(
            torch.from_numpy(np.concatenate(tokens).astype(np.int64, copy=False)),
            taking_part,
            counts,
            torch.from_numpy(cache.lengths),
            torch.tensor(asked),
            cache.layers,
        )
        return logits.unflatten(0, (len(tokens), -1)).numpy(), replace(cache, history=grown)

    @torch.inference_mode()
    def reorder(self, cache: EagerDecoderCache, sources: Sequence[int]) -> EagerDecoderCache:
        """See the protocol."""
        history, moves = cache.history.reorder(sources)
        if moves:
            first, stop = min(move.first for move in moves), max(move.stop for move in moves)
            targets, origins = [move.target for move in moves], [move.source for move in moves]
            for key, value in cache.layers:
                # A ring's slots do not follow the order of positions: it is copied whole.
                span = slice(first, stop) if key.shape[2] == cache.capacity else slice(None)
                for part in (key, value):
                    part[targets, :, span] = part[origins, :, span]
        return replace(cache, history=history)

    @torch.inference_mode()
    def fork(
        self, cache: EagerDecoderCache, sources: Sequence[int], capacity: int | None = None
    ) -> EagerDecoderCache:
        """See the protocol."""
        history = cache.history.fork(sources, capacity or cache.capacity)
        forked = self.new_cache(len(sources), history.capacity)
        for old, new in zip(cache.layers, forked.layers, strict=True):
            for old_part, new_part in zip(old, new, strict=True):
                _copy_rows(old_part, new_part, list(sources), cache.lengths)
        return replace(forked, history=history)

    def reset(self, cache: EagerDecoderCache, rows: Sequence[int]) -> EagerDecoderCache:
        """See the protocol."""
        return replace(cache, history=cache.history.reset(rows))


def _copy_rows(old: Tensor, new: Tensor, sources: list[int], lengths: Int32) -> None:
    """Copy rows between caches whose capacities may differ, and with them a position's slot."""
    for target, source in enumerate(sources):
        length = int(lengths[source])
        kept = min(length, old.shape[2], new.shape[2])
        positions = torch.arange(length - kept, length)
        new[target, :, positions % new.shape[2]] = old[source, :, positions % old.shape[2]]
