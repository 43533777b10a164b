"""How long packages take to import, on the far side of `kvcast.bench.remote`.

In a process of its own, which has imported next to nothing: a contender's has NumPy already.
"""

import time
from importlib import import_module


class Importing:
    """An interpreter that is still empty."""

    def seconds(self, modules: list[str]) -> float:
        """Import `modules` and return how long it took; meaningful once."""
        start = time.perf_counter()
        for name in modules:
            import_module(name)
        return time.perf_counter() - start
