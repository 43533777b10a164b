"""A benchmark's backend with a script."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvcast_bench.backend import Backend, Ticks
from kvcast_bench.models import BenchModel

MODEL = BenchModel(folder="nowhere", threads=1)


@dataclass(kw_only=True)
class Scripted(Backend):
    """Does what it is told, and keeps what it was asked.

    `missing`: tokens that it forgets. `unticked`: steps that it does not tell. `broken`: why it
    cannot be loaded.
    """

    model: BenchModel = MODEL
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


class Lean(Scripted):
    """Checks that its process has not imported what would count as its memory."""

    def load(self) -> None:
        assert "torch" not in sys.modules
        super().load()
