"""What is asked of everybody in a turn: sources of equal length, and targets of so many tokens.

Sources are random tokens, the same for everybody: what a token costs does not depend on which it
is, and a row's source does not depend on the number of rows. Knows no contender.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from kvcast.errors import KvcastError

Tokens = list[int]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A turn.

    Attributes:
        rows: sources at once.
        source: tokens of each.
        beams: 1 takes the likeliest token always.
        target: tokens to write for each source.

    """

    rows: int
    source: int
    beams: int
    target: int

    def to_json(self) -> dict[str, int]:
        """Return its fields, for a pipe."""
        return asdict(self)

    def sources(self, vocab_size: int) -> list[Tokens]:
        """Return the sources of all rows."""
        return [
            np.random.default_rng(row).integers(vocab_size, size=self.source).tolist()
            for row in range(self.rows)
        ]

    def check(self, targets: Sequence[Tokens], tokens: int) -> None:
        """Raise KvcastError unless every source has got a target of so many tokens."""
        lengths = [len(target) for target in targets]
        if lengths != [tokens] * self.rows:
            raise KvcastError(f"wrote {lengths} tokens where {self.rows} x {tokens} were asked")
