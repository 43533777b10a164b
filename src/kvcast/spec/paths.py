"""The folder of everything that kvcast can make again. Knows nothing of its contents."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return `$KVCAST_CACHE`, or `~/.cache/kvcast`; not created here, and always safe to delete."""
    chosen = os.environ.get("KVCAST_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "kvcast"
