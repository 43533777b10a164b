"""The programs of a model that reads its source as a prefix, run by PyTorch as they are.

The programs come as an argument: this module knows their signatures and no model.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from kvcast.runtimes.base import Float32, Int64
from kvcast.runtimes.eager.decoder import DecoderOnlyPrograms as DecoderPrograms
from kvcast.runtimes.eager.decoder import EagerDecoderOnly
from kvcast.runtimes.eager.runtime import pairs
from kvcast.runtimes.history import check_sources


class PrefixPrograms(DecoderPrograms, Protocol):
    """Programs of a prefix model, as eager runs them."""

    @property
    def decode(self) -> Any:
        """Rows of tokens over caches to logits, hidden states and caches."""

    @property
    def pool(self) -> Any:
        """First tokens' hidden states to vectors."""


class EagerPrefix(EagerDecoderOnly):
    """The first call of an empty row is its source."""

    _programs: PrefixPrograms

    def __init__(self, programs: PrefixPrograms) -> None:
        super().__init__(programs)

    @torch.inference_mode()
    def embed(self, sources: Sequence[Int64]) -> Float32:
        """Return the pooled first token of each source, fp32 [len(sources), width].

        Raises KvcastError for a source that is empty or longer than the model takes.
        """
        dimensions = self._programs.dimensions
        check_sources(sources, dimensions.max_positions)
        first_nx = torch.empty(len(sources), dimensions.width)
        empty, first = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
        for i, source in enumerate(sources):
            tokens_rs = torch.from_numpy(np.asarray(source, np.int64))[None]
            caches = pairs(self.new_cache(1, len(source)).memory.cells)
            _, hidden, _ = self._programs.decode(tokens_rs, empty, first, caches)
            first_nx[i] = hidden[0, 0]
        pooled: Float32 = self._programs.pool(first_nx).numpy()
        return pooled
