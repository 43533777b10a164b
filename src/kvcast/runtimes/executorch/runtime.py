"""Bundles on ExecuTorch: `decode`, for all families, and `encode`.

Each layer's key and value are tensors. A call of `decode` processes one row: it takes that row's
tensors, which it writes in place, and the results of `encode` for the input that the row reads.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.errors import KvcastError
from kvcast.runtimes.alignment import NumpyAligningRuntime
from kvcast.runtimes.base import Float32, Int64, Tokens
from kvcast.runtimes.cache import CachedRuntime, CacheHandle
from kvcast.runtimes.executorch.methods import DecodeMethod, Methods
from kvcast.runtimes.memory import Layer, Make, Slots, TurningRing
from kvcast.runtimes.prefix import EmbeddingRuntime


class ExecutorchRuntime(CachedRuntime):
    """`decode` over caches [rows, ., slots, ., d] in tensors."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        self._methods = Methods(folder / manifest.graph("decode").file, threads)
        self._methods.check(manifest)
        self._decode = DecodeMethod(self._methods, manifest.dimensions["vocab_size"])
        self._each = [
            layer
            for layer in manifest.cache
            if layer.kind != "cross"
            for _ in range(len(layer.parts) * layer.layers)
        ]

    @override
    def layers(self, capacity: int) -> Sequence[Layer]:
        # After the self caches come those of encoded inputs. A ring has as many slots whatever the
        # capacity: a row can go elsewhere as it lies.
        return [
            Layer((before, capacity, *after), torch.float32)
            if layer.kind == "linear"
            else Layer(
                (before, slots, *after),
                torch.float32,
                TurningRing(layer.capacity, slots),
                has_snapshots=layer.kind == "inputs",
            )
            for (before, slots, *after), layer in zip(
                self._decode.cache_shapes, self._each, strict=False
            )
        ]

    @override
    def make(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    @override
    def run(
        self, tokens: Tokens, cache: CacheHandle, rows: list[int], positions: Sequence[int]
    ) -> Float32:
        logits_rpv = self._decode.logits(len(rows), len(positions))
        for row, new, logits_pv in zip(rows, tokens, logits_rpv, strict=True):
            self._decode.run(*self.row(new, cache, row), positions, logits_pv)
        return logits_rpv

    def row(self, tokens_s: Int64, cache: CacheHandle, row: int) -> tuple[Int64, int, list[Tensor]]:
        caches = [*self._cells(cache, row), *self.encoded(cache, row)]
        return tokens_s, int(cache.lengths[row]), caches

    def encoded(self, cache: CacheHandle, row: int) -> Sequence[Tensor]:  # noqa: ARG002
        return ()

    def _cells(self, cache: CacheHandle, row: int) -> list[Tensor]:
        bound = cache.memory.bound
        if row not in bound:
            bound[row] = [cell[row] for cell in cache.memory.cells]
        cells: list[Tensor] = bound[row]
        return cells


class _SeparateSlots(Slots):
    """Inputs in separate tensors, without padding: `parts` has them by slot."""

    def __init__(self, count: int, make: Make) -> None:
        super().__init__(count, make)
        self.parts = [[]] * count

    @override
    def vacate(self, slots: Sequence[int]) -> bool:
        for slot in slots:
            self.parts[slot] = []
        return False

    @override
    def fill(self, slots: Sequence[int], parts: Sequence[list[Tensor]]) -> bool:
        for slot, part in zip(slots, parts, strict=True):
            self.parts[slot] = part
        return False


class ExecutorchEncoderDecoder(ExecutorchRuntime, NumpyAligningRuntime):
    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        super().__init__(folder, manifest, threads)
        self.longest = manifest.cache_layers("linear").capacity
        self._longest_source = manifest.cache_layers("cross").capacity
        self.alignment_heads = manifest.dimensions.get("alignment_heads", ())
        self._head_dim = manifest.cache_layers("linear").head_dim

    @override
    def slots(self, count: int) -> Slots:
        return _SeparateSlots(count, self.make)

    @override
    def encode(
        self, cache: CacheHandle, slots: Sequence[int], *source: NDArray[Any]
    ) -> CacheHandle:
        cache.vacate(slots)
        first, *lengths = source
        inputs = []
        for i, part in enumerate(first):
            # If inputs have lengths, the rest is padding; a single input needs none.
            whole = part[: int(lengths[0][i])] if lengths else part
            if lengths and len(whole) > self._longest_source:
                raise KvcastError(
                    f"source {i} has {len(whole)} tokens and the bundle takes up to "
                    f"{self._longest_source}"
                )
            given = [torch.from_numpy(part[i : i + 1].copy()) for part in lengths]
            argument = torch.from_numpy(np.ascontiguousarray(whole)[None])
            inputs.append([*self._methods.run("encode", [argument, *given]), *given])
        cache.memory.fill(slots, inputs)
        return cache

    @override
    def encoded(self, cache: CacheHandle, row: int) -> Sequence[Tensor]:
        parts: Sequence[Tensor] = cache.memory.slots.parts[cache.input_of(row)]
        return parts

    @override
    def query(
        self, tokens_s: Int64, cache: CacheHandle, row: int, positions: Sequence[int]
    ) -> tuple[Float32, Float32]:
        (logits_pv,) = self._decode.logits(1, len(positions))
        width = len(self.alignment_heads) * self._head_dim
        queries_sx = np.empty((len(tokens_s), width), np.float32)
        self._decode.run(*self.row(tokens_s, cache, row), positions, logits_pv, queries_sx)
        return logits_pv, queries_sx

    @override
    def cross_keys(self, cache: CacheHandle, row: int, layer: int, heads: Sequence[int]) -> Float32:
        key_hdt = self.encoded(cache, row)[2 * layer][list(heads)]
        key_htd: Float32 = key_hdt.transpose(1, 2).float().numpy()
        return key_htd


class ExecutorchPrefix(ExecutorchRuntime, EmbeddingRuntime):
    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        super().__init__(folder, manifest, threads)
        self.width = manifest.dimensions["width"]
        self.max_positions = manifest.dimensions["max_positions"]
        self._pooled: bool = manifest.dimensions["pooled"]

    @override
    def first_hidden(self, tokens_s: Int64) -> Float32:
        cells = [cell[0] for cell in self.new_cache(1, len(tokens_s)).memory.cells]
        hidden_1sx = self._decode.call(tokens_s, 0, np.zeros(1, np.int64), cells)[1]
        first_x: Float32 = hidden_1sx[0, 0].numpy()
        return first_x

    @override
    def pool(self, hidden_nx: Float32) -> Float32:
        if not self._pooled:
            return hidden_nx
        rows = [torch.from_numpy(hidden_1x[None]) for hidden_1x in hidden_nx]
        return np.concatenate([self._methods.run("pool", [row])[0].numpy() for row in rows])
