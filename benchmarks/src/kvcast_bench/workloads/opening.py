"""Opening: from a new process to a model that is ready and has answered, and its memory.

Knows no backend by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

from typing_extensions import override

from kvcast.inspect.work import Work
from kvcast_bench.turns import Results, Trial, TurnAnswer
from kvcast_bench.workload import Table, Workload, of_trial

OPENING = "opening"
READY, FIRST = "ready", "first"


@dataclass(frozen=True, kw_only=True)
class Opening(Workload):
    """A model's files, in the page cache, and a prompt or a recording to answer."""

    dimensions: Any
    file_bytes: int
    prompt: str
    audio: str | None = None  # path

    name: ClassVar[str] = OPENING
    kind: ClassVar[str] = "models of any family"
    metrics: ClassVar[Mapping[str, Sequence[str]]] = {OPENING: (READY, FIRST)}

    @property
    @override
    def settings(self) -> Mapping[str, Any]:
        answer = {"prompt": self.prompt} if self.audio is None else {"audio": self.audio}
        return {"file_bytes": self.file_bytes, **answer, "files": "in the page cache"}

    @property
    @override
    def step_work(self) -> Work:
        return Work()

    @override
    def tables(self) -> Sequence[Table]:
        return [
            Table(
                trials=[{"measure": OPENING}],
                metrics={READY: "ready ms", FIRST: "answered ms"},
                number=".0f",
                facts={
                    "held MB": ("held_megabytes", ".0f"),
                    "peak / file": ("peak_over_file", ".2f"),
                },
            )
        ]

    @override
    def run(self, backend: Any, trial: Trial) -> TurnAnswer:
        answer: TurnAnswer = backend.answer(self.prompt, self.audio)
        return answer

    @override
    def facts(self, trial: Trial, name: str, results: Results) -> Mapping[str, Any]:
        result = of_trial(results, trial)[name]
        return {
            "text": result.last["text"],
            "held_megabytes": median(result.series("held_bytes")) / 1e6,
            "own_megabytes": median(result.series("own_bytes")) / 1e6,
            "peak_over_file": max(result.series("peak_bytes")) / self.file_bytes,
        }
