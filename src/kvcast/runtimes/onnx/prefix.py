"""Bundles of models that read a source as a prefix, on ONNX Runtime, without torch.

Knows graphs by the names in the bundle's manifest and nothing of models.
"""

from pathlib import Path

import numpy as np
from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.runtimes.base import Float32, Int64
from kvcast.runtimes.onnx.graph import check_graphs
from kvcast.runtimes.onnx.runtime import OnnxRuntime
from kvcast.runtimes.onnx.session import onnx_session
from kvcast.runtimes.prefix import EmbeddingRuntime


class OnnxPrefix(OnnxRuntime, EmbeddingRuntime):
    """The first call of an empty row is its source."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        super().__init__(folder, manifest, threads)
        self.width = manifest.dimensions["width"]
        self.max_positions = manifest.dimensions["max_positions"]
        self._pool = (
            onnx_session(folder / manifest.graph("pool").file, threads)
            if manifest.dimensions["pooled"]
            else None
        )
        if self._pool is not None:
            check_graphs(manifest, {"pool": self._pool})

    @override
    def first_hidden(self, tokens_s: Int64) -> Float32:
        feed = {
            "tokens": tokens_s[None],
            "lengths": np.zeros(1, np.int32),
            "offsets": np.zeros(1, np.int64),
            **dict(zip(self._past, self.new_cache(1, len(tokens_s)).memory.cells, strict=True)),
        }
        hidden_1px: Float32 = self._session.run(["hidden"], feed)[0]
        return hidden_1px.reshape(-1)

    @override
    def pool(self, hidden_nx: Float32) -> Float32:
        if self._pool is None:
            return hidden_nx
        pooled_nx: Float32 = self._pool.run(["pooled"], {"hidden": hidden_nx})[0]
        return pooled_nx
