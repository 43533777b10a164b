"""One contender, on the far side of `kvcast.bench.remote`.

Prepares and loads, and times loading; each benchmark adds what a turn is. Knows contenders only
by their interface.
"""

import sys
import time
from importlib import import_module
from pathlib import Path

from kvcast.bench.contender import Contender

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_PEAK = "5"


class Contestant:
    """See the module."""

    def __init__(self, contender: Contender) -> None:
        self._any = contender

    def prepare(self) -> None:
        """Make the files that loading needs, and load once, so that they are in memory."""
        self._any.prepare()
        self._any.load()

    def load(self) -> float:
        """Load, and return the seconds; imports come before and do not count."""
        for module in self._any.modules:
            import_module(module)
        start = time.perf_counter()
        self._any.load()
        return time.perf_counter() - start


def peak_bytes() -> int:
    """Return the most memory that this process has held since it began, or since `forget_peak`.

    On Linux from VmHWM: ru_maxrss there begins with what the parent held when it forked.
    """
    if _STATUS.exists():
        fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_peak() -> None:
    """Let the peak begin anew with what is held now, where the system can (Linux)."""
    if _CLEAR.exists():
        _CLEAR.write_text(_PEAK)
