"""Decoder-only models: prompts and what follows them, and steps far in a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from kvcast.bench.backend import Backend, Ticks, Tokens
from kvcast.bench.layout import Found, Layout, Number, Table
from kvcast.bench.probes import LOOP, PREFILL, STEP
from kvcast.bench.schedule import Answer, Results, Trial
from kvcast.bench.workload import Workload, check_tokens, of_trial, random_tokens
from kvcast.errors import KvcastError, UsageError
from kvcast.spec.decoder import DecoderDimensions
from kvcast.work.base import Work
from kvcast.work.decoder import DecoderWork

TEXT, POSITION = "text", "position"
FIRST = "first"
STEPS_AT_POSITION = 16

# At a position few steps are taken, so their median counts; over a text all of its time does.
_TYPICAL = {TEXT: mean, POSITION: median}


@dataclass(frozen=True, kw_only=True)
class Causal(Workload):
    """Prompts of equal length, continued greedily."""

    dimensions: DecoderDimensions  # of the model
    prompt: int  # tokens of each
    new: int  # tokens of each row after the first, which comes of the prompt
    batch: Sequence[int] = (1,)  # prompts at once, of each trial
    positions: Sequence[int] = ()  # where a few steps of one row are timed
    step_at: int = 0  # tokens before the step whose bytes `read_again` reads
    window: int | None = None  # of the model with rings that takes part at positions
    peak_per_turn: bool = True  # see `Workload`

    name: ClassVar[str] = "causal"
    metrics: ClassVar[Mapping[str, Sequence[str]]] = {TEXT: (FIRST, STEP), POSITION: (STEP,)}
    broken_down: ClassVar[Sequence[str]] = (TEXT,)
    parts: ClassVar[Sequence[str]] = (PREFILL, STEP, LOOP)

    def __post_init__(self) -> None:
        most = self.dimensions.max_positions
        for trial in self.trials():
            prompt, new = trial["prompt"], trial["steps"] + 1
            if prompt + new > most:
                raise UsageError(
                    f"{prompt} + {new} tokens are more than the {most} that the model takes"
                )

    @property
    @override
    def settings(self) -> Mapping[str, Any]:
        return {
            "prompt": self.prompt,
            "new": self.new,
            "batches": list(self.batch),
            "positions": list(self.positions),
            "window": self.window,
            "decoding": "greedy",
            "end_tokens": "ignored",
            "prompts": "random tokens, the same for everybody",
        }

    @property
    @override
    def largest_product(self) -> tuple[int, int]:
        return self.prompt, self.dimensions.width

    @override
    def trials(self) -> Sequence[Trial]:
        texts = [
            {"measure": TEXT, "rows": rows, "prompt": self.prompt, "steps": self.new}
            for rows in self.batch
        ]
        far = [
            {"measure": POSITION, "rows": 1, "prompt": position, "steps": STEPS_AT_POSITION}
            for position in self.positions
        ]
        return [*texts, *far]

    @override
    def run(self, backend: Any, trial: Trial) -> Answer:
        prompts, new, ticks = self._prompts(trial), trial["steps"] + 1, Ticks()
        texts: list[Tokens] = backend.generate(prompts, new, ticks)
        check_tokens(texts, trial["rows"], new)
        if len(ticks.times) != new:
            raise KvcastError(f"took {len(ticks.times)} steps to {new} tokens")
        steps = np.diff(ticks.times).tolist()
        return {
            FIRST: ticks.times[0] - ticks.began,
            STEP: _TYPICAL[trial["measure"]](steps),
            "tokens": texts[0],
        }

    @override
    def once(self, backend: Any, trial: Trial) -> object:
        return backend.generate(self._prompts(trial), trial["steps"] + 1, Ticks())

    @override
    def counted(self, trial: Trial) -> DecoderWork:
        return DecoderWork(dimensions=self.dimensions)

    @override
    def work(self, trial: Trial, backend: Backend) -> Mapping[str, Work]:
        # A text's step is the one in the middle.
        rows, prompt, is_text = trial["rows"], trial["prompt"], trial["measure"] == TEXT
        sizes = self.dimensions
        if backend.window is not None:
            sizes = replace(sizes, windows=(backend.window,) * sizes.layers)
        model, held = DecoderWork(dimensions=sizes), prompt + is_text * trial["steps"] // 2
        step = {STEP: model.call(held, 1, rows=rows)}
        return step | {FIRST: model.call(0, prompt, rows=rows)} if is_text else step

    @override
    def step(self) -> Work:
        return self.counted({}).call(self.step_at, 1)

    @override
    def facts(self, trial: Trial, name: str, results: Results) -> Mapping[str, Any]:
        result = of_trial(results, trial)[name]
        return {
            "tokens": result.last["tokens"],
            "tokens_per_second": trial["rows"] / median(result.series(STEP)),
        }

    def _prompts(self, trial: Trial) -> list[Tokens]:
        return random_tokens(trial["rows"], trial["prompt"], self.dimensions.vocab_size)


def _tables(found: Found) -> Sequence[Table]:
    texts = Table(
        measure=TEXT,
        metrics={FIRST: "first ms", STEP: "a step ms"},
        places={"batch": "rows"},
        facts={"tokens/s": ("tokens_per_second", Number(decimals=1))},
    )
    far = Table(measure=POSITION, metrics={STEP: "a step ms"}, places={"position": "prompt"})
    return [texts, far] if found["settings"]["positions"] else [texts]


LAYOUT = Layout(tables=_tables, limits={POSITION: "step at {prompt}"})
