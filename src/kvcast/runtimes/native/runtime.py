"""Runs bundles on kvcast's interpreter, without torch: one call of the library a program call.

Matrices are packed for the processor when a bundle is opened. A call's plan is built once for its
sizes and cache addresses; plans of steps are cached.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.errors import UsageError
from kvcast.families.programs import (
    ALIGNMENT_QUERIES,
    ENCODED,
    FINISH,
    LISTEN,
    NEXT,
    SOURCE,
    SOURCE_LENGTHS,
    CacheLayers,
    StreamedSource,
)
from kvcast.runtimes.alignment import AligningRuntime
from kvcast.runtimes.base import Float32, InputStream, Int64, TokenProbabilityQuery, Tokens
from kvcast.runtimes.bound import LOGITS, OFTEN, BoundRuntime, Chunk
from kvcast.runtimes.cache import CacheHandle
from kvcast.runtimes.calls import Run
from kvcast.runtimes.memory import LastingSlots, Layer, Memory, Slots, TurningRing, recurrent_layers
from kvcast.runtimes.native.interpreter import (
    Call,
    Interpreter,
    attention_by_token_plan,
    dtw_plan,
    probabilities_plan,
    scores_plan,
)
from kvcast.runtimes.native.opcodes import SCALE_BYTES
from kvcast.runtimes.prefix import EmbeddingRuntime
from kvcast.runtimes.text_encoder import TextEncoderRuntime


@dataclass(frozen=True)
class Encoding:
    inputs: Mapping[str, NDArray[Any]]
    outputs: Mapping[str, NDArray[Any]]
    call: Call

    def run(self, given: Mapping[str, NDArray[Any]], interpreter: Interpreter) -> None:
        for name, part in given.items():
            self.inputs[name][...] = part
        interpreter.run(self.call)


@dataclass(frozen=True)
class Encodings:
    """Calls of `encode` for inputs of the same sizes, by the first place that each fills."""

    sizes: Sequence[tuple[int, ...]]
    inputs: Mapping[str, NDArray[Any]]
    by_place: dict[int, Encoding] = field(default_factory=dict)


class NativeRuntime(BoundRuntime):
    def __init__(self, manifest: Manifest, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        super().__init__(manifest, interpreter.run)
        self.longest = self.interpreter.angles()
        self.prompts_differ = interpreter.prompts_differ

    @override
    def layers(self, capacity: int) -> Sequence[Layer]:
        return [
            layer
            for run in self._layers
            for _ in range(run.layers)
            for layer in _layers(run, capacity)
        ]

    @override
    def prefill(
        self,
        tokens: Tokens,
        cache: CacheHandle,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, CacheHandle]:
        taking_part = list(range(len(cache.reads)) if rows is None else rows)
        grown = cache.append(taking_part, tokens)
        prompt = self.prompts_differ
        return self.run(tokens, cache, taking_part, positions, prompt=prompt), grown

    @override
    def chunk(
        self,
        tokens: Tokens,
        cache: CacheHandle,
        rows: list[int],
        positions: Sequence[int],
        run: Run,
    ) -> Chunk:
        memory, count = cache.memory, len(positions)
        key = ("chunk", run.prompt, run.places, run.slots, run.new, count)
        bound = memory.bound.get(key)
        if bound is None:
            step = self.arrays(len(run.index), run.new, count)
            bound = step, self.bind(memory, run, step.given, {LOGITS: step.logits})
            if run.new <= OFTEN:
                memory.bound[key] = bound
        step, call = bound
        step.tokens_rs[...] = np.stack([tokens[i] for i in run.index])
        step.lengths[...] = cache.lengths[[rows[i] for i in run.index]]
        step.offsets[...] = np.asarray(positions, np.int64) % run.new
        return Chunk([call], step.logits, kept=run.new <= OFTEN)

    @override
    def bind(
        self,
        memory: Memory,
        run: Run,
        given: Sequence[NDArray[Any]],
        results: Mapping[str, Float32],
    ) -> Call:
        arguments = self.arguments(memory, run, given)
        return self.interpreter.call("decode", arguments, results, prompt=run.prompt)


class NativeEncoderDecoder(NativeRuntime, AligningRuntime):
    def __init__(self, manifest: Manifest, interpreter: Interpreter) -> None:
        super().__init__(manifest, interpreter)
        [self._cross] = (run for run in manifest.cache if run.kind in ENCODED)
        family, dimensions = manifest.model()
        self.longest = family.positions(dimensions)
        self.prompts_differ = False  # they are short
        self.alignment_heads = manifest.dimensions.get("alignment_heads", ())
        self._encode = manifest.graph("encode")

    @override
    def slots(self, count: int) -> Slots:
        return LastingSlots(count, self.make)

    @override
    def encode(
        self, cache: CacheHandle, slots: Sequence[int], *source: NDArray[Any]
    ) -> CacheHandle:
        cache.vacate(slots)
        memory, given = cache.memory, dict(zip(self._encode.inputs, source, strict=True))
        size = (self._cross.heads, self._positions(given), _line(self._cross))
        shapes = [given[name].shape[1:] if name in given else size for name in self.encoded]
        room = memory.slots.room(slots, shapes)
        if room is None:
            kept = {
                name: np.empty((len(slots), *shape), self._dtype_of(name, given))
                for name, shape in zip(self.encoded, shapes, strict=True)
            }
            self._encoding(self._room(given), kept).run(given, self.interpreter)
            memory.fill(slots, list(kept.values()))
            return cache
        place, sizes = memory.slots.places[slots[0]], [part.shape for part in source]
        planned: Encodings | None = memory.bound.get("encode")
        if planned is None or planned.sizes != sizes:
            planned = memory.bound["encode"] = Encodings(sizes, self._room(given))
        if place not in planned.by_place:
            filled = dict(zip(self.encoded, room, strict=True))
            planned.by_place[place] = self._encoding(planned.inputs, filled)
        planned.by_place[place].run(given, self.interpreter)
        return cache

    def _dtype_of(self, name: str, given: Mapping[str, NDArray[Any]]) -> Any:
        return given[name].dtype if name in given else self._cross.dtype

    def _room(self, given: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        read = {name: part for name, part in given.items() if name not in self.encoded}
        return {name: np.empty(part.shape, part.dtype) for name, part in read.items()}

    def _encoding(
        self, room: Mapping[str, NDArray[Any]], kept: Mapping[str, NDArray[Any]]
    ) -> Encoding:
        """Plan a call of `encode` that writes the inputs of `decode`, by name, to arrays."""
        inputs = {name: kept[name] if name in kept else room[name] for name in self._encode.inputs}
        outputs = {name: kept[name] for name in self._encode.outputs}
        return Encoding(inputs, outputs, self.interpreter.call("encode", inputs, outputs))

    def _positions(self, given: Mapping[str, NDArray[Any]]) -> int:
        if (source := given.get(SOURCE)) is not None:
            return int(source.shape[1])
        if given.keys().isdisjoint({*self.encoded, SOURCE_LENGTHS}):
            return self._cross.capacity
        return self.interpreter.sizes("encode", given)[self._encode.outputs[0]][2]

    @override
    def stream(
        self, cache: CacheHandle, slot: int, source: StreamedSource, positions: int
    ) -> "NativeInputStream":
        if self._cross.dtype == "int8":
            raise UsageError("streaming audio needs a cache of floats")
        if not source.programs.keys() <= self.interpreter.programs.keys():
            self.interpreter.add(source.programs, "encode")
        cache.vacate([slot])
        cross = (1, self._cross.heads, positions, _line(self._cross))
        room = [
            np.zeros(cross if name.startswith("cross_") else 1, self._filled_dtype(name))
            for name in self.encoded
        ]
        cache.memory.fill([slot], room)
        return NativeInputStream(self, cache, slot, source)

    def _filled_dtype(self, name: str) -> Any:
        return self._cross.dtype if name.startswith("cross_") else np.int32

    @override
    def read(
        self, tokens_s: Int64, cache: CacheHandle, row: int, scored: TokenProbabilityQuery | None
    ) -> tuple[Float32, Float32]:
        """Run the program without its last product: logits of many positions are large."""
        (run,) = cache.plan([row], [tokens_s]).runs
        new, width = len(tokens_s), len(self.alignment_heads) * self._cross.head_dim
        positions = np.array(() if scored is None else scored.positions, np.int64)
        queries_rsx = np.empty((1, new, width), np.float32)
        name, table = self.interpreter.last_product("decode", LOGITS)
        hidden_pd = np.empty((len(positions), table.inputs), np.float32)
        results = {ALIGNMENT_QUERIES: queries_rsx} | ({} if scored is None else {name: hidden_pd})
        given = np.array(tokens_s)[None], cache.lengths[[row]], positions % new
        self.interpreter.run(self.bind(cache.memory, run, given, results))
        probabilities_p = np.empty(len(positions), np.float32)
        if scored is not None:
            last = hidden_pd, table, scored.tokens_p, scored.among_v, probabilities_p
            self.interpreter.run(Call(probabilities_plan(*last)))
        return probabilities_p, queries_rsx[0]

    def _keys(self, cache: CacheHandle, row: int, layer: int, head: int) -> NDArray[Any]:
        """Return a head's keys in the cache's layout, [t, a position's line]."""
        slots = cache.memory.slots
        parts = dict(zip(self.encoded, slots.parts, strict=True))
        keys: NDArray[Any] = parts[f"cross_key_{layer}"][slots.places[cache.input_of(row)], head]
        return keys

    @override
    def scores(self, queries_sx: Float32, cache: CacheHandle, row: int) -> Float32:
        keys = [self._keys(cache, row, layer, head) for layer, head in self.alignment_heads]
        scores_hst = _room_for_scores(cache.memory, (len(keys), len(queries_sx), len(keys[0])))
        self.interpreter.run(Call(scores_plan(queries_sx, keys, scores_hst)))
        return scores_hst

    @override
    def attention_by_token(self, scores_hst: Float32, frames: int) -> Float32:
        _, tokens, positions = scores_hst.shape
        attention_st = np.empty((tokens, max(1, min(frames, positions))), np.float32)
        self.interpreter.run(Call(attention_by_token_plan(scores_hst, attention_st)))
        return attention_st

    @override
    def dtw(self, weights_nt: Float32) -> Int64:
        begins_n = np.empty(len(weights_nt), np.int64)
        self.interpreter.run(Call(dtw_plan(weights_nt, begins_n)))
        return begins_n


class NativeInputStream(InputStream):
    def __init__(
        self, runtime: NativeEncoderDecoder, cache: CacheHandle, slot: int, source: StreamedSource
    ) -> None:
        super().__init__()
        self._runtime = runtime
        self._cache = cache
        self._slot = slot
        self._source = source
        self._left: Mapping[str, NDArray[Any]] = {
            name: np.zeros((1, *shape), np.float32) for name, shape in source.left.items()
        }

    @override
    def listen(self, samples: NDArray[np.float32]) -> None:
        results = self._results(LISTEN, {"samples": samples[None]})
        self._left = {name: results[NEXT + name] for name in self._left}
        self.done += self._put(results)

    @override
    def finish(self) -> None:
        self._put(self._results(FINISH, {}))

    @override
    def forget(self) -> None:
        self._hold(self.done)

    def _results(
        self, name: str, given: Mapping[str, NDArray[Any]]
    ) -> Mapping[str, NDArray[np.float32]]:
        interpreter = self._runtime.interpreter
        there = {**given, "done": np.array([self.done], np.int32), **self._left}
        inputs = {name: there[name] for name in interpreter.programs[name].inputs}
        sizes = interpreter.sizes(name, inputs)
        outputs = {name: np.empty(shape, np.float32) for name, shape in sizes.items()}
        interpreter.run(interpreter.call(name, inputs, outputs))
        return outputs

    def _hold(self, positions: int) -> None:
        self.held, slots = positions, self._cache.memory.slots
        for name, part in zip(self._runtime.encoded, slots.parts, strict=True):
            if not name.startswith("cross_"):
                part[slots.places[self._slot]] = positions

    def _put(self, results: Mapping[str, NDArray[np.float32]]) -> int:
        slots, count = self._cache.memory.slots, 0
        place = slots.places[self._slot]
        for name, part in zip(self._runtime.encoded, slots.parts, strict=True):
            if name in results:
                count = results[name].shape[2]
                part[place, :, self.done : self.done + count] = results[name][0]
        self._hold(self.done + count)
        return count


def _room_for_scores(memory: Memory, shape: tuple[int, int, int]) -> Float32:
    """Return an array in reused memory: fresh pages would take a third of the time."""
    size = prod(shape)
    if len(memory.bound.get("scores", ())) < size:
        memory.bound["scores"] = np.empty(size, np.float32)
    scores_hst: Float32 = memory.bound["scores"][:size].reshape(shape)
    return scores_hst


def _layers(run: CacheLayers, capacity: int) -> list[Layer]:
    if layers := recurrent_layers(run, run.dtype):
        return layers
    if run.kind == "ring":
        ring = TurningRing(run.capacity, run.capacity)
        return [Layer((run.heads, run.capacity, _line(run)), run.dtype, ring)] * 2
    return [
        Layer((heads, capacity, size + _line(run) - run.head_dim), run.dtype)
        for heads, _, size in run.sizes
    ]


def _line(run: CacheLayers) -> int:
    return run.head_dim + (SCALE_BYTES if run.dtype == "int8" else 0)


class NativePrefix(NativeRuntime, EmbeddingRuntime):
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


class NativeTextEncoder(TextEncoderRuntime):
    def __init__(self, manifest: Manifest, interpreter: Interpreter) -> None:
        super().__init__(
            manifest.dimensions, {name: graph.inputs for name, graph in manifest.graphs.items()}
        )
        self.interpreter = interpreter

    @override
    def run(
        self, program: str, given: Mapping[str, NDArray[Any]], shape: tuple[int, ...]
    ) -> Float32:
        result = np.empty(shape, np.float32)
        [name] = self.interpreter.programs[program].outputs
        self.interpreter.run(self.interpreter.call(program, given, {name: result}))
        return result
