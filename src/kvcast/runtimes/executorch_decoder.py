"""Decoder-only bundles on ExecuTorch.

Each layer's key and value are tensors, whose rows are handed to `decode`, which writes them in
place. A call is one row's. Knows the method by its name and nothing of models.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from kvcast.bundle.manifest import Manifest
from kvcast.runtimes.base import Float32, Int32, Int64
from kvcast.runtimes.executorch_methods import DecodeMethod, Methods
from kvcast.runtimes.history import History


@dataclass(frozen=True)
class ExecutorchDecoderCache:
    """Key and value [rows, 1, slots, kv_heads, d] of every layer, and what they hold."""

    cells: list[Tensor]
    history: History

    @property
    def lengths(self) -> Int32:
        """[rows]: number of positions that each row has seen."""
        return self.history.lengths

    @property
    def capacity(self) -> int:
        """Longest sequence that a row can come to."""
        return self.history.capacity


class ExecutorchDecoderOnly:
    """Meets `kvcast.runtimes.base.DecoderOnly`."""

    _history: type[History] = History

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        self._methods = Methods(folder / manifest.graph("decode").file, threads)
        self._decode = DecodeMethod(self._methods, manifest.dimensions["vocab_size"])
        self._is_ring = [layer.kind == "ring" for layer in manifest.cache for _ in range(2)]

    def new_cache(self, rows: int, capacity: int) -> ExecutorchDecoderCache:
        """See the protocol."""
        cells = []
        shapes = self._decode.cache_shapes
        for (before, slots, *after), is_ring in zip(shapes, self._is_ring, strict=True):
            # A ring has as many slots whatever the capacity: a row can go elsewhere as it lies.
            cells.append(torch.zeros(rows, before, slots if is_ring else capacity, *after))
        return ExecutorchDecoderCache(cells, self._history.empty(rows, capacity))

    def decode(
        self,
        tokens: Sequence[Int64],
        cache: ExecutorchDecoderCache,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, ExecutorchDecoderCache]:
        """See the protocol."""
        taking_part = list(range(len(cache.lengths)) if rows is None else rows)
        grown = cache.history.append(taking_part, tokens)
        logits_rpv = self._decode.logits(len(taking_part), len(positions))
        for row, new, logits_pv in zip(taking_part, tokens, logits_rpv, strict=True):
            caches = [cell[row] for cell in cache.cells]
            self._decode.run(new, int(cache.lengths[row]), positions, caches, logits_pv)
        return logits_rpv, replace(cache, history=grown)

    def reorder(
        self, cache: ExecutorchDecoderCache, sources: Sequence[int]
    ) -> ExecutorchDecoderCache:
        """See the protocol."""
        history, moves = cache.history.reorder(sources)
        if moves:
            first, stop = min(move.first for move in moves), max(move.stop for move in moves)
            targets, origins = [move.target for move in moves], [move.source for move in moves]
            for cell, is_ring in zip(cache.cells, self._is_ring, strict=True):
                # Where a position lies in a ring depends on the row's past: it is copied whole.
                span = slice(None) if is_ring else slice(first, stop)
                cell[targets, :, span] = cell[origins, :, span]
        return replace(cache, history=history)

    def fork(
        self, cache: ExecutorchDecoderCache, sources: Sequence[int], capacity: int | None = None
    ) -> ExecutorchDecoderCache:
        """See the protocol."""
        history = cache.history.fork(sources, capacity or cache.capacity)
        forked = self.new_cache(len(sources), history.capacity)
        held = int(history.lengths.max(initial=0))
        for old, new, is_ring in zip(cache.cells, forked.cells, self._is_ring, strict=True):
            span = slice(None) if is_ring else slice(held)
            new[:, :, span] = old[list(sources), :, span]
        return replace(forked, history=history)

    def reset(self, cache: ExecutorchDecoderCache, rows: Sequence[int]) -> ExecutorchDecoderCache:
        """See the protocol."""
        return replace(cache, history=cache.history.reset(rows))
