"""Bundles of models that read a source as a prefix, on ExecuTorch.

Knows methods by their names and nothing of models.
"""

from pathlib import Path

import numpy as np
import torch
from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.runtimes.base import Float32, Int64
from kvcast.runtimes.executorch.runtime import ExecutorchRuntime
from kvcast.runtimes.prefix import EmbeddingRuntime


class ExecutorchPrefix(ExecutorchRuntime, EmbeddingRuntime):
    """The first call of an empty row is its source."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        super().__init__(folder, manifest, threads)
        self.width = manifest.dimensions["width"]
        self.max_positions = manifest.dimensions["max_positions"]
        self._pooled: bool = manifest.dimensions["pooled"]

    @override
    def first_hidden(self, tokens_s: Int64) -> Float32:
        cells = [cell[0] for cell in self.new_cache(1, len(tokens_s)).memory.cells]
        hidden_1sx = self._decode.call(tokens_s, 0, np.zeros(1, np.int64), cells)[1]
        first_x: Float32 = hidden_1sx[0, 0].numpy()
        return first_x

    @override
    def pool(self, hidden_nx: Float32) -> Float32:
        if not self._pooled:
            return hidden_nx
        rows = [torch.from_numpy(hidden_1x[None]) for hidden_1x in hidden_nx]
        return np.concatenate([self._methods.run("pool", [row])[0].numpy() for row in rows])
