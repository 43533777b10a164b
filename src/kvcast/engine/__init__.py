"""One model for many callers: requests from any thread or from asyncio, served by one scheduler.

`Engine` is the way in.
"""

from kvcast.engine.engine import Engine, Status, share_of_memory
from kvcast.engine.jobs import ClosedError, DeadlineError, Job, QueueFullError, queue_full

__all__ = [
    "ClosedError",
    "DeadlineError",
    "Engine",
    "Job",
    "QueueFullError",
    "Status",
    "queue_full",
    "share_of_memory",
]
