"""A source that sees itself in both directions, then a target that grows token by token.

The prefix mask of a UniLM (Dong et al. 2019, arXiv:1905.03197, section 2): the source sees all of
itself and never the target, the target sees the source and what came before it. Both lie in one
cache, whose positions run on. What `masks` draws; knows no tokens, no model and no picture.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import UsageError
from kvcast.inspect.schedule import MOST_POSITIONS, Call
from kvcast.inspect.units import plural
from kvcast.spec.ring import Positions, visible


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """A source of `source` tokens and a target of `target`; meets `masks.Drawn`."""

    window: ClassVar[None] = None

    source: int
    target: int

    def __post_init__(self) -> None:
        if min(self.source, self.target) < 1:
            raise UsageError("a source and a target have 1 token or more each")
        if self.capacity > MOST_POSITIONS:
            raise UsageError(
                f"{self.capacity:,} positions are too many to draw (at most {MOST_POSITIONS:,}): "
                "give a shorter source or target"
            )

    @property
    def capacity(self) -> int:
        """Slots of the cache, one for each position."""
        return self.source + self.target

    def title(self) -> str:
        """Say in a line what is drawn."""
        return (
            f"a source of {plural(self.source, 'token')} (s), then a target of {self.target:,} "
            f"(t); one cache of {plural(self.capacity, 'slot')}"
        )

    def calls(self) -> Iterator[Call]:
        """Yield all positions at once, as they are computed without a cache; then the calls."""
        yield Call(name="without a cache", lengths=(0,), counts=(self.capacity,))
        yield Call(name="source", lengths=(0,), counts=(self.source,))
        for i in range(self.target):
            yield Call(name=f"step {i + 1}", lengths=(self.source + i,), counts=(1,))

    def sees(self, queries: Positions, keys: Positions) -> NDArray[np.bool_]:
        """Tell which keys [k] each query [q] sees, by position; returns [q, k]."""
        return visible(queries, keys, None) | (keys < self.source)

    def label(self, row: int, position: int) -> str:  # noqa: ARG002 - there is one row
        """Return `s4` for position 4 of the source, `t5` for what comes after it."""
        return f"{'s' if position < self.source else 't'}{position}"
