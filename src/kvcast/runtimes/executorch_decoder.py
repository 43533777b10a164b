"""Bundles on ExecuTorch: `decode`, which all families of models have.

Each layer's key and value are tensors, whose rows are handed to `decode`, which writes them in
place. A call is one row's. Knows the method by its name and nothing of models.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.runtimes.base import Float32, Tokens
from kvcast.runtimes.cache import Cache, CachedRuntime
from kvcast.runtimes.executorch_methods import DecodeMethod, Methods
from kvcast.runtimes.memory import Layer


class ExecutorchRuntime(CachedRuntime):
    """The method `decode` over caches [rows, ., slots, ., d] in tensors."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        self._methods = Methods(folder / manifest.graph("decode").file, threads)
        self._methods.check(manifest)
        self._decode = DecodeMethod(self._methods, manifest.dimensions["vocab_size"])
        self._is_ring = [
            layer.kind == "ring"
            for layer in manifest.cache
            if layer.kind != "cross"
            for _ in range(2 * layer.layers)
        ]

    @override
    def layers(self, capacity: int) -> Sequence[Layer]:
        # After the self caches come those of encoded inputs. A ring has as many slots whatever the
        # capacity: a row can go elsewhere as it lies.
        return [
            Layer((before, slots if is_ring else capacity, *after), torch.float32, is_ring=is_ring)
            for (before, slots, *after), is_ring in zip(
                self._decode.cache_shapes, self._is_ring, strict=False
            )
        ]

    @override
    def make(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    @override
    def run(
        self, tokens: Tokens, cache: Cache, rows: list[int], positions: Sequence[int]
    ) -> Float32:
        logits_rpv = self._decode.logits(len(rows), len(positions))
        for row, new, logits_pv in zip(rows, tokens, logits_rpv, strict=True):
            caches = [*self._cells(cache, row), *self.encoded(cache, row)]
            self._decode.run(new, int(cache.lengths[row]), positions, caches, logits_pv)
        return logits_rpv

    def encoded(self, cache: Cache, row: int) -> Sequence[Tensor]:  # noqa: ARG002
        """Return what `decode` takes of the input that a row reads."""
        return ()

    def _cells(self, cache: Cache, row: int) -> list[Tensor]:
        bound = cache.memory.bound
        if row not in bound:
            bound[row] = [cell[row] for cell in cache.memory.cells]
        cells: list[Tensor] = bound[row]
        return cells


class ExecutorchDecoderOnly(ExecutorchRuntime):
    """A decoder-only model's bundle: `decode` is all that it has."""
