"""Speculative decoding on a cache: draft tokens are fed, and rolled back if rejected."""

from typing import Any

from kvcast.runtimes.base import Runtime


class Trial:
    """A row about to be fed up to `most` drafts, after `kept` tokens that stay.

    If its rings and states cannot be truncated that far, `begin` takes a snapshot.
    """

    def __init__(self, runtime: Runtime, cache: Any, row: int, *, kept: int, most: int) -> None:
        self._runtime, self._row = runtime, row
        self._revocable = int(cache.revocable(row, kept, most))
        room = int(cache.capacity) - int(cache.lengths[row]) - kept
        self.most = min(most, room) if cache.has_snapshots else self._revocable

    def begin(self, cache: Any, count: int) -> Any:
        if count <= self._revocable:
            return cache
        return self._runtime.take_snapshots(cache, [self._row])


def roll_back(runtime: Runtime, cache: Any, row: int, length: int) -> tuple[Any, int]:
    """Truncate a row to `length`, or the longest snapshot within; return cache and row length."""
    reached = int(cache.reachable(row, length))
    return runtime.truncate(cache, [row], [reached]), reached
