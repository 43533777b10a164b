"""Bundles of models that read a source as a prefix, on ExecuTorch.

Knows methods by their names and nothing of models.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from kvcast.bundle.manifest import Manifest
from kvcast.runtimes.base import Float32, Int64
from kvcast.runtimes.executorch.runtime import ExecutorchRuntime
from kvcast.runtimes.history import check_sources


class ExecutorchPrefix(ExecutorchRuntime):
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
        vectors_nx = np.empty((len(sources), self._width), np.float32)
        for vector, source in zip(vectors_nx, sources, strict=True):
            cells = [cell[0] for cell in self.new_cache(1, len(source)).memory.cells]
            hidden_1x = self._decode.call(source, 0, np.zeros(1, np.int64), cells)[1][0]
            if self._pooled:
                hidden_1x = self._methods.run("pool", [hidden_1x])[0]
            vector[:] = torch.squeeze(hidden_1x, 0).numpy()
        return vectors_nx
