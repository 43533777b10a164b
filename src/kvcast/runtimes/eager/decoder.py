"""A decoder-only program run by PyTorch as it is.

The program comes as an argument: this module knows its signature and no model.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from typing_extensions import override

from kvcast.runtimes.base import Float32, Tokens
from kvcast.runtimes.cache import CacheHandle
from kvcast.runtimes.eager.runtime import TorchRuntime, pairs
from kvcast.runtimes.memory import Layer, TurningRing


class DecoderOnlyPrograms(Protocol):
    """The programs that eager runs: see `kvcast.models.programs.decoder`."""

    @property
    def dimensions(self) -> Any:
        """Sizes: windows, kv_heads, head_dim."""

    @property
    def decode_packed(self) -> Any:
        """Packed tokens over caches to logits and caches."""


class EagerDecoderOnly(TorchRuntime):
    """A ring has as many slots as the window."""

    def __init__(self, programs: DecoderOnlyPrograms) -> None:
        self._programs = programs

    @override
    def layers(self, capacity: int) -> Sequence[Layer]:
        dimensions = self._programs.dimensions
        layers = []
        for window in dimensions.windows:
            slots = min(window or capacity, capacity)
            shape = (dimensions.kv_heads, slots, dimensions.head_dim)
            ring = TurningRing(window, slots) if window else None
            layers += [Layer(shape, torch.float32, ring)] * 2
        return layers

    @override
    @torch.inference_mode()
    def run(
        self, tokens: Tokens, cache: CacheHandle, rows: list[int], positions: Sequence[int]
    ) -> Float32:
        plan = cache.plan(rows, tokens)
        order = [i for run in plan.runs for i in run.index]
        counts = [len(tokens[i]) for i in order]
        ends = np.cumsum(counts)
        offsets = [
            end - new + position % new
            for end, new in zip(ends.tolist(), counts, strict=True)
            for position in positions
        ]
        lengths = np.empty_like(cache.lengths)
        lengths[cache.memory.places] = cache.lengths
        logits, _ = self._programs.decode_packed(
            torch.from_numpy(np.concatenate([tokens[i] for i in order]).astype(np.int64)),
            [place for run in plan.runs for place in run.places],
            counts,
            torch.from_numpy(lengths),
            torch.tensor(offsets),
            pairs(cache.memory.cells),
        )
        logits_rpv: Float32 = logits.unflatten(0, (len(tokens), -1)).numpy()
        if isinstance(plan.places, slice):
            return logits_rpv
        return logits_rpv[np.argsort(order)]
