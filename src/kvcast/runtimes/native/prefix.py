"""Bundles of models that read a source as a prefix, on kvcast's own interpreter, without torch.

Knows programs by the names in the bundle's manifest and nothing of models.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kvcast.bundle.manifest import Manifest
from kvcast.runtimes.base import Float32, Int64
from kvcast.runtimes.history import check_sources
from kvcast.runtimes.native.runtime import NativeRuntime


class NativePrefix(NativeRuntime):
    """The first call of an empty row is its source."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        super().__init__(folder, manifest, threads)
        self._width: int = manifest.dimensions["width"]
        self._max_positions: int = manifest.dimensions["max_positions"]
        self._pooled: bool = manifest.dimensions["pooled"]

    def embed(self, sources: Sequence[Int64]) -> Float32:
        """Return the pooled first token of each source, fp32 [len(sources), width].

        Raises KvcastError for a source that is empty or longer than the model takes.
        """
        check_sources(sources, self._max_positions)
        first_nx = np.empty((len(sources), self._width), np.float32)
        for row, source in zip(first_nx, sources, strict=True):
            row[:] = self._first_hidden(np.asarray(source, np.int64))
        if not self._pooled or not len(sources):
            return first_nx
        pooled_nx = np.empty_like(first_nx)
        call = self.interpreter.call("pool", {"hidden": first_nx}, {"pooled": pooled_nx})
        self.interpreter.run(call)
        return pooled_nx

    def _first_hidden(self, tokens_s: Int64) -> Float32:
        """Return the first token's hidden state [width]."""
        hidden_1px = np.empty((1, 1, self._width), np.float32)
        values = {
            "tokens": tokens_s[None].copy(),
            "lengths": np.zeros(1, np.int32),
            "offsets": np.zeros(1, np.int64),
            **dict(zip(self._past, self.new_cache(1, len(tokens_s)).memory.cells, strict=True)),
        }
        self.interpreter.run(self.interpreter.call("decode", values, {"hidden": hidden_1px}))
        return hidden_1px.reshape(-1)
