"""Encoder-decoder bundles on ONNX Runtime, without torch.

The self cache of all layers is one NumPy array; each layer's part is bound as past and as present
of the decode graph, so a step writes its new rows there and copies nothing else. Cross caches are
the encode graph's outputs, bound once. Knows graphs by the names in the bundle's manifest and
nothing of models.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from kvcast.bundle.manifest import Graph, Manifest
from kvcast.errors import KvcastError
from kvcast.runtimes.base import Float32, Int32, Int64
from kvcast.runtimes.lineage import Lineage

_QUIET = 3  # errors only: warnings are about optimisations of no interest to a user


@dataclass(frozen=True)
class OnnxCrossCache:
    """One OrtValue [batch, heads, t, d] for each cross input of the decode graph."""

    values: list[Any]
    batch: int

    def of_input(self, index: int) -> "OnnxCrossCache":
        """Return a view of one input's part."""
        views = [_ort_value(value.numpy()[index : index + 1]) for value in self.values]
        return OnnxCrossCache(views, 1)


class _Buffers:
    """The memory of one self cache, and the binding of single-token steps to it."""

    def __init__(
        self, session: Any, graph: Graph, cells: Float32, cross: OnnxCrossCache, vocab: int
    ) -> None:
        # [layers * 2, rows, heads, capacity, d], in the order of the graph's cache inputs.
        self.cells = cells
        self.cross = cross
        self._session = session
        self._graph = graph
        self._vocab = vocab

    def run(self, tokens_rs: Int64, lengths: Int32, offsets: Int64) -> Float32:
        """Run the graph on these buffers and return logits [rows, len(offsets), vocab]."""
        logits = np.empty((len(tokens_rs), len(offsets), self._vocab), np.float32)
        binding = self._bind(tokens_rs, lengths, offsets, logits)
        self._session.run_with_iobinding(binding)
        return logits

    def step(self, tokens_rs: Int64, lengths: Int32) -> Float32:
        """Like `run` for one new token a row, through a binding made once."""
        step = self._step
        step.tokens_rs[:] = tokens_rs
        step.lengths[:] = lengths
        self._session.run_with_iobinding(step.binding)
        return step.logits.copy()

    @cached_property
    def _step(self) -> "_Step":
        rows = self.cells.shape[1]
        tokens_rs = np.zeros((rows, 1), np.int64)
        lengths = np.zeros(rows, np.int32)
        logits = np.empty((rows, 1, self._vocab), np.float32)
        binding = self._bind(tokens_rs, lengths, np.zeros(1, np.int64), logits)
        return _Step(tokens_rs, lengths, logits, binding)

    def _bind(self, tokens_rs: Int64, lengths: Int32, offsets: Int64, logits: Float32) -> Any:
        binding = self._session.io_binding()
        caches = [_ort_value(layer) for layer in self.cells]
        inputs = [
            *(_ort_value(array) for array in (tokens_rs, lengths, offsets)),
            *caches,
            *self.cross.values,
        ]
        for name, value in zip(self._graph.inputs, inputs, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name, value in zip(self._graph.outputs, [_ort_value(logits), *caches], strict=True):
            binding.bind_ortvalue_output(name, value)
        return binding


@dataclass(frozen=True)
class _Step:
    tokens_rs: Int64
    lengths: Int32
    logits: Float32
    binding: Any


@dataclass(frozen=True)
class OnnxCache:
    """A self cache and what its cells hold."""

    buffers: _Buffers
    lineage: Lineage

    @property
    def lengths(self) -> Int32:
        """[rows]: number of positions that each row has seen."""
        return self.lineage.lengths


class OnnxEncoderDecoder:
    """Meets `kvcast.runtimes.base.EncoderDecoder`."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        self._manifest = manifest
        self._encode_graph = manifest.graph("encode")
        self._decode_graph = manifest.graph("decode")
        self._encode_session = _session(folder / self._encode_graph.file, threads)
        self._decode_session = _session(folder / self._decode_graph.file, threads)
        self._cache = manifest.cache_layers("linear")

    def encode(self, features_bmt: Float32) -> OnnxCrossCache:
        """See the protocol."""
        (name,) = self._encode_graph.inputs
        feed = {name: _ort_value(np.ascontiguousarray(features_bmt, np.float32))}
        outputs = list(self._encode_graph.outputs)
        values = self._encode_session.run_with_ort_values(outputs, feed)
        return OnnxCrossCache(values, len(features_bmt))

    def new_cache(self, cross: OnnxCrossCache, rows: int) -> OnnxCache:
        """See the protocol."""
        layer = self._cache
        shape = (2 * layer.layers, rows, layer.heads, layer.capacity, layer.head_dim)
        return OnnxCache(
            self._buffers(np.empty(shape, np.float32), cross), Lineage.empty(rows, layer.capacity)
        )

    def decode(
        self, tokens_rs: Int64, cache: OnnxCache, positions: Sequence[int] = (-1,)
    ) -> tuple[Float32, OnnxCache]:
        """See the protocol."""
        rows, new = tokens_rs.shape
        lengths, capacity = cache.lengths, self._cache.capacity
        if lengths.max(initial=0) + new > capacity:
            raise KvcastError(f"the cache holds {capacity} positions and is full")
        offsets = np.asarray(positions, np.int64) % new
        if new == 1 and len(offsets) == 1:
            logits = cache.buffers.step(tokens_rs, lengths)
        elif rows == 1 or not lengths.any():
            logits = cache.buffers.run(np.ascontiguousarray(tokens_rs), lengths, offsets)
        else:
            logits = self._decode_row_by_row(tokens_rs, cache, offsets)
        return logits, replace(cache, lineage=cache.lineage.append(new))

    def reorder(self, cache: OnnxCache, sources: Sequence[int]) -> OnnxCache:
        """See the protocol."""
        cells = cache.buffers.cells
        if len(sources) != cells.shape[1]:
            lineage = cache.lineage.select(sources)
            held = int(lineage.lengths.max(initial=0))
            shape = (cells.shape[0], len(sources), *cells.shape[2:])
            selected = np.empty(shape, np.float32)
            selected[:, :, :, :held] = cells[:, list(sources), :, :held]
            return OnnxCache(self._buffers(selected, cache.buffers.cross), lineage)
        lineage, copy = cache.lineage.reorder(sources)
        if copy is not None:
            span = slice(copy.first, copy.stop)
            cells[:, copy.targets, :, span] = cells[:, copy.sources, :, span]
        return replace(cache, lineage=lineage)

    def reset(self, cache: OnnxCache, rows: Sequence[int]) -> OnnxCache:
        """See the protocol."""
        return replace(cache, lineage=cache.lineage.reset(rows))

    def _decode_row_by_row(self, tokens_rs: Int64, cache: OnnxCache, offsets: Int64) -> Float32:
        # GroupQueryAttention takes several new tokens over a cache that is not empty for one row
        # only; a row of the batch's buffers is a view, so nothing is copied.
        buffers = cache.buffers
        logits = []
        for row, tokens_s in enumerate(tokens_rs):
            cells = buffers.cells[:, row : row + 1]
            input_index = row // (len(tokens_rs) // buffers.cross.batch)
            view = self._buffers(cells, buffers.cross.of_input(input_index))
            logits.append(view.run(tokens_s[None], cache.lengths[row : row + 1], offsets))
        return np.concatenate(logits)

    def _buffers(self, cells: Float32, cross: OnnxCrossCache) -> _Buffers:
        vocab = self._manifest.dimensions["vocab_size"]
        return _Buffers(self._decode_session, self._decode_graph, cells, cross, vocab)


def _session(path: Path, threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = _QUIET
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _ort_value(array: np.ndarray[Any, Any]) -> Any:
    """Wrap without copying: ONNX Runtime reads and writes the array's own memory."""
    return ort.OrtValue.ortvalue_from_numpy(array)
