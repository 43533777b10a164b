"""Encoder-decoder bundles on ONNX Runtime, without torch.

What the encode graph gives, and what the decode graph wants of its inputs beside, is bound once for
all steps. Knows graphs by the names in the bundle's manifest and nothing of models.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.runtimes.base import EncoderDecoderOf
from kvcast.runtimes.cache import Cache
from kvcast.runtimes.onnx_decoder import OnnxRuntime
from kvcast.runtimes.onnx_session import onnx_session, ort_value


class OnnxEncoderDecoder(OnnxRuntime, EncoderDecoderOf[Cache]):
    """`encode`, and `decode` over what it gave."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        self._encode_graph = manifest.graph("encode")
        self._encode_session = onnx_session(folder / self._encode_graph.file, threads)
        super().__init__(folder, manifest, threads, encode=self._encode_session)
        self.longest = manifest.cache_layers("linear").capacity

    @override
    def encode(self, cache: Cache, slots: Sequence[int], *source: NDArray[Any]) -> Cache:
        cache.vacate(slots)
        # Copies: a cache keeps lengths, and the caller's arrays may become something else.
        given = [np.array(part, order="C") for part in source]
        arrays = dict(zip(self._encode_graph.inputs, given, strict=True))
        feed = {name: ort_value(array) for name, array in arrays.items()}
        outputs = list(self._encode_graph.outputs)
        values = self._encode_session.run_with_ort_values(outputs, feed)
        arrays |= {name: value.numpy() for name, value in zip(outputs, values, strict=True)}
        cache.memory.fill(slots, [arrays[name] for name in self.encoded])
        return cache
