"""Decoder-only bundles on ONNX Runtime, without torch.

Each layer's key and value are arrays that are bound as past and as present of the graph, so a
step writes its new positions there and copies nothing else. Prefill runs row by row, on views of
the batch's arrays; a step runs all rows that take part at once. Knows the graph by the names and
aliases in the bundle's manifest and nothing of models.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.bundle.manifest import CacheLayers, Graph, Manifest
from kvcast.runtimes.base import Float32, Int32, Int64
from kvcast.runtimes.history import History, Move
from kvcast.runtimes.onnx_session import Step, bind, onnx_session, ort_value

# A ring that is full is moved together once in so many steps.
_SPARE = 128


class _Buffers:
    """The memory of a cache: for each layer key and value [rows, heads, capacity, d].

    A row lies at a place; places change so that rows that step together are neighbours, from the
    first on, and one call serves them all.
    """

    def __init__(
        self,
        session: Any,
        graph: Graph,
        layers: Sequence[CacheLayers],
        vocab: int,
        shape_rc: tuple[int, int],
    ) -> None:
        self._session = session
        self._graph = graph
        self._vocab = vocab
        self._past = [name for name in graph.inputs if name.startswith("past_")]
        self._steps: dict[int, Step] = {}
        rows, capacity = shape_rc
        self.places = list(range(rows))
        self.cells: list[NDArray[np.float32 | np.int8]] = []
        self._is_ring: list[bool] = []
        for layer in layers:
            shape = (rows, layer.heads, _slots(layer, capacity), layer.head_dim)
            self.cells += [np.empty(shape, layer.dtype), np.empty(shape, layer.dtype)]
            self._is_ring += [layer.kind == "ring"] * 2

    def run(self, row: int, tokens_s: Int64, length: int, offsets: Int64) -> Float32:
        """Append to one row; return logits [len(offsets), vocab]."""
        place = self.places[row]
        logits = np.empty((1, len(offsets), self._vocab), np.float32)
        lengths = np.array([length], np.int32)
        part = slice(place, place + 1)
        self._session.run_with_iobinding(
            self._bind(np.ascontiguousarray(tokens_s)[None], lengths, offsets, logits, part)
        )
        return logits.squeeze(0)

    def step(self, rows: Sequence[int], tokens_r: Int64, lengths_r: Int32) -> Float32:
        """Append one token to each of some rows; return logits [rows, 1, vocab]."""
        self._gather(rows)
        order = [self.places[row] for row in rows]
        step = self._step(len(rows))
        step.tokens_rs[order, 0] = tokens_r
        step.lengths[order] = lengths_r
        self._session.run_with_iobinding(step.binding)
        # Taking rows copies: the next step overwrites what was bound.
        return step.logits.take(order, axis=0)

    def first_hidden(self, tokens_s: Int64) -> Float32:
        """Give the only row its tokens; return the first one's hidden state [width]."""
        feed = {
            "tokens": np.asarray(tokens_s, np.int64)[None],
            "lengths": np.zeros(1, np.int32),
            "offsets": np.zeros(1, np.int64),
            **dict(zip(self._past, self.cells, strict=True)),
        }
        hidden_1px: Float32 = self._session.run(["hidden"], feed)[0]
        return hidden_1px.reshape(-1)

    def move(self, moves: Sequence[Move]) -> None:
        """Copy parts of rows to others, all at once."""
        targets = [self.places[move.target] for move in moves]
        sources = [self.places[move.source] for move in moves]
        first, stop = min(move.first for move in moves), max(move.stop for move in moves)
        for cell, is_ring in zip(self.cells, self._is_ring, strict=True):
            # Where a position lies in a ring depends on the row's past: it is copied whole.
            span = slice(None) if is_ring else slice(first, stop)
            cell[targets, :, span] = cell[sources, :, span]

    def _gather(self, rows: Sequence[int]) -> None:
        """Let `rows` have the first places."""
        wanted = set(range(len(rows)))
        free = sorted(wanted - {self.places[row] for row in rows})
        for row in rows:
            if self.places[row] not in wanted:
                self._swap(row, free.pop())

    def _swap(self, row: int, place: int) -> None:
        other, old = self.places.index(place), self.places[row]
        for cell in self.cells:
            cell[[old, place]] = cell[[place, old]]
        self.places[row], self.places[other] = place, old

    def _step(self, count: int) -> Step:
        if count not in self._steps:
            tokens_rs = np.zeros((count, 1), np.int64)
            lengths = np.zeros(count, np.int32)
            logits = np.empty((count, 1, self._vocab), np.float32)
            offsets = np.zeros(1, np.int64)
            binding = self._bind(tokens_rs, lengths, offsets, logits, slice(0, count))
            self._steps[count] = Step(tokens_rs, lengths, logits, binding)
        return self._steps[count]

    def _bind(
        self, tokens_rs: Int64, lengths: Int32, offsets: Int64, logits: Float32, part: slice
    ) -> Any:
        values = {
            "tokens": ort_value(tokens_rs),
            "lengths": ort_value(lengths),
            "offsets": ort_value(offsets),
        }
        cells = (ort_value(cell[part]) for cell in self.cells)
        values |= zip(self._past, cells, strict=True)
        return bind(self._session, self._graph, values, logits)


@dataclass(frozen=True)
class OnnxDecoderCache:
    """A cache and what it holds."""

    buffers: _Buffers
    history: History

    @property
    def lengths(self) -> Int32:
        """[rows]: number of positions that each row has seen."""
        return self.history.lengths

    @property
    def capacity(self) -> int:
        """Longest sequence that a row can come to."""
        return self.history.capacity


class OnnxDecoderOnly:
    """Meets `kvcast.runtimes.base.DecoderOnly`."""

    _history: type[History] = History

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        self._graph = manifest.graph("decode")
        self._session = onnx_session(folder / self._graph.file, threads)
        self._layers = manifest.cache
        self._vocab: int = manifest.dimensions["vocab_size"]

    def new_cache(self, rows: int, capacity: int) -> OnnxDecoderCache:
        """See the protocol."""
        history = self._history.empty(rows, capacity)
        return OnnxDecoderCache(self._buffers(rows, capacity), history)

    def decode(
        self,
        tokens: Sequence[Int64],
        cache: OnnxDecoderCache,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, OnnxDecoderCache]:
        """See the protocol."""
        taking_part = list(range(len(cache.lengths)) if rows is None else rows)
        grown = cache.history.append(taking_part, tokens)
        lengths = cache.lengths[taking_part]
        if len(positions) == 1 and all(len(new) == 1 for new in tokens):
            logits = cache.buffers.step(taking_part, np.concatenate(tokens), lengths)
        else:
            logits = np.stack(
                [
                    cache.buffers.run(
                        row, new, int(length), np.asarray(positions, np.int64) % len(new)
                    )
                    for row, new, length in zip(taking_part, tokens, lengths, strict=True)
                ]
            )
        return logits, replace(cache, history=grown)

    def reorder(self, cache: OnnxDecoderCache, sources: Sequence[int]) -> OnnxDecoderCache:
        """See the protocol."""
        history, moves = cache.history.reorder(sources)
        if moves:
            cache.buffers.move(moves)
        return replace(cache, history=history)

    def fork(
        self, cache: OnnxDecoderCache, sources: Sequence[int], capacity: int | None = None
    ) -> OnnxDecoderCache:
        """See the protocol."""
        history = cache.history.fork(sources, capacity or cache.capacity)
        buffers = self._buffers(len(sources), history.capacity)
        places = [cache.buffers.places[row] for row in sources]
        held = int(history.lengths.max(initial=0))
        for old, new in zip(cache.buffers.cells, buffers.cells, strict=True):
            kept = min(held, old.shape[2], new.shape[2])
            new[:, :, :kept] = old[places, :, :kept]
        return OnnxDecoderCache(buffers, history)

    def reset(self, cache: OnnxDecoderCache, rows: Sequence[int]) -> OnnxDecoderCache:
        """See the protocol."""
        return replace(cache, history=cache.history.reset(rows))

    def _buffers(self, rows: int, capacity: int) -> _Buffers:
        return _Buffers(self._session, self._graph, self._layers, self._vocab, (rows, capacity))


def _slots(layer: CacheLayers, capacity: int) -> int:
    """Slots of a layer in a cache for sequences of `capacity` positions.

    A ring has as many whatever the capacity, so that a row can go to another cache as it lies.
    """
    return layer.capacity + _SPARE if layer.kind == "ring" else capacity
