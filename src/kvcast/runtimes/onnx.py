"""Encoder-decoder bundles on ONNX Runtime, without torch.

The self cache of all layers is one NumPy array; each layer's part is bound as past and as present
of the decode graph, so a step writes its new rows there and copies nothing else. Cross caches are
the encode graph's outputs, bound once for all steps. Knows graphs by the names and aliases in the
bundle's manifest and nothing of models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.bundle.manifest import Graph, Manifest
from kvcast.errors import KvcastError
from kvcast.runtimes.base import Float32, Int32, Int64
from kvcast.runtimes.lineage import Lineage
from kvcast.runtimes.onnx_session import Step, bind, onnx_session, ort_value

# In the names of a quantised cross cache's scales, which all inputs share.
_SCALE = "_scale_"


@dataclass(frozen=True)
class OnnxCrossCache:
    """What the encode graph took and gave, by name.

    Among it are caches [batch, heads, t, d], and their scales if they are quantised.
    """

    values: Mapping[str, Any]
    batch: int

    def of_input(self, index: int) -> "OnnxCrossCache":
        """Return a view of one input's part; scales belong to all."""
        part = slice(index, index + 1)
        views = {
            name: value if _SCALE in name else ort_value(value.numpy()[part])
            for name, value in self.values.items()
        }
        return OnnxCrossCache(views, 1)


class _Buffers:
    """The memory of one self cache, the cross cache that its rows read, and their bindings."""

    def __init__(
        self, session: Any, graph: Graph, cells: Float32, cross: OnnxCrossCache, vocab: int
    ) -> None:
        # [layers * 2, rows, heads, capacity, d], in the order of the graph's past inputs.
        self.cells = cells
        self.cross = cross
        self._session = session
        self._graph = graph
        self._vocab = vocab

    def run(self, tokens_rs: Int64, lengths: Int32, offsets: Int64) -> Float32:
        """Run the graph and return logits [rows, len(offsets), vocab]."""
        logits = np.empty((len(tokens_rs), len(offsets), self._vocab), np.float32)
        self._session.run_with_iobinding(self._bind(tokens_rs, lengths, offsets, logits))
        return logits

    def step(self, tokens_rs: Int64, lengths: Int32) -> Float32:
        """Like `run` for one new token a row, through a binding made once."""
        step = self._step
        step.tokens_rs[:] = tokens_rs
        step.lengths[:] = lengths
        self._session.run_with_iobinding(step.binding)
        return step.logits.copy()

    @cached_property
    def _step(self) -> Step:
        rows = self.cells.shape[1]
        tokens_rs = np.zeros((rows, 1), np.int64)
        lengths = np.zeros(rows, np.int32)
        logits = np.empty((rows, 1, self._vocab), np.float32)
        binding = self._bind(tokens_rs, lengths, np.zeros(1, np.int64), logits)
        return Step(tokens_rs, lengths, logits, binding)

    def _bind(self, tokens_rs: Int64, lengths: Int32, offsets: Int64, logits: Float32) -> Any:
        values = dict(self.cross.values)
        values["tokens"] = ort_value(tokens_rs)
        values["lengths"] = ort_value(lengths)
        values["offsets"] = ort_value(offsets)
        past = [name for name in self._graph.inputs if name.startswith("past_")]
        values |= zip(past, map(ort_value, self.cells), strict=True)
        return bind(self._session, self._graph, values, logits)


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
        self._encode_graph = manifest.graph("encode")
        self._decode_graph = manifest.graph("decode")
        self._encode_session = onnx_session(folder / self._encode_graph.file, threads)
        self._decode_session = onnx_session(folder / self._decode_graph.file, threads)
        # Only then are cross caches bound as outputs too.
        self._cross_is_quantized = any(
            buffer.startswith("cross_") for buffer in self._decode_graph.aliases.values()
        )
        self._layers = manifest.cache_layers("linear")
        self._vocab: int = manifest.dimensions["vocab_size"]

    def encode(self, *source: NDArray[Any]) -> OnnxCrossCache:
        """See the protocol."""
        # Copies: a cache keeps lengths, and the caller's arrays may become something else.
        arrays = [ort_value(np.array(part, order="C")) for part in source]
        feed = dict(zip(self._encode_graph.inputs, arrays, strict=True))
        outputs = list(self._encode_graph.outputs)
        values = self._encode_session.run_with_ort_values(outputs, feed)
        return OnnxCrossCache(feed | dict(zip(outputs, values, strict=True)), len(source[0]))

    def new_cache(self, cross: OnnxCrossCache, rows: int, capacity: int | None = None) -> OnnxCache:
        """See the protocol."""
        layers = self._layers
        positions = min(capacity or layers.capacity, layers.capacity)
        shape = (2 * layers.layers, rows, layers.heads, positions, layers.head_dim)
        lineage = Lineage.empty(rows, positions)
        return OnnxCache(self._buffers(np.empty(shape, np.float32), cross), lineage)

    def decode(
        self, tokens_rs: Int64, cache: OnnxCache, positions: Sequence[int] = (-1,)
    ) -> tuple[Float32, OnnxCache]:
        """See the protocol."""
        new, capacity = tokens_rs.shape[1], cache.buffers.cells.shape[3]
        if cache.lengths.max(initial=0) + new > capacity:
            raise KvcastError(f"the cache holds {capacity} positions and is full")
        offsets = np.asarray(positions, np.int64) % new
        logits = self._decode(cache.buffers, tokens_rs, cache.lengths, offsets)
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

    def _decode(
        self, buffers: _Buffers, tokens_rs: Int64, lengths: Int32, offsets: Int64
    ) -> Float32:
        """Run in as few calls as GroupQueryAttention allows.

        With several queries an input over keys that are there, be they beams over a quantised
        cross cache or a chunk over a self cache, it takes one input or row at a time. Parts of
        the batch's buffers are views, so splitting copies nothing.
        """
        (rows, new), batch = tokens_rs.shape, buffers.cross.batch
        one_query = new == 1 and rows == batch
        if batch == 1 or one_query or not self._cross_is_quantized:
            if new == len(offsets) == 1:
                return buffers.step(tokens_rs, lengths)
            if rows == 1 or new == 1 or not lengths.any():
                return buffers.run(np.ascontiguousarray(tokens_rs), lengths, offsets)
        if batch > 1:
            size = rows // batch
            parts = [(slice(i * size, (i + 1) * size), i) for i in range(batch)]
        else:
            parts = [(slice(row, row + 1), 0) for row in range(rows)]
        logits = []
        for part, i in parts:
            cross = buffers.cross.of_input(i)
            view = self._buffers(buffers.cells[:, part], cross)
            logits.append(self._decode(view, tokens_rs[part], lengths[part], offsets))
        return np.concatenate(logits)

    def _buffers(self, cells: Float32, cross: OnnxCrossCache) -> _Buffers:
        return _Buffers(self._decode_session, self._decode_graph, cells, cross, self._vocab)
