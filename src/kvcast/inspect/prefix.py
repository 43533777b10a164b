"""The calls of a UniLM: a source that sees all of itself, then a target token by token.

With its prefix mask (Dong et al. 2019, arXiv:1905.03197, section 2), source positions see the whole
source and never the target; target positions see the source and everything up to themselves. Both
share one cache with continuous positions. `masks` draws it. Knows no tokens, no model and no image.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import UsageError
from kvcast.inspect.schedule import MOST_POSITIONS, ModelCall
from kvcast.inspect.units import plural
from kvcast.spec.ring import Positions, visible


@dataclass(frozen=True, kw_only=True)
class SourceAndTarget:
    """A source of `source` tokens and a target of `target` tokens."""

    window: ClassVar[None] = None

    source: int
    target: int

    def __post_init__(self) -> None:
        if min(self.source, self.target) < 1:
            raise UsageError("a source and a target must have 1 token or more each")
        if self.capacity > MOST_POSITIONS:
            raise UsageError(
                f"{self.capacity:,} positions are too many to draw (at most {MOST_POSITIONS:,}): "
                "give a shorter source or target"
            )

    @property
    def capacity(self) -> int:
        """Number of slots, one per position."""
        return self.source + self.target

    def title(self) -> str:
        """Return a one-line title."""
        return (
            f"a source of {plural(self.source, 'token')} (s), then a target of {self.target:,} "
            f"(t); one cache of {plural(self.capacity, 'slot')}"
        )

    def calls(self) -> Iterator[ModelCall]:
        """Yield one call with all positions, as without a cache; then the calls with one."""
        yield ModelCall(name="without a cache", lengths=(0,), counts=(self.capacity,))
        yield ModelCall(name="source", lengths=(0,), counts=(self.source,))
        for i in range(self.target):
            yield ModelCall(name=f"step {i + 1}", lengths=(self.source + i,), counts=(1,))

    def sees(self, queries: Positions, keys: Positions) -> NDArray[np.bool_]:
        """Return which keys [k] each query [q] sees, by position, as [q, k]."""
        return visible(queries, keys, None) | (keys < self.source)

    def label(self, row: int, position: int) -> str:  # noqa: ARG002 - there is one row
        """Return `s4` for position 4 if it is in the source, `t4` if it is in the target."""
        return f"{'s' if position < self.source else 't'}{position}"
