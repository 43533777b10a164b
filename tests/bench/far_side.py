"""An object for `kvcast.bench.remote` to hold in another process."""

import os
import time


class Far:
    def __init__(self, start: int) -> None:
        if start < 0:
            raise ValueError("start is\nnegative")
        self._total = start

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
