"""Pooled vectors of sources, on runtimes of prefix LMs."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from kvcast.runtimes.base import Float32, Int64, PrefixRuntimeOf
from kvcast.runtimes.cache import CachedRuntime, CacheHandle
from kvcast.runtimes.history import check_sources


class EmbeddingRuntime(CachedRuntime, PrefixRuntimeOf[CacheHandle]):
    """The first call of an empty row is its source; subclasses run the programs."""

    width: int
    max_positions: int

    @abstractmethod
    def first_hidden(self, tokens_s: Int64) -> Float32:
        """Return the hidden state [width] of a source's first token."""

    @abstractmethod
    def pool(self, hidden_nx: Float32) -> Float32:
        """Pool first tokens' hidden states, if the model has a pooler; at least one."""

    @override
    def embed(self, sources: Sequence[Int64]) -> Float32:
        check_sources(sources, self.max_positions)
        first_nx = np.empty((len(sources), self.width), np.float32)
        for row_x, source in zip(first_nx, sources, strict=True):
            row_x[:] = self.first_hidden(np.asarray(source, np.int64))
        return self.pool(first_nx) if len(sources) else first_nx
