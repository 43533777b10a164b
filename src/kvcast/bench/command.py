"""What the commands of all benchmarks share: what they need, and what they say meanwhile."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from kvcast.errors import KvcastError


def require(packages: Sequence[str]) -> None:
    """Raise KvcastError unless all packages are installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise KvcastError(f"bench needs {' and '.join(missing)}: pip install 'kvcast[bench]'")


def say(message: str) -> None:
    """Tell a person at a terminal what is going on."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"\r\x1b[K{message}", end="", file=sys.stderr, flush=True)
