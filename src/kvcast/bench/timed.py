"""Clocks around an encoder-decoder runtime, for breakdowns: the product itself holds none."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from kvcast.runtimes.base import Cache, CrossCache, EncoderDecoder, Float32, Int64

ENCODE, PREFILL, STEP, REORDER, LOOP = "encode", "prefill", "step", "reorder", "loop"
"""Parts of a run: calls of the runtime, and all that is outside."""


class Clock:
    """Seconds by part, and what was called.

    `decodes` has of every decode its rows, new tokens, tokens held before and logits asked for.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.inputs = 0
        self.decodes: list[tuple[int, int, int, int]] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block's time for a part."""
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start

    def answer(self, parts: Sequence[str], whole: float) -> dict[str, Any]:
        """Return what a breakdown says of a run that took `whole` seconds; LOOP is what is left."""
        self.seconds[LOOP] = whole - sum(self.seconds.values())
        return {
            "seconds": whole,
            "parts": {part: self.seconds[part] for part in parts},
            "decodes": self.decodes,
        }


class TimedRuntime:
    """Meets `kvcast.runtimes.base.EncoderDecoder`."""

    def __init__(self, runtime: EncoderDecoder, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock

    def encode(self, *source: NDArray[Any]) -> CrossCache:
        """See the protocol."""
        self._clock.inputs += len(source[0])
        with self._clock.part(ENCODE):
            cross: CrossCache = self._runtime.encode(*source)
        return cross

    def new_cache(self, cross: CrossCache, rows: int, capacity: int | None = None) -> Cache:
        """See the protocol; making a cache is part of the prefill."""
        with self._clock.part(PREFILL):
            cache: Cache = self._runtime.new_cache(cross, rows, capacity)
        return cache

    def decode(
        self, tokens_rs: Int64, cache: Cache, positions: Sequence[int] = (-1,)
    ) -> tuple[Float32, Cache]:
        """See the protocol."""
        rows, new = tokens_rs.shape
        held = int(cache.lengths.max())
        self._clock.decodes.append((rows, new, held, len(positions)))
        with self._clock.part(STEP if held else PREFILL):
            result: tuple[Float32, Cache] = self._runtime.decode(tokens_rs, cache, positions)
        return result

    def reorder(self, cache: Cache, sources: Sequence[int]) -> Cache:
        """See the protocol."""
        with self._clock.part(REORDER):
            reordered: Cache = self._runtime.reorder(cache, sources)
        return reordered

    def reset(self, cache: Cache, rows: Sequence[int]) -> Cache:
        """See the protocol."""
        with self._clock.part(REORDER):
            cleared: Cache = self._runtime.reset(cache, rows)
        return cleared
