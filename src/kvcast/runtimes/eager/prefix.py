"""The programs of a model that reads its source as a prefix, run by PyTorch as they are.

The model comes as an argument: this module knows its programs' signatures and no family.
"""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from kvcast.runtimes.base import Float32, Int64
from kvcast.runtimes.eager.decoder import EagerDecoderOnly, decode_neighbours
from kvcast.runtimes.eager.runtime import Model
from kvcast.runtimes.prefix import EmbeddingRuntime


class EagerPrefix(EagerDecoderOnly, EmbeddingRuntime):
    """The first call of an empty row is its source."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.width: int = model.dimensions.width
        self.max_positions: int = model.dimensions.max_positions

    @override
    def decode_packed(self, *arguments: Any) -> Tensor:
        return decode_neighbours(self._model["decode"], *arguments)

    @override
    @torch.inference_mode()
    def first_hidden(self, tokens_s: Int64) -> Float32:
        empty, first = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
        caches = self.new_cache(1, len(tokens_s)).memory.cells
        given = (torch.from_numpy(tokens_s)[None], empty, first, *caches)
        _, hidden, *_ = self._model["decode"](*given)
        first_x: Float32 = hidden[0, 0].numpy()
        return first_x

    @override
    @torch.inference_mode()
    def pool(self, hidden_nx: Float32) -> Float32:
        if not self._model.dimensions.pooled:
            return hidden_nx
        # A copy in torch's alignment, on which the order of additions may depend.
        (pooled,) = self._model["pool"](torch.from_numpy(hidden_nx).clone())
        pooled_nx: Float32 = pooled.numpy()
        return pooled_nx
