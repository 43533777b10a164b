"""A decoder-only program run by PyTorch as it is.

The model comes as an argument: this module knows its program's signature and no family.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from kvcast.families.table import family_with
from kvcast.runtimes.base import Float32, Tokens
from kvcast.runtimes.cache import CacheHandle
from kvcast.runtimes.eager.runtime import Model, TorchRuntime, layers_of
from kvcast.runtimes.memory import Layer
from kvcast.spec.ring import neighbours


class TorchDecoderOnly(TorchRuntime):
    """A program over flat lists of tensors; the new tokens of all rows come concatenated."""

    def decode_packed(
        self,
        tokens_n: Tensor,
        rows: list[int],
        counts: list[int],
        lengths: Tensor,
        offsets: Tensor,
        caches: Sequence[Tensor],
    ) -> Tensor:
        """Return logits fp32 [m, vocab] on the CPU, and write caches.

        Args:
            tokens_n: int64 [n], the new tokens of these rows.
            rows: the rows of the caches that take part, ascending.
            counts: the number of new tokens of each.
            lengths: int32 [rows of the caches], positions in the caches before this call.
            offsets: int64 [m], which of the n positions get logits, as many of each row.
            caches: as the program has them, each [rows, ...].

        """
        raise NotImplementedError

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
        logits = self.decode_packed(
            torch.from_numpy(np.concatenate([tokens[i] for i in order]).astype(np.int64)),
            [place for run in plan.runs for place in run.places],
            counts,
            torch.from_numpy(lengths),
            torch.tensor(offsets),
            cache.memory.cells,
        )
        logits_rpv: Float32 = logits.unflatten(0, (len(tokens), -1)).numpy()
        if isinstance(plan.places, slice):
            return logits_rpv
        return logits_rpv[np.argsort(order)]


def decode_neighbours(
    decode: Callable[..., Sequence[Tensor]],
    tokens_n: Tensor,
    rows: list[int],
    counts: list[int],
    lengths: Tensor,
    offsets: Tensor,
    caches: Sequence[Tensor],
) -> Tensor:
    """Do as `decode_packed`, with a program that takes as many new positions for every row.

    Rows side by side that have equally many go in one call, on views of the caches.
    """
    offsets_rp = offsets.view(len(rows), -1)
    logits, first, row = [], 0, 0
    for part, count in neighbours(rows, counts):
        size = part.stop - part.start
        tokens_rs = tokens_n[first : first + size * count].view(size, count)
        views = [cache[part] for cache in caches]
        results = decode(tokens_rs, lengths[part], offsets_rp[row] - first, *views)
        logits.append(results[0].flatten(0, 1))
        first, row = first + size * count, row + size
    return torch.cat(logits)


class EagerDecoderOnly(TorchDecoderOnly):
    """A ring has as many slots as the window."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @override
    def layers(self, capacity: int) -> Sequence[Layer]:
        dimensions = self._model.dimensions
        return layers_of(family_with(dimensions).caches(dimensions), capacity)

    @override
    def decode_packed(self, *arguments: Any) -> Tensor:
        logits_mv: Tensor = self._model["decode"].packed(*arguments)
        return logits_mv
