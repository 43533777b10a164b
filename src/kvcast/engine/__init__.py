"""`Engine`: one model for many callers on threads or asyncio, served by one scheduler."""

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
