"""An object that tests call in another process."""

import os
import sys
import time
from typing import Any

FINDS_THIS = {"PYTHONPATH": os.pathsep.join(sys.path)}
"""Environment of processes that are to find the tests' modules."""


class Far:
    """Held by `kvcast.machine.child` in another process."""

    def __init__(self, start: int, ballast: bytes = b"") -> None:
        self._ballast = ballast
        self._total = start

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["_total"] < 0:
            raise ValueError("start is\nnegative")
        self.__dict__ |= state

    def add(self, number: int) -> int:
        print("a library that talks")
        os.write(1, b"and another, from C\n")
        self._total += number
        return self._total

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    def spin(self, seconds: float) -> None:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    def die(self) -> None:
        os.write(2, b"first line\nout of memory\n")
        os._exit(3)
