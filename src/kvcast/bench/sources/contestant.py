"""A contender that writes targets, on the far side of `kvcast.bench.remote`."""

import gc
import time
from typing import Any

from kvcast.bench.contestant import Contestant, forget_peak, peak_bytes
from kvcast.bench.sources.peers import CONTENDERS
from kvcast.bench.sources.peers.base import Task
from kvcast.bench.sources.trials import Tokens, Trial


class Writer(Contestant):
    """See the module."""

    def __init__(self, name: str, task: dict[str, Any]) -> None:
        """Take the contender's name and the fields of `Task`."""
        self._contender = CONTENDERS[name](Task(**task))
        self._vocab_size: int = task["vocab_size"]
        super().__init__(self._contender)

    def take(self, **fields: int) -> dict[str, Any]:
        """Do a trial once.

        Who searches with beams knows no token before the last. So the time to the first is that
        of a call that asks for one token, and a step is what a call for all takes more, divided
        by their number; greedy calls are timed like this too. One call before does not count:
        whoever has waited for a turn finds none of its weights in the processor's caches.

        Returns the seconds to the first token, of the call for all, and of a step, the first
        row's tokens, and the turn's peak memory.
        """
        trial = Trial(**fields)
        gc.collect()
        forget_peak()
        self._write(trial, 1)
        first, _ = self._write(trial, 1)
        seconds, targets = self._write(trial, trial.target)
        return {
            "first": first,
            "seconds": seconds,
            "step": (seconds - first) / (trial.target - 1),
            "tokens": targets[0],
            "peak_bytes": peak_bytes(),
        }

    def _write(self, trial: Trial, tokens: int) -> tuple[float, list[Tokens]]:
        sources = trial.sources(self._vocab_size)
        began = time.perf_counter()
        targets = self._contender.write(sources, trial.beams, tokens)
        seconds = time.perf_counter() - began
        trial.check(targets, tokens)
        return seconds, targets
