"""Decoding steps on one device: a greedy text after a prompt, with random weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from typing_extensions import override

from kvcast.checkpoints.source import read_dimensions
from kvcast.errors import UsageError
from kvcast.inspect.work import ModelWork, Work
from kvcast_bench.probes import STEP
from kvcast_bench.turns import Results, Trial, TurnAnswer
from kvcast_bench.workload import Table, Workload, of_trial

STEPS = "steps"
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Of a number of weights and caches, by dtype."""


@dataclass(frozen=True, kw_only=True)
class TimedModel:
    """Sizes of a model, and how its steps are timed."""

    dimensions: Any
    prompt: int  # tokens before the first step
    new: int  # steps of a run


# As in the published config.json, without fields that do not affect sizes.
_CONFIGS = Path(__file__).parents[1] / "configs"

PUBLISHED: Mapping[str, TimedModel] = {
    name: TimedModel(dimensions=read_dimensions(_CONFIGS / name), prompt=prompt, new=new)
    for name, prompt, new in (("whisper-large-v3-turbo", 4, 200), ("mistral-7b", 512, 128))
}
"""Known models, and how their steps are timed unless it is said otherwise."""


@dataclass(frozen=True, kw_only=True)
class GpuSteps(Workload):
    models: Mapping[str, TimedModel]  # by name
    dtype: str  # of weights and caches, one of BYTES
    device: Mapping[str, Any]  # facts, for the JSON object
    name: ClassVar[str] = "gpu"
    metrics: ClassVar[Mapping[str, Sequence[str]]] = {STEPS: (STEP,)}
    peak_per_turn: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for trial in self.trials():
            prompt, new, most = trial["prompt"], trial["new"], self.counted(trial).most_positions
            if prompt + new > most:
                raise UsageError(
                    f"{prompt} + {new} tokens are more than the {most} of {trial['model']}: "
                    "lower --prompt or --new"
                )

    @property
    @override
    def settings(self) -> Mapping[str, Any]:
        device = dict(self.device)
        return {"dtype": self.dtype, "batch": 1, "decoding": "greedy", "device": device}

    @property
    @override
    def step_work(self) -> Work:
        return Work()  # the floor is the device's memory bandwidth

    @override
    def tables(self) -> Sequence[Table]:
        return [
            Table(
                trials=[
                    {"measure": STEPS, "model": name, "prompt": model.prompt, "new": model.new}
                ],
                metrics={STEP: "ms a token"},
                number=".3f",
                line=f"{name}: {model.new} steps after {model.prompt} tokens",
                floors=True,
                facts={
                    "tokens/s": ("tokens_per_second", ".0f"),
                    "same tokens": ("agreeing", ".0f"),
                },
            )
            for name, model in self.models.items()
        ]

    @override
    def run(self, backend: Any, trial: Trial) -> TurnAnswer:
        seconds, tokens = backend.write()
        return {STEP: seconds / trial["new"], "tokens": tokens}

    @override
    def counted(self, trial: Trial) -> ModelWork:
        return ModelWork(dimensions=self.models[trial["model"]].dimensions)

    def step_bytes(self, trial: Trial) -> float:
        """Return the bytes that a step must read, on average over a trial's text.

        Every weight once, the valid positions of self-attention caches (at most a ring's slots),
        and the cross-attention caches.
        """
        counted, prompt, new = self.counted(trial), trial["prompt"], trial["new"]
        works = [counted.call(length, 1) for length in range(prompt, prompt + new)]
        values = sum(work.weights + work.cached + work.written for work in works)
        read: float = values / new * BYTES[self.dtype]
        return read

    @override
    def facts(self, trial: Trial, name: str, results: Results) -> Mapping[str, Any]:
        by_name = of_trial(results, trial)
        result, reference = by_name[name], by_name.get(f"{trial['model']}-programs")
        agreeing = None
        if reference is not None and reference.stands:
            pairs = zip(result.last["tokens"], reference.last["tokens"], strict=True)
            agreeing = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        return {"tokens_per_second": 1 / median(result.series(STEP)), "agreeing": agreeing}
