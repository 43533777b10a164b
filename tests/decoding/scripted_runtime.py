"""A runtime without a model: its logits are a function of an input and what was written after it.

It holds its caller to the interface: rows stay with their input, the context is not exceeded, and
nothing is reordered without need.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.base import Float32, Int32, Int64

Script = Callable[[int, tuple[int, ...]], NDArray[np.float32]]
"""Input's number and all its tokens so far, prompt included, to logits [vocab]."""


@dataclass(frozen=True)
class ScriptedCross:
    inputs: tuple[int, ...]

    @property
    def batch(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class ScriptedCache:
    cross: ScriptedCross
    written: tuple[tuple[int, ...], ...]
    capacity: int

    @property
    def lengths(self) -> Int32:
        return np.array([len(row) for row in self.written], np.int32)

    def input_of(self, row: int) -> int:
        return row // (len(self.written) // self.cross.batch)


@dataclass
class ScriptedRuntime:
    script: Script
    context: int = 448
    decoded: list[Int64] = field(default_factory=list)
    reorders: list[list[int]] = field(default_factory=list)

    def encode(self, features_bmt: Float32) -> ScriptedCross:
        """The first number of an input says which it is."""
        return ScriptedCross(tuple(int(features_mt.flat[0]) for features_mt in features_bmt))

    def new_cache(
        self, cross: ScriptedCross, rows: int, capacity: int | None = None
    ) -> ScriptedCache:
        assert rows % cross.batch == 0
        assert capacity is None or capacity <= self.context
        return ScriptedCache(cross, ((),) * rows, capacity or self.context)

    def decode(
        self, tokens_rs: Int64, cache: ScriptedCache, positions: Sequence[int] = (-1,)
    ) -> tuple[Float32, ScriptedCache]:
        assert tokens_rs.dtype == np.int64
        assert len(tokens_rs) == len(cache.written)
        assert cache.lengths.max() + tokens_rs.shape[1] <= cache.capacity
        self.decoded.append(tokens_rs)
        logits = []
        written = []
        for r, tokens in enumerate(tokens_rs.tolist()):
            row = (*cache.written[r], *tokens)
            ends = [len(cache.written[r]) + p % len(tokens) + 1 for p in positions]
            scripted = cache.cross.inputs[cache.input_of(r)]
            logits.append([self.script(scripted, row[:end]) for end in ends])
            written.append(row)
        return np.array(logits, np.float32), replace(cache, written=tuple(written))

    def reorder(self, cache: ScriptedCache, sources: Sequence[int]) -> ScriptedCache:
        assert list(sources) != list(range(len(cache.written))), "nothing to reorder"
        assert len(sources) % cache.cross.batch == 0
        reordered = replace(cache, written=tuple(cache.written[source] for source in sources))
        for row, source in enumerate(sources):
            assert reordered.input_of(row) == cache.input_of(source), "rows left their input"
        self.reorders.append(list(sources))
        return reordered

    def reset(self, cache: ScriptedCache, rows: Sequence[int]) -> ScriptedCache:
        raise NotImplementedError


def features(*inputs: int) -> Float32:
    """What `encode` turns into these inputs, [batch, 1, 1]."""
    return np.array(inputs, np.float32).reshape(-1, 1, 1)


def random_script(vocab: int, seed: int, bias: Callable[[int], dict[int, float]]) -> Script:
    """Normally distributed logits, and what `bias` adds to some tokens at each length."""

    @cache
    def logits(number: int, written: tuple[int, ...]) -> NDArray[np.float32]:
        logits_v = np.random.default_rng((seed, number, *written)).normal(0, 2, vocab)
        for token, more in bias(len(written)).items():
            logits_v[token] += more
        return logits_v.astype(np.float32)

    return logits
