"""Encoder-decoder bundles on ExecuTorch.

The self cache of all layers is one tensor, whose rows' parts are handed to `decode`, which writes
them in place; cross caches are `encode`'s results. A call is one row's, of one input. Knows methods
by their names and nothing of models.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvcast.bundle.manifest import Manifest
from kvcast.errors import KvcastError
from kvcast.runtimes.base import Float32, Int32, Int64
from kvcast.runtimes.executorch_methods import DecodeMethod, Methods
from kvcast.runtimes.lineage import Lineage


@dataclass(frozen=True)
class ExecutorchCrossCache:
    """For each input key and value of every layer, and its length if inputs have lengths."""

    inputs: list[list[Tensor]]

    @property
    def batch(self) -> int:
        """Number of encoded inputs."""
        return len(self.inputs)


@dataclass(frozen=True)
class ExecutorchCache:
    """Key and value of every layer in one tensor [layers * 2, rows, ., capacity, ., d]."""

    cells: Tensor
    cross: ExecutorchCrossCache
    lineage: Lineage

    @property
    def lengths(self) -> Int32:
        """[rows]: number of positions that each row has seen."""
        return self.lineage.lengths


class ExecutorchEncoderDecoder:
    """Meets `kvcast.runtimes.base.EncoderDecoder`."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        self._methods = Methods(folder / manifest.graph("decode").file, threads)
        self._decode = DecodeMethod(self._methods, manifest.dimensions["vocab_size"])
        self._own = manifest.cache_layers("linear")
        self._longest_source = manifest.cache_layers("cross").capacity

    def encode(self, *source: NDArray[Any]) -> ExecutorchCrossCache:
        """See the protocol."""
        first, *lengths = source
        inputs = []
        for i, part in enumerate(first):
            # Where inputs have lengths, what follows is padding, and one alone needs none.
            whole = part[: int(lengths[0][i])] if lengths else part
            if lengths and len(whole) > self._longest_source:
                raise KvcastError(
                    f"source {i} has {len(whole)} tokens and the bundle takes up to "
                    f"{self._longest_source}"
                )
            given = [torch.from_numpy(part[i : i + 1].copy()) for part in lengths]
            argument = torch.from_numpy(np.ascontiguousarray(whole)[None])
            inputs.append([*self._methods.run("encode", [argument, *given]), *given])
        return ExecutorchCrossCache(inputs)

    def new_cache(
        self, cross: ExecutorchCrossCache, rows: int, capacity: int | None = None
    ) -> ExecutorchCache:
        """See the protocol."""
        count, longest = 2 * self._own.layers, self._own.capacity
        positions = min(capacity or longest, longest)
        before, _, *after = self._decode.cache_shapes[0]
        cells = torch.zeros(count, rows, before, positions, *after)
        return ExecutorchCache(cells, cross, Lineage.empty(rows, positions))

    def decode(
        self, tokens_rs: Int64, cache: ExecutorchCache, positions: Sequence[int] = (-1,)
    ) -> tuple[Float32, ExecutorchCache]:
        """See the protocol."""
        rows, new = tokens_rs.shape
        capacity = cache.cells.shape[3]
        if cache.lengths.max(initial=0) + new > capacity:
            raise KvcastError(f"the cache holds {capacity} positions and is full")
        of_input = rows // cache.cross.batch
        logits_rpv = self._decode.logits(rows, len(positions))
        for row, logits_pv in enumerate(logits_rpv):
            caches = [*cache.cells[:, row], *cache.cross.inputs[row // of_input]]
            self._decode.run(tokens_rs[row], int(cache.lengths[row]), positions, caches, logits_pv)
        return logits_rpv, replace(cache, lineage=cache.lineage.append(new))

    def reorder(self, cache: ExecutorchCache, sources: Sequence[int]) -> ExecutorchCache:
        """See the protocol."""
        if len(sources) != cache.cells.shape[1]:
            cells = cache.cells[:, list(sources)]
            return replace(cache, cells=cells, lineage=cache.lineage.select(sources))
        lineage, copy = cache.lineage.reorder(sources)
        if copy is not None:
            span = cache.cells[:, :, :, copy.first : copy.stop]
            span[:, copy.targets] = span[:, copy.sources]
        return replace(cache, lineage=lineage)

    def reset(self, cache: ExecutorchCache, rows: Sequence[int]) -> ExecutorchCache:
        """See the protocol."""
        return replace(cache, lineage=cache.lineage.reset(rows))
