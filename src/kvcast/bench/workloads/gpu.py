"""Decoding steps on one device: a greedy text after a prompt, with random weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

from typing_extensions import override

from kvcast.bench.probes import STEP
from kvcast.bench.schedule import Answer, Results, Trial
from kvcast.bench.workload import Table, Workload, of_trial
from kvcast.errors import UsageError
from kvcast.work.base import Counted, Work

STEPS = "steps"


@dataclass(frozen=True, kw_only=True)
class GpuSteps(Workload):
    """A text of each model: its name, what counts its work, tokens before the first step, steps."""

    texts: Mapping[str, tuple[Counted, int, int]]
    device: Mapping[str, Any]  # facts, for the JSON object
    name: ClassVar[str] = "gpu"
    metrics: ClassVar[Mapping[str, Sequence[str]]] = {STEPS: (STEP,)}
    peak_per_turn: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, (counted, prompt, new) in self.texts.items():
            if prompt + new > counted.most_positions:
                raise UsageError(
                    f"{prompt} + {new} tokens are more than the {counted.most_positions} of "
                    f"{name}: lower --prompt or --new"
                )

    @property
    @override
    def settings(self) -> Mapping[str, Any]:
        return {"batch": 1, "decoding": "greedy", "device": dict(self.device)}

    @property
    @override
    def rated(self) -> tuple[Work, int]:
        return Work(), 1  # the floor is that of the device's memory

    @override
    def tables(self) -> Sequence[Table]:
        return [
            Table(
                trials=[{"measure": STEPS, "model": name, "prompt": prompt, "new": new}],
                metrics={STEP: "ms a token"},
                number=".3f",
                line=f"{name}: {new} steps after {prompt} tokens",
                floors=True,
                facts={
                    "tokens/s": ("tokens_per_second", ".0f"),
                    "same tokens": ("agreeing", ".0f"),
                },
            )
            for name, (_, prompt, new) in self.texts.items()
        ]

    @override
    def run(self, backend: Any, trial: Trial) -> Answer:
        seconds, tokens = backend.write()
        return {STEP: seconds / trial["new"], "tokens": tokens}

    @override
    def counted(self, trial: Trial) -> Counted:
        return self.texts[trial["model"]][0]

    @override
    def facts(self, trial: Trial, name: str, results: Results) -> Mapping[str, Any]:
        by_name = of_trial(results, trial)
        result, reference = by_name[name], by_name.get(f"{trial['model']}-programs")
        agreeing = None
        if reference is not None and reference.stands:
            pairs = zip(result.last["tokens"], reference.last["tokens"], strict=True)
            differ = (index for index, (one, other) in enumerate(pairs) if one != other)
            agreeing = next(differ, trial["new"])
        return {"tokens_per_second": 1 / median(result.series(STEP)), "agreeing": agreeing}
