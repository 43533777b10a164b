"""Where kvcast keeps what it can make again.

Knows nothing of what is kept there.
"""

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$KVCAST_CACHE`, or `~/.cache/kvcast`; not created here, and always safe to delete."""
    chosen = os.environ.get("KVCAST_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "kvcast"
