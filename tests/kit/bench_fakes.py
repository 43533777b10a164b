"""Objects for benchmarks' processes: one that is called from afar, and backends with a script."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvcast.bench.backend import Backend, Ticks
from kvcast.bench.models import Model

MODEL = Model(folder="nowhere", threads=1)
FINDS_THIS = {
    "PYTHONPATH": os.pathsep.join(
        [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    )
}
"""Environment of processes that are to find this module."""


class Far:
    """Held by `kvcast.machine.remote` in another process."""

    def __init__(self, start: int) -> None:
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


@dataclass(kw_only=True)
class Scripted(Backend):
    """Does what it is told, and keeps what it was asked.

    `missing`: tokens that it forgets. `unticked`: steps that it does not tell. `broken`: why it
    cannot be loaded.
    """

    model: Model = MODEL
    name: str = "scripted"
    missing: int = 0
    unticked: int = 0
    reason: str | None = None
    broken: str | None = None
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    packages: Sequence[str] = ("numpy",)
    modules: Sequence[str] = ("json",)
    settings: str = "as scripted"

    def unfit(self) -> str | None:
        return self.reason

    def load(self) -> None:
        if self.broken:
            raise ValueError(self.broken)

    def transcribe(self, samples: Any, language: str, beam: int) -> str:
        self.asked.append((len(samples), language, beam))
        return " one two"

    def transcribe_all(self, recordings: Any, language: str, beam: int) -> list[str]:
        return [self.transcribe(samples, language, beam) for samples in recordings]

    def generate(self, prompts: Any, new: int, ticks: Ticks) -> list[list[int]]:
        for _ in range(new - self.unticked):
            ticks.tick()
        return [prompt[: new - self.missing] for prompt in prompts]

    def write(self, sources: Any, beams: int, tokens: int) -> list[list[int]]:
        self.asked.append((beams, tokens))
        return [source[: tokens - self.missing] for source in sources]
