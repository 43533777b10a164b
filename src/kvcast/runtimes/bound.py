"""Runtimes whose `decode` binds NumPy arrays to calls once and reuses them in decode steps."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.families.programs import ENCODED
from kvcast.machine.resources import growing_zeros
from kvcast.runtimes.base import Float32, Int32, Int64, Tokens
from kvcast.runtimes.cache import CachedRuntime, CacheHandle
from kvcast.runtimes.calls import Run
from kvcast.runtimes.memory import Memory

LOGITS = "logits"
OFTEN = 16
"""Calls with up to so many new tokens recur: steps, and checks of drafts."""

_NEW = ("tokens", "lengths", "offsets")


@dataclass(frozen=True)
class StepArrays:
    """Arrays of a call: tokens [rows, s], lengths [rows], logits [rows, offsets, vocab]."""

    tokens_rs: Int64
    lengths: Int32
    offsets: Int64
    logits: Float32

    @property
    def given(self) -> Sequence[NDArray[Any]]:
        return self.tokens_rs, self.lengths, self.offsets


class Chunk(NamedTuple):
    calls: Sequence[Any]  # in any order
    logits: Float32
    kept: bool = False  # the next such chunk reuses the logits array, so logits must be copied


class BoundRuntime(CachedRuntime):
    """The program `decode` over caches in NumPy arrays; `encoded`: its inputs from `encode`."""

    def __init__(self, manifest: Manifest, execute: Callable[[Any], object]) -> None:
        self._execute = execute
        self._layers = [layer for layer in manifest.cache if layer.kind not in ENCODED]
        self._vocab: int = manifest.dimensions["vocab_size"]
        names = manifest.graph("decode").inputs
        self._past = [name for name in names if name.startswith("past_")]
        self.encoded = [name for name in names if name not in {*_NEW, *self._past}]

    @abstractmethod
    def bind(
        self,
        memory: Memory,
        run: Run,
        given: Sequence[NDArray[Any]],
        results: Mapping[str, Float32],
    ) -> Any:
        """Bind a call of `decode`; `given`: tokens, lengths, offsets; `results`: arrays by name."""

    @abstractmethod
    def chunk(
        self,
        tokens: Tokens,
        cache: CacheHandle,
        rows: list[int],
        positions: Sequence[int],
        run: Run,
    ) -> Chunk:
        """Bind the calls that append several tokens to each row of a run."""

    def divided(self, run: Run) -> Iterable[Run]:
        """Split a run of one new token per row into runs of one call."""
        return (run,)

    @override
    def make(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        return growing_zeros(shape, dtype)

    @override
    def run(
        self,
        tokens: Tokens,
        cache: CacheHandle,
        rows: list[int],
        positions: Sequence[int],
        *,
        prompt: bool = False,
    ) -> Float32:
        plan = cache.plan(rows, tokens, prompt=prompt)
        if len(positions) > 1 or not plan.is_step:
            results = []
            for run in plan.runs:
                chunk = self.chunk(tokens, cache, rows, positions, run)
                for call in chunk.calls:
                    self._execute(call)
                results.append(chunk.logits.copy() if chunk.kept else chunk.logits)
            return plan.in_order(results)
        step = self._step(cache.memory)
        if plan.bound is None:
            calls = [call for run in plan.runs for call in self.divided(run)]
            plan.bound = [self._step_call(cache.memory, step, call) for call in calls]
        step.tokens_rs[plan.places] = tokens
        step.lengths[plan.places] = cache.lengths[rows]
        for call in plan.bound:
            self._execute(call)
        return step.logits[plan.places]

    def arrays(self, rows: int, new: int, count: int) -> StepArrays:
        return StepArrays(
            np.zeros((rows, new), np.int64),
            np.zeros(rows, np.int32),
            np.zeros(count, np.int64),
            np.empty((rows, count, self._vocab), np.float32),
        )

    def arguments(
        self, memory: Memory, run: Run, given: Sequence[NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        """Return the inputs of `decode` by name: `given`, caches and encoded inputs."""
        cells, encoded = memory.views(run.places, run.slots)
        values: dict[str, NDArray[Any]] = dict(zip(_NEW, given, strict=True))
        values |= zip(self._past, cells, strict=True)
        values |= zip(self.encoded, encoded, strict=True)
        return values

    def _step(self, memory: Memory) -> StepArrays:
        """Return arrays of one new token for every row, by its place."""
        if "step" not in memory.bound:
            memory.bound["step"] = self.arrays(len(memory.places), 1, 1)
        step: StepArrays = memory.bound["step"]
        return step

    def _step_call(self, memory: Memory, step: StepArrays, run: Run) -> Any:
        key = ("step", run.places, run.slots)
        if key not in memory.bound:
            part = slice(run.places.start, run.places.stop)
            given = step.tokens_rs[part], step.lengths[part], step.offsets
            memory.bound[key] = self.bind(memory, run, given, {LOGITS: step.logits[part]})
        return memory.bound[key]
