"""A contender that generates, on the far side of `kvcast.bench.remote`."""

import gc
from typing import Any

from kvcast.bench.contestant import Contestant, forget_peak, peak_bytes
from kvcast.bench.text.peers import CONTENDERS
from kvcast.bench.text.peers.base import Task
from kvcast.bench.text.trials import Ticks, Trial
from kvcast.errors import KvcastError


class Generator(Contestant):
    """See the module."""

    def __init__(self, name: str, task: dict[str, Any]) -> None:
        """Take the contender's name and the fields of `Task`."""
        self._contender = CONTENDERS[name](Task(**task))
        self._vocab_size: int = task["vocab_size"]
        super().__init__(self._contender)

    def take(self, **fields: int) -> dict[str, Any]:
        """Do a trial once.

        Returns the seconds to the first token and of a step, the first row's tokens, and the
        turn's peak memory.
        """
        trial = Trial(**fields)
        prompts = trial.prompts(self._vocab_size)
        gc.collect()
        forget_peak()
        ticks = Ticks()
        texts = self._contender.generate(prompts, trial.new, ticks.tick)
        trial.check(texts)
        if len(ticks.times) != trial.new:
            raise KvcastError(f"took {len(ticks.times)} steps to {trial.new} tokens")
        return {**ticks.figures(), "tokens": texts[0], "peak_bytes": peak_bytes()}
