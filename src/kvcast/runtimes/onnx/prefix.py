"""Bundles of models that read a source as a prefix, on ONNX Runtime, without torch.

Knows graphs by the names in the bundle's manifest and nothing of models.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kvcast.bundle.manifest import Manifest
from kvcast.runtimes.base import Float32, Int64
from kvcast.runtimes.history import check_sources
from kvcast.runtimes.onnx.graph import check_graphs
from kvcast.runtimes.onnx.runtime import OnnxRuntime
from kvcast.runtimes.onnx.session import onnx_session


class OnnxPrefix(OnnxRuntime):
    """The first call of an empty row is its source."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        super().__init__(folder, manifest, threads)
        self._width: int = manifest.dimensions["width"]
        self._max_positions: int = manifest.dimensions["max_positions"]
        self._pool = (
            onnx_session(folder / manifest.graph("pool").file, threads)
            if manifest.dimensions["pooled"]
            else None
        )
        if self._pool is not None:
            check_graphs(manifest, {"pool": self._pool})

    def embed(self, sources: Sequence[Int64]) -> Float32:
        """Return the pooled first token of each source, fp32 [len(sources), width].

        Raises KvcastError for a source that is empty or longer than the model takes.
        """
        check_sources(sources, self._max_positions)
        first_nx = np.empty((len(sources), self._width), np.float32)
        for row, source in zip(first_nx, sources, strict=True):
            row[:] = self._first_hidden(np.asarray(source, np.int64))
        if self._pool is None or not len(sources):
            return first_nx
        pooled: Float32 = self._pool.run(["pooled"], {"hidden": first_nx})[0]
        return pooled

    def _first_hidden(self, tokens_s: Int64) -> Float32:
        """Return the first token's hidden state [width]."""
        feed = {
            "tokens": tokens_s[None],
            "lengths": np.zeros(1, np.int32),
            "offsets": np.zeros(1, np.int64),
            **dict(zip(self._past, self.new_cache(1, len(tokens_s)).memory.cells, strict=True)),
        }
        hidden_1px: Float32 = self._session.run(["hidden"], feed)[0]
        return hidden_1px.reshape(-1)
