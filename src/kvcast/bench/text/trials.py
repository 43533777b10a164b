"""What is asked of everybody in a turn: prompts of equal length, and so many tokens more.

Prompts are random tokens, the same for everybody: what a token costs does not depend on which it
is, and a row's prompt does not depend on the number of rows. Knows no contender.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

import numpy as np

from kvcast.errors import KvcastError

Tokens = list[int]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A turn.

    Attributes:
        rows: prompts at once.
        prompt: tokens of each.
        steps: tokens of each row after the first, which comes of the prompt.

    """

    rows: int
    prompt: int
    steps: int

    def to_json(self) -> dict[str, int]:
        """Return its fields, for a pipe."""
        return asdict(self)

    def prompts(self, vocab_size: int) -> list[Tokens]:
        """Return the prompts of all rows."""
        return [
            np.random.default_rng(row).integers(vocab_size, size=self.prompt).tolist()
            for row in range(self.rows)
        ]

    @property
    def new(self) -> int:
        """Tokens to be generated for each row."""
        return 1 + self.steps

    def check(self, texts: Sequence[Tokens]) -> None:
        """Raise KvcastError unless every row has got its tokens."""
        lengths = [len(text) for text in texts]
        if lengths != [self.new] * self.rows:
            raise KvcastError(f"gave {lengths} tokens where {self.rows} x {self.new} were asked")


@dataclass
class Ticks:
    """A clock that begins when it is made, and is told whenever every row has one token more."""

    began: float = field(default_factory=time.perf_counter)
    times: list[float] = field(default_factory=list)

    def tick(self) -> None:
        """Take note."""
        self.times.append(time.perf_counter())

    def figures(self) -> dict[str, float]:
        """Return seconds to the first token, and of a step: the mean and the median."""
        first, last, steps = self.times[0], self.times[-1], len(self.times) - 1
        gaps = np.diff(self.times).tolist()
        return {
            "first": first - self.began,
            "step": (last - first) / steps,
            "median_step": median(gaps),
        }
