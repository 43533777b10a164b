"""The prefix cache: the tokens that each row holds, so that a prompt continues a cached prefix.

A row without a request keeps its keys and values until another sequence needs the row. A prompt
that shares a prefix with such a row, or with a running one, starts after the common prefix. Where a
runtime computes prompts in another dtype than steps, the two must not match: the complement ~t
marks a token t whose position a decode step computed.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from kvcast.runtimes.base import Int32, Int64

WORTH_COPYING = 16
"""Fewer tokens are computed as fast as another row's keys and values are copied."""


class Match(NamedTuple):
    row: int
    length: int


class PrefixCache:
    def __init__(self, rows: int, capacity: int, *, prompts_differ: bool = False) -> None:
        self._prompts_differ = prompts_differ
        self._tokens_rc: Int32 = np.zeros((rows, capacity), np.int32)
        self._lengths_r: Int64 = np.zeros(rows, np.int64)

    @property
    def lengths(self) -> list[int]:
        return [int(length) for length in self._lengths_r]

    def stepped(self, tokens: Int64) -> Int64:
        """Return the marks of tokens whose positions decode steps compute."""
        return ~tokens if self._prompts_differ else tokens

    def tokens(self, row: int) -> Int64:
        return self._tokens_rc[row, : self._lengths_r[row]].astype(np.int64)

    def feed(self, rows: Sequence[int], tokens: Iterable[Sequence[int] | Int64]) -> None:
        for row, new in zip(rows, tokens, strict=True):
            end = self._lengths_r[row] + len(new)
            self._tokens_rc[row, self._lengths_r[row] : end] = new
            self._lengths_r[row] = end

    def step(self, rows: Sequence[int], tokens_r1: Int64) -> None:
        places = list(rows)
        self._tokens_rc[places, self._lengths_r[places]] = self.stepped(tokens_r1)[:, 0]
        self._lengths_r[places] += 1

    def cut(self, row: int, length: int) -> None:
        self._lengths_r[row] = min(length, self._lengths_r[row])

    def copy(self, row: int, other: int, length: int) -> None:
        self._tokens_rc[row, :length] = self._tokens_rc[other, :length]
        self._lengths_r[row] = length

    def reorder(self, parents: Sequence[int]) -> None:
        moved = [row for row, parent in enumerate(parents) if row != parent]
        taken = [parents[row] for row in moved]
        self._tokens_rc[moved] = self._tokens_rc[taken]
        self._lengths_r[moved] = self._lengths_r[taken]

    def common(self, tokens_s: Int64) -> list[int]:
        """Return the length of each row's common prefix with a sequence."""
        most = min(len(tokens_s), self._tokens_rc.shape[1])
        differs_rs = self._tokens_rc[:, :most] != tokens_s[:most]
        first_r = np.where(differs_rs.any(axis=1), differs_rs.argmax(axis=1), most)
        return [int(n) for n in np.minimum(first_r, self._lengths_r)]

    def row_for(self, tokens_s: Int64, free: Sequence[int]) -> int:
        """Return the free row that a sequence mostly continues, else evict the oldest (LRU)."""
        common = self.common(tokens_s)
        best = max(free, key=lambda row: common[row])
        return best if 2 * common[best] > self._lengths_r[best] else free[0]

    def match(
        self, row: int, tokens_s: Int64, reachable: Callable[[int, int], int]
    ) -> Match | None:
        """Return the row with the longest prefix of a sequence, perhaps `row` itself, or None.

        At least one token remains to be fed, for its logits. `reachable`: see `Cache.reachable`.
        """
        own, best = 0, Match(row, 0)
        for other, common in enumerate(self.common(tokens_s)):
            length = reachable(other, min(common, len(tokens_s) - 1))
            if other == row:
                own = length
            elif length > best.length and length >= WORTH_COPYING:
                best = Match(other, length)
        if own and own + WORTH_COPYING > best.length:
            return Match(row, own)
        return best if best.length else None


def plain(tokens_s: Int64) -> Int64:
    """Return the tokens without marks of decode steps."""
    return np.where(tokens_s < 0, ~tokens_s, tokens_s)


def in_common(tokens_s: Int64, other_s: Int64) -> int:
    most = min(len(tokens_s), len(other_s))
    differs = tokens_s[:most] != other_s[:most]
    return int(differs.argmax()) if differs.any() else most
