"""Lets one thread at a time work with a runtime, from a call to the last use of what it returned.

Logits are the runtime's own memory, so two threads that took turns by calls alone would read each
other's. Knows nothing of what is computed.
"""

from threading import RLock
from typing import Any

_NAME = "_exclusive"


def exclusive(runtime: Any) -> RLock:
    """Return the lock of a runtime, the same one for all who ask."""
    lock: RLock = vars(runtime).setdefault(_NAME, RLock())
    return lock
