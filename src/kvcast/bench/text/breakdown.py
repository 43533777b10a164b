"""Where kvcast's time goes: prefill, step, and the loop outside the runtime.

Runs on the far side of `kvcast.bench.remote`. The product holds no clocks: the runtime that its
loop is given here is wrapped in one.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from kvcast.bench.text.peers.ours import generate, open_text_model
from kvcast.bench.text.trials import Ticks, Trial
from kvcast.runtimes.base import DecoderCache, DecoderOnly, Float32, Int64

PREFILL, STEP = "prefill", "step"
PARTS = (PREFILL, STEP, "loop")


class Breakdown:
    """A model of one quantisation."""

    def __init__(self, model: str, quantize: str, threads: int) -> None:
        self._model = open_text_model(model, quantize, threads)

    def take(self, **fields: int) -> dict[str, Any]:
        """Do a trial once.

        Returns the seconds of the whole and of each part, and of every decode its part, its rows,
        and each row's new tokens and tokens held before.
        """
        trial = Trial(**fields)
        prompts = trial.prompts(self._model.dimensions.vocab_size)
        timed = TimedRuntime(self._model.runtime)
        ticks = Ticks()
        generate(timed, self._model.tokenizer, prompts, trial.new, ticks.tick)
        whole = time.perf_counter() - ticks.began
        timed.seconds["loop"] = whole - sum(timed.seconds.values())
        return {
            "seconds": whole,
            "parts": {part: timed.seconds[part] for part in PARTS},
            "decodes": timed.decodes,
        }


class TimedRuntime:
    """Meets `kvcast.runtimes.base.DecoderOnly`."""

    def __init__(self, runtime: DecoderOnly) -> None:
        self._runtime = runtime
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.decodes: list[tuple[str, int, int, int]] = []

    def new_cache(self, rows: int, capacity: int) -> DecoderCache:
        """See the protocol; making a cache is part of the prefill."""
        start = time.perf_counter()
        cache: DecoderCache = self._runtime.new_cache(rows, capacity)
        self.seconds[PREFILL] += time.perf_counter() - start
        return cache

    def decode(
        self,
        tokens: Sequence[Int64],
        cache: DecoderCache,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, DecoderCache]:
        """See the protocol."""
        new, held = max(map(len, tokens)), int(cache.lengths.max())
        part = STEP if held and new == 1 else PREFILL
        self.decodes.append((part, len(tokens), new, held))
        start = time.perf_counter()
        found: tuple[Float32, DecoderCache] = self._runtime.decode(tokens, cache, rows, positions)
        self.seconds[part] += time.perf_counter() - start
        return found

    def reorder(self, cache: DecoderCache, sources: Sequence[int]) -> DecoderCache:
        """See the protocol."""
        reordered: DecoderCache = self._runtime.reorder(cache, sources)
        return reordered

    def fork(
        self, cache: DecoderCache, sources: Sequence[int], capacity: int | None = None
    ) -> DecoderCache:
        """See the protocol."""
        forked: DecoderCache = self._runtime.fork(cache, sources, capacity)
        return forked

    def reset(self, cache: DecoderCache, rows: Sequence[int]) -> DecoderCache:
        """See the protocol."""
        cleared: DecoderCache = self._runtime.reset(cache, rows)
        return cleared
