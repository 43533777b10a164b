"""Encoder-decoder bundles on ExecuTorch.

Each input's cross caches are `encode`'s results, handed to `decode` beside its row. A call is one
row's, of one input. Knows methods by their names and nothing of models.
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
from kvcast.runtimes.base import EncoderDecoderOf
from kvcast.runtimes.cache import Cache
from kvcast.runtimes.executorch_decoder import ExecutorchRuntime
from kvcast.runtimes.memory import Make, Slots


class _SeparateSlots(Slots):
    """Inputs of which each has tensors of its own, without padding: `parts` has them by slot."""

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


class ExecutorchEncoderDecoder(ExecutorchRuntime, EncoderDecoderOf[Cache]):
    """`encode`, and `decode` over what it gave."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        super().__init__(folder, manifest, threads)
        self.longest = manifest.cache_layers("linear").capacity
        self._longest_source = manifest.cache_layers("cross").capacity

    @override
    def slots(self, count: int) -> Slots:
        return _SeparateSlots(count, self.make)

    @override
    def encode(self, cache: Cache, slots: Sequence[int], *source: NDArray[Any]) -> Cache:
        cache.vacate(slots)
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
        cache.memory.fill(slots, inputs)
        return cache

    @override
    def encoded(self, cache: Cache, row: int) -> Sequence[Tensor]:
        parts: Sequence[Tensor] = cache.memory.slots.parts[cache.input_of(row)]
        return parts
