"""Bundles on ONNX Runtime, without torch: `decode`, for all families, and `encode`.

Each layer's key and value are bound as past and as present of the graph, so a step writes its new
positions there and copies nothing else; encoded inputs are bound in place.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.families.programs import ALIGNMENT_QUERIES, CacheLayers
from kvcast.runtimes.alignment import NumpyAligningRuntime
from kvcast.runtimes.base import Float32, Int32, Int64, Tokens
from kvcast.runtimes.bound import LOGITS, OFTEN, BoundRuntime, Chunk, StepArrays
from kvcast.runtimes.cache import CacheHandle
from kvcast.runtimes.calls import Run
from kvcast.runtimes.memory import CompactedRing, Layer, Memory, recurrent_layers
from kvcast.runtimes.onnx.session import OnnxGraph, bind, check_graphs, onnx_session, ort_value
from kvcast.runtimes.prefix import EmbeddingRuntime

# A full ring is compacted once in this many steps.
_SPARE = 128


class OnnxRuntime(BoundRuntime):
    def __init__(self, folder: Path, manifest: Manifest, threads: int, **others: OnnxGraph) -> None:
        self._graph = manifest.graph("decode")
        self._session = onnx_session(folder / self._graph.file, threads)
        check_graphs(manifest, {"decode": self._session, **others})
        super().__init__(manifest, self._session.run_with_iobinding)
        # Only then are cross caches bound as outputs too.
        self._cross_is_quantized = any(
            buffer.startswith("cross_") for buffer in self._graph.aliases.values()
        )

    @override
    def layers(self, capacity: int) -> Sequence[Layer]:
        return [
            part
            for layer in self._layers
            for _ in range(layer.layers)
            for part in _parts(layer, capacity)
        ]

    @override
    def chunk(
        self,
        tokens: Tokens,
        cache: CacheHandle,
        rows: list[int],
        positions: Sequence[int],
        run: Run,
    ) -> Chunk:
        tokens_rs = np.stack([tokens[i] for i in run.index])
        lengths = cache.lengths[[rows[i] for i in run.index]]
        offsets = np.asarray(positions, np.int64) % run.new
        if len(rows) == 1 and run.new <= OFTEN:
            return self._short_chunk(cache.memory, run, tokens_rs, lengths, offsets)
        logits = np.empty((len(run.index), len(offsets), self._vocab), np.float32)
        first, calls = run.places.start, []
        for call in self._divided(run, empty=not lengths.any()):
            part = slice(call.places.start - first, call.places.stop - first)
            given = (tokens_rs[part], lengths[part], offsets)
            calls.append(self.bind(cache.memory, call, given, {LOGITS: logits[part]}))
        return Chunk(calls, logits)

    def _short_chunk(
        self, memory: Memory, run: Run, tokens_rs: Int64, lengths: Int32, offsets: Int64
    ) -> Chunk:
        """Append a few tokens to one row, through a cached binding."""
        key = ("chunk", run.places, run.slots, run.new, tuple(offsets.tolist()))
        if key not in memory.bound:
            whole = memory.bound.setdefault("chunk", self._logits(OFTEN))
            step = StepArrays(tokens_rs, lengths, offsets, whole[:, : len(offsets)])
            memory.bound[key] = step, self.bind(memory, run, step.given, {LOGITS: step.logits})
        step, binding = memory.bound[key]
        step.tokens_rs[...] = tokens_rs
        step.lengths[...] = lengths
        return Chunk([binding], step.logits)

    def _logits(self, positions: int) -> Float32:
        return np.empty((1, positions, self._vocab), np.float32)

    @override
    def divided(self, run: Run) -> Iterator[Run]:
        return self._divided(run, empty=False)

    def _divided(self, run: Run, *, empty: bool) -> Iterator[Run]:
        """Split a run into pieces that one GroupQueryAttention call supports.

        With several queries per input over cached keys (beams over an int8 cross-attention cache,
        or a chunk) it takes one input or row. Prompts of decoder-only models run row by row, too,
        so that a text does not depend on its batch.
        """
        if run.new > 1 and not (empty and run.slots):
            return run.split(1)
        if self._cross_is_quantized and (run.new > 1 or run.rows_each > 1):
            return run.split(run.rows_each)
        return iter([run])

    @override
    def bind(
        self,
        memory: Memory,
        run: Run,
        given: Sequence[NDArray[Any]],
        results: Mapping[str, Float32],
    ) -> Any:
        return bind(self._session, self._graph, self.arguments(memory, run, given), results)


class OnnxEncoderDecoder(OnnxRuntime, NumpyAligningRuntime):
    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        self._encode_graph = manifest.graph("encode")
        self._encode_session = onnx_session(folder / self._encode_graph.file, threads)
        super().__init__(folder, manifest, threads, encode=self._encode_session)
        self.longest = manifest.cache_layers("linear").capacity
        self.alignment_heads = manifest.dimensions.get("alignment_heads", ())
        self._head_dim = manifest.cache_layers("linear").head_dim

    @override
    def encode(
        self, cache: CacheHandle, slots: Sequence[int], *source: NDArray[Any]
    ) -> CacheHandle:
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

    @override
    def query(
        self, tokens_s: Int64, cache: CacheHandle, row: int, positions: Sequence[int]
    ) -> tuple[Float32, Float32]:
        (run,) = cache.plan([row], [tokens_s]).runs
        new, width = len(tokens_s), len(self.alignment_heads) * self._head_dim
        offsets = np.asarray(positions, np.int64) % new
        logits_rpv = self._kept_logits(cache, len(offsets))
        queries_rsx = np.empty((1, new, width), np.float32)
        given = np.array(tokens_s, np.int64)[None], cache.lengths[[row]], offsets
        results = {LOGITS: logits_rpv, ALIGNMENT_QUERIES: queries_rsx}
        self._session.run_with_iobinding(self.bind(cache.memory, run, given, results))
        return logits_rpv[0], queries_rsx[0]

    def _kept_logits(self, cache: CacheHandle, positions: int) -> Float32:
        """Return reused memory for logits: fresh pages cost more than the GEMM that fills them."""
        bound = cache.memory.bound
        if "query" not in bound:
            bound["query"] = self._logits(cache.capacity)
        logits_rpv: Float32 = bound["query"][:, :positions]
        return logits_rpv

    @override
    def cross_keys(self, cache: CacheHandle, row: int, layer: int, heads: Sequence[int]) -> Float32:
        slots = cache.memory.slots
        place = slots.places[cache.input_of(row)]
        parts = dict(zip(self.encoded, slots.parts, strict=True))
        key_htd: Float32 = parts[f"cross_key_{layer}"][place, heads].astype(np.float32)
        if (scale := parts.get(f"cross_key_scale_{layer}")) is not None:
            key_htd *= scale[place].reshape(-1, 1, self._head_dim)[heads]
        return key_htd


def _parts(layer: CacheLayers, capacity: int) -> list[Layer]:
    """Describe the tensors of a layer; a ring's slots are the same for any capacity."""
    if parts := recurrent_layers(layer, np.float32):
        return parts
    ring = CompactedRing(layer.capacity, layer.capacity + _SPARE) if layer.kind == "ring" else None
    slots = ring.slots if ring else capacity
    return [Layer((layer.heads, slots, layer.head_dim), layer.dtype, ring)] * 2


class OnnxPrefix(OnnxRuntime, EmbeddingRuntime):
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
