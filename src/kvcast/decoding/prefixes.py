"""Where drafts begin: at nothing, or after a prefix that was computed once.

Knows a `DecoderOnly` runtime's caches, and nothing of how tokens are chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from kvcast.runtimes.base import DecoderOnly, Float32


class Start(Protocol):
    """What is in the cache when a draft takes its row: nothing, or a computed prefix."""

    @property
    def runtime(self) -> DecoderOnly:
        """Which continues it."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """What is there."""

    @property
    def logits_v(self) -> Float32:
        """[vocab], of the token after it."""

    def rows(self, count: int, spare: int, capacity: int) -> Any:
        """Return a cache of `count` rows that begin here, and `spare` ones for `renew`'s use."""

    def renew(self, cache: Any, rows: Sequence[int]) -> Any:
        """Return a cache whose given rows begin here once more."""

    def after(self, tokens: Sequence[int], chunk: int) -> "Prefix":
        """Compute one or more tokens that follow, `chunk` in one call; a prefix may have none."""


@dataclass(frozen=True)
class Nothing:
    """An empty cache."""

    runtime: DecoderOnly
    tokens: tuple[int, ...] = ()

    @property
    def logits_v(self) -> Float32:
        """Nothing says what would come first."""
        return np.empty(0, np.float32)

    def rows(self, count: int, spare: int, capacity: int) -> Any:  # noqa: ARG002
        """See the protocol."""
        return self.runtime.new_cache(count, capacity)

    def renew(self, cache: Any, rows: Sequence[int]) -> Any:
        """See the protocol."""
        return self.runtime.reset(cache, rows)

    def after(self, tokens: Sequence[int], chunk: int) -> "Prefix":
        """See the protocol."""
        return _after(self, tokens, chunk)


@dataclass(frozen=True)
class Prefix:
    """A computed prefix, which can be continued any number of times.

    Attributes:
        runtime: which computed it.
        tokens: of the prefix, one or more.
        cache: of one row that holds them, and stays as it is.
        logits_v: [vocab], after the last token.

    """

    runtime: DecoderOnly
    tokens: tuple[int, ...]
    cache: Any = field(repr=False)
    logits_v: Float32 = field(repr=False)

    def rows(self, count: int, spare: int, capacity: int) -> Any:
        """See the protocol."""
        return self.runtime.fork(self.cache, [0] * (count + spare), capacity)

    def renew(self, cache: Any, rows: Sequence[int]) -> Any:
        """See the protocol; the last row is the spare one."""
        last = len(cache.lengths) - 1
        again = set(rows)
        sources = [last if row in again else row for row in range(last + 1)]
        # Emptied first: a ring that has turned round does not hold the prefix any more, though
        # the row's tokens begin with it.
        return self.runtime.reorder(self.runtime.reset(cache, rows), sources)

    def after(self, tokens: Sequence[int], chunk: int) -> "Prefix":
        """See the protocol."""
        return _after(self, tokens, chunk) if tokens else self


def read(start: Start, prompts: Sequence[Sequence[int]], chunk: int) -> tuple[Float32, Any]:
    """Compute prompts after a start, `chunk` tokens of each in one call.

    A prompt may be empty where the start is not. Returns logits [len(prompts), vocab] of the token
    after each, and a cache with a row for each that holds it and no more.
    """
    longest = max(map(len, prompts))
    cache = start.rows(len(prompts), 0, len(start.tokens) + longest)
    found = [start.logits_v] * len(prompts)
    for i in range(0, longest, chunk):
        rows = [row for row, prompt in enumerate(prompts) if len(prompt) > i]
        parts = [np.array(prompts[row][i : i + chunk], np.int64) for row in rows]
        logits_rpv, cache = start.runtime.decode(parts, cache, rows)
        for row, logits_v in zip(rows, logits_rpv[:, -1], strict=True):
            found[row] = logits_v
    return np.stack(found), cache


def _after(start: Start, tokens: Sequence[int], chunk: int) -> Prefix:
    logits_bv, cache = read(start, [tokens], chunk)
    return Prefix(start.runtime, (*start.tokens, *tokens), cache, logits_bv[0])
