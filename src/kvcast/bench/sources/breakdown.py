"""Where kvcast's time goes: encode, prefill, step, reorder, and the loop outside the runtime.

Runs on the far side of `kvcast.bench.remote`. The product holds no clocks: the runtime that its
loop is given here is wrapped in one.
"""

import time
from typing import Any

from kvcast.bench.sources.peers.ours import open_t5, write
from kvcast.bench.sources.trials import Trial
from kvcast.bench.timed import ENCODE, LOOP, PREFILL, REORDER, STEP, Clock, TimedRuntime

PARTS = (ENCODE, PREFILL, STEP, REORDER, LOOP)


class Breakdown:
    """A model of one quantisation."""

    def __init__(self, model: str, quantize: str, threads: int) -> None:
        self._model = open_t5(model, quantize, threads)

    def take(self, **fields: int) -> dict[str, Any]:
        """Do a trial once; see `Clock.answer`."""
        trial, clock = Trial(**fields), Clock()
        sources = trial.sources(self._model.dimensions.vocab_size)
        runtime = TimedRuntime(self._model.runtime, clock)
        start = time.perf_counter()
        write(self._model, runtime, sources, trial.beams, trial.target)
        return clock.answer(PARTS, time.perf_counter() - start)
