"""Bundles of models that read a source as a prefix, on kvcast's own interpreter, without torch.

Knows programs by the names in the bundle's manifest and nothing of models.
"""

import numpy as np
from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.runtimes.base import Float32, Int64
from kvcast.runtimes.native.interpreter import Interpreter
from kvcast.runtimes.native.runtime import NativeRuntime
from kvcast.runtimes.prefix import EmbeddingRuntime


class NativePrefix(NativeRuntime, EmbeddingRuntime):
    """The first call of an empty row is its source."""

    def __init__(self, manifest: Manifest, interpreter: Interpreter) -> None:
        super().__init__(manifest, interpreter)
        self.prompts_differ = False  # a source's positions see each other in both directions
        self.width = manifest.dimensions["width"]
        self.max_positions = manifest.dimensions["max_positions"]
        self._pooled: bool = manifest.dimensions["pooled"]

    @override
    def first_hidden(self, tokens_s: Int64) -> Float32:
        hidden_1px = np.empty((1, 1, self.width), np.float32)
        values = {
            "tokens": tokens_s[None].copy(),
            "lengths": np.zeros(1, np.int32),
            "offsets": np.zeros(1, np.int64),
            **dict(zip(self._past, self.new_cache(1, len(tokens_s)).memory.cells, strict=True)),
        }
        self.interpreter.run(self.interpreter.call("decode", values, {"hidden": hidden_1px}))
        return hidden_1px.reshape(-1)

    @override
    def pool(self, hidden_nx: Float32) -> Float32:
        if not self._pooled:
            return hidden_nx
        pooled_nx = np.empty_like(hidden_nx)
        self.interpreter.run(
            self.interpreter.call("pool", {"hidden": hidden_nx}, {"pooled": pooled_nx})
        )
        return pooled_nx
