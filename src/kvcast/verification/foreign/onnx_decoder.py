"""A decoder in ONNX with transformers' input names: past goes in, present comes out.

One graph computes all calls, or another one the first.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.runtimes.base import Float32, Int64
from kvcast.runtimes.onnx.session import OnnxGraph, onnx_session, ort_value
from kvcast.runtimes.self_test import versions
from kvcast.verification.foreign.base import ForeignModel, Movement, Source, StepWork
from kvcast.verification.foreign.onnx_graph import CacheEnd, DecoderGraph, movements
from kvcast.verification.foreign.readers import OnnxDecoderFiles

LOGITS = "logits"
_KNOWN = (
    *("input_ids", "attention_mask", "position_ids", "cache_position", "use_cache_branch"),
    *("encoder_hidden_states", "encoder_attention_mask", "num_logits_to_keep"),
)
_LEAST_PAST = 1
"""Positions of the placeholders that a first call gets in a graph with branches."""
_PROFILED = 16, 48
"""Lengths of the steps that are profiled, where a sequence has room for them."""


class OnnxDecoder(ForeignModel):
    def __init__(self, files: OnnxDecoderFiles, threads: int) -> None:
        self._files, self._threads = files, threads
        self._graph = DecoderGraph(files.step)
        self._first_graph = DecoderGraph(files.first) if files.first else None
        if files.encoder:
            DecoderGraph(files.encoder)  # checks where its data lies
        self._step = onnx_session(files.step, threads)
        self._first = onnx_session(files.first, threads) if files.first else None
        self._encode = onnx_session(files.encoder, threads) if files.encoder else None
        self._ends = self._sized(self._graph.caches)
        self._dtypes = {end.past: self._step.inputs()[end.past].dtype for end in self._ends}
        self._check()
        shape = self._step.outputs()[LOGITS].shape
        self.exporter, self.runtime = files.exporter, "ONNX Runtime"
        self.tools = versions("onnxruntime")
        self.precision = self._graph.precision()
        self.vocab_size = files.vocab_size or shape[-1] or 0
        self.capacity = files.capacity
        self.encoder = self._encoder_input()
        tokens = self._step.inputs()["input_ids"].shape
        self.takes_chunks = tokens[-1] != 1
        self._caches: dict[str, NDArray[Any]] = {}
        self._buffers: dict[str, NDArray[Any]] = {}
        self._rows = self._length = 0
        self._encoded: dict[str, NDArray[Any]] = {}

    @override
    def begin(self, rows: int, source: Source = ()) -> None:
        self._rows, self._length = rows, 0
        self._encoded = self._run_encoder(source) if self._encode else {}
        if self._files.shared:
            self._caches = {end.past: self._buffer(end, rows) for end in self._ends}
        else:
            # As optimum does, where the graph has branches; else there are no positions at all.
            held = _LEAST_PAST if "use_cache_branch" in self._graph.inputs else 0
            self._caches = {end.past: self._empty(end, rows, held) for end in self._ends}

    @override
    def feed(self, tokens_rs: Int64) -> Float32:
        begins = self._length == 0
        session = self._first if begins and self._first else self._step
        feed = self._feed(session, tokens_rs)
        run = self._run_in_place if self._files.shared else self._run
        logits: Float32 = run(session, feed).astype(np.float32, copy=False)
        self._length += tokens_rs.shape[1]
        return logits

    @override
    def cut(self, length: int) -> None:
        self._length = length
        if self._files.shared:
            return
        own = [end.past for end in self._ends if not end.crossed]
        self._caches |= {name: self._caches[name][:, :, :length].copy() for name in own}

    @override
    def reorder(self, parents: Sequence[int]) -> None:
        rows = list(parents)
        for name, cache in self._caches.items():
            moved = cache[rows]
            if self._files.shared:
                cache[:] = moved
            else:
                self._caches[name] = moved
        self._encoded = {name: part[rows] for name, part in self._encoded.items()}

    @override
    def held_bytes(self) -> int:
        return sum(self._caches[end.past].nbytes for end in self._ends if not end.crossed)

    @override
    def work(self) -> StepWork:
        own = [end for end in self._ends if not end.crossed]
        sizes = {end.past: self._position(end) for end in own}
        shared = self._files.shared
        total, repeated = self._weights()
        moved = self._graph.copies(shared=shared, sizes=sizes)
        least = min(count * size for count, size in sizes.values())
        return StepWork(
            caches={name: how for name, (how, _) in self._graph.ways(shared=shared).items()},
            moved=moved,
            measured=self._measured(least, [each.operator for each in moved]),
            recomputed=self._graph.recomputed(),
            branches=self._graph.branches,
            weights=total,
            repeated_weights=repeated,
        )

    def _measured(self, least: int, operators: Sequence[str]) -> Sequence[Movement] | None:
        """Profile steps at two lengths; None if the model has too few positions."""
        most = self.capacity or _PROFILED[1] + 1
        lengths = min(_PROFILED[0], most // 4), min(_PROFILED[1], most - 1)
        if lengths[0] < 1:
            return None
        folder = Path(tempfile.mkdtemp(prefix="kvcast-profile-"))
        try:
            return movements(
                lambda length: self._profile(folder, length), lengths, least, operators
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _profile(self, folder: Path, length: int) -> Path:
        """Profile one step over `length` positions of zeros."""
        session = onnx_session(self._files.step, self._threads, profile=folder / f"step-{length}")
        positions = 2  # of the encoder's output: any number
        self._rows, self._length = 1, length
        self._caches = {
            end.past: self._buffer(end, 1)
            if self._files.shared
            else self._empty(end, 1, positions if end.crossed else length)
            for end in self._ends
        }
        if self._encode:
            width = self._encode.outputs()["last_hidden_state"].shape[-1] or 1
            self._encoded = {
                "encoder_hidden_states": np.zeros((1, positions, width), np.float32),
                "encoder_attention_mask": np.ones((1, positions), np.int64),
            }
        run = self._run_in_place if self._files.shared else self._run
        run(session, self._feed(session, np.zeros((1, 1), np.int64)))
        return session.end_profiling()

    def _weights(self) -> tuple[int, int]:
        """Return the bytes of the decoder's weights, and of duplicates among them."""
        graphs = [graph for graph in (self._first_graph, self._graph) if graph]
        each = [weight for graph in graphs for weight in graph.weights()]
        alike: dict[Any, list[tuple[int, Any]]] = {}
        for kind, size, tensor in each:
            alike.setdefault(kind, []).append((size, tensor))
        repeated = 0
        for tensors in alike.values():
            if len(tensors) > 1:
                seen = set()
                for size, tensor in tensors:
                    digest = sha256(tensor.tobytes()).digest()
                    repeated += size if digest in seen else 0
                    seen.add(digest)
        return sum(size for _, size, _ in each), repeated

    def _feed(self, session: OnnxGraph, tokens_rs: Int64) -> dict[str, NDArray[Any]]:
        rows, new = tokens_rs.shape
        places_s = np.arange(self._length, self._length + new)
        values: dict[str, NDArray[Any]] = {
            "input_ids": tokens_rs,
            "attention_mask": np.ones((rows, self._length + new), np.int64),
            "position_ids": np.tile(places_s, (rows, 1)),
            "cache_position": places_s,
            "use_cache_branch": np.array([self._length > 0]),
            "num_logits_to_keep": np.array(new),
            **self._encoded,
            **self._caches,
        }
        return {
            name: np.ascontiguousarray(values[name], spec.dtype)
            if name not in self._caches
            else values[name]
            for name, spec in session.inputs().items()
        }

    def _run(self, session: OnnxGraph, feed: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        given = session.outputs()
        wanted = [end for end in self._ends if _present(end) in given]
        logits, *presents = session.run([LOGITS, *map(_present, wanted)], feed)
        filled = self._length > 0
        for end, present in zip(wanted, presents, strict=True):
            # A branch for a step gives placeholders for what it keeps.
            if not (end.crossed and filled):
                self._caches[end.past] = present
        result: NDArray[Any] = logits
        return result

    def _run_in_place(self, session: OnnxGraph, feed: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        binding = session.io_binding()
        values = {name: ort_value(array) for name, array in feed.items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_output(LOGITS)
        for end in self._ends:
            binding.bind_ortvalue_output(end.present, values[end.past])
        session.run_with_iobinding(binding)
        logits: NDArray[Any] = binding.get_outputs()[0].numpy()
        return logits

    def _run_encoder(self, source: Source) -> dict[str, NDArray[Any]]:
        assert self._encode is not None
        inputs = self._encode.inputs()
        (array,) = source
        rows, positions = array.shape[0], array.shape[-1]
        mask = np.ones((rows, positions), np.int64)
        values = {"input_ids": array, "input_features": array, "attention_mask": mask}
        feed = {
            name: np.ascontiguousarray(values[name], spec.dtype) for name, spec in inputs.items()
        }
        (hidden,) = self._encode.run(["last_hidden_state"], feed)
        return {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}

    def _encoder_input(self) -> Any:
        if self._encode is None:
            return ""
        return "features" if "input_features" in self._encode.inputs() else "tokens"

    def _buffer(self, end: CacheEnd, rows: int) -> NDArray[Any]:
        """Return a cache's memory for all positions, reused and not cleared."""
        buffer = self._buffers.get(end.past)
        if buffer is None or len(buffer) != rows:
            assert self.capacity is not None
            buffer = self._buffers[end.past] = self._empty(end, rows, self.capacity)
        return buffer

    def _empty(self, end: CacheEnd, rows: int, positions: int) -> NDArray[Any]:
        return np.zeros(
            (rows, end.heads or 1, positions, end.head_dim or 1), self._dtypes[end.past]
        )

    def _position(self, end: CacheEnd) -> tuple[int, int]:
        """Return the values of a position in a cache, and the bytes of one."""
        return (end.heads or 1) * (end.head_dim or 1), np.dtype(self._dtypes[end.past]).itemsize

    def _sized(self, ends: Sequence[CacheEnd]) -> Sequence[CacheEnd]:
        heads, size = self._files.sizes or (None, None)
        return [
            replace(end, heads=end.heads or heads, head_dim=end.head_dim or size) for end in ends
        ]

    def _check(self) -> None:
        """Raise KvcastError for a graph with unknown inputs."""
        path = self._files.step
        if not self._ends:
            raise KvcastError(f"{path} takes no past_key_values: export it with past")
        caches = {end.past for end in self._ends}
        for session in filter(None, (self._step, self._first)):
            for name in session.inputs():
                if name not in caches and name not in _KNOWN:
                    raise KvcastError(f"{session.path} has an input {name!r} that is not known")
            if LOGITS not in session.outputs():
                raise KvcastError(f"{session.path} gives no logits: export it with its head")
        for end in self._ends:
            if end.heads is None or end.head_dim is None:
                raise KvcastError(f"{path}: {end.past} has no sizes: its configuration is missing")
            if self._files.shared and not end.present:
                raise KvcastError(f"{path} gives no present for {end.past}")
            try:
                np.dtype(self._dtypes[end.past])
            except TypeError:
                raise KvcastError(
                    f"{path}: caches of {self._dtypes[end.past]} are not read here"
                ) from None


def _present(end: CacheEnd) -> str:
    return end.past.replace("past_key_values", "present", 1)
