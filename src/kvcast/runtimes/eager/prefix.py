"""The programs of a model that reads its source as a prefix, run by PyTorch as they are.

The programs come as an argument: this module knows their signatures and no model.
"""

from typing import Any, Protocol

import torch
from typing_extensions import override

from kvcast.runtimes.base import Float32, Int64
from kvcast.runtimes.eager.decoder import DecoderOnlyPrograms as DecoderPrograms
from kvcast.runtimes.eager.decoder import EagerDecoderOnly
from kvcast.runtimes.eager.runtime import pairs
from kvcast.runtimes.prefix import EmbeddingRuntime


class PrefixPrograms(DecoderPrograms, Protocol):
    """Programs of a prefix model, as eager runs them."""

    @property
    def decode(self) -> Any:
        """Rows of tokens over caches to logits, hidden states and caches."""

    @property
    def pool(self) -> Any:
        """First tokens' hidden states to vectors."""


class EagerPrefix(EagerDecoderOnly, EmbeddingRuntime):
    """The first call of an empty row is its source."""

    _programs: PrefixPrograms

    def __init__(self, programs: PrefixPrograms) -> None:
        super().__init__(programs)
        self.width: int = programs.dimensions.width
        self.max_positions: int = programs.dimensions.max_positions

    @override
    @torch.inference_mode()
    def first_hidden(self, tokens_s: Int64) -> Float32:
        empty, first = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
        caches = pairs(self.new_cache(1, len(tokens_s)).memory.cells)
        _, hidden, _ = self._programs.decode(torch.from_numpy(tokens_s)[None], empty, first, caches)
        first_x: Float32 = hidden[0, 0].cpu().numpy()
        return first_x

    @override
    @torch.inference_mode()
    def pool(self, hidden_nx: Float32) -> Float32:
        # A copy in torch's alignment, on which the order of additions may depend.
        pooled_nx: Float32 = self._programs.pool(torch.from_numpy(hidden_nx).clone()).numpy()
        return pooled_nx
