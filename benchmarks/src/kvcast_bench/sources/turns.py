"""Functions that are timed in turns: A B C, A B C. Knows nothing of what they do."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """How often and on how many threads everything is timed.

    Attributes:
        runs: rounds that count, after one to warm up.
        threads: of PyTorch.

    """

    runs: int
    threads: int

    def seconds(self, players: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Return the seconds of each function in each round that counts."""
        taken: dict[str, list[float]] = {name: [] for name in players}
        for number in range(self.runs + 1):
            for name, play in players.items():
                begin = time.perf_counter()
                play()
                if number:
                    taken[name].append(time.perf_counter() - begin)
        return taken

    @property
    def words(self) -> str:
        """What a table says of it."""
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"{threads}, medians of {self.runs} runs in turns (least to most)"
