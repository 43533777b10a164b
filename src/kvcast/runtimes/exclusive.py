"""Lets one thread at a time work with a runtime, from a call to the last use of its result.

Logits are the runtime's own memory, so two threads that took turns by calls alone would read each
other's. A forked process has none of the threads that held locks when it was forked, so such locks
are made anew there. Knows nothing of the computation.
"""

import os
import weakref
from threading import RLock
from typing import Any

_NAME = "_exclusive"
_locks: "weakref.WeakSet[ForkSafeLock]" = weakref.WeakSet()


class ForkSafeLock:
    """A lock that its thread may take again, and that a forked process finds free or its own."""

    def __init__(self) -> None:
        self._lock = RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Make the lock anew if another thread holds it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = RLock()


def exclusive(runtime: Any) -> ForkSafeLock:
    """Return the lock of a runtime, the same one for all callers."""
    held = vars(runtime)
    # Only the first caller makes one; of two at once, both get the one that was set first.
    lock: ForkSafeLock = held.get(_NAME) or held.setdefault(_NAME, ForkSafeLock())
    return lock


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
