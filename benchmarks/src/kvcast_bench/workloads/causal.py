"""Decoder-only models: prompts and their continuations, and steps far in a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from kvcast.errors import KvcastError, UsageError
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.inspect.work import ModelWork, Work
from kvcast_bench.backend import Backend, Ticks, Tokens
from kvcast_bench.models import BenchModel, CausalModel
from kvcast_bench.probes import LOOP, PREFILL, STEP
from kvcast_bench.turns import Results, Trial, TurnAnswer
from kvcast_bench.workload import (
    OptionDefaults,
    Table,
    Workload,
    check_tokens,
    of_trial,
    random_tokens,
)

TEXT, REPEATED, POSITION = "text", "repeated", "position"
FIRST = "first"
STEPS_AT_POSITION = 16
_COPIES = 8

# At a position few steps are taken, so their median counts; over a text all of its time does.
_TYPICAL = {TEXT: mean, REPEATED: mean, POSITION: median}


@dataclass(frozen=True, kw_only=True)
class Causal(Workload):
    dimensions: DecoderDimensions
    prompt: int
    new: int  # tokens of each row after the first, which comes of the prompt
    batch: Sequence[int] = (1,)  # prompts at once, of each trial
    positions: Sequence[int] = ()  # where a few steps of one row are timed
    window: int | None = None

    name: ClassVar[str] = "causal"
    kind: ClassVar[str] = "decoder-only models"
    model: ClassVar[type[BenchModel]] = CausalModel
    options: ClassVar[OptionDefaults] = {
        "prompt": (512, "tokens of each prompt"),
        "new": (128, "tokens after the first"),
        "positions": ([100, 1000, 8000], "where steps are timed; none to skip"),
        "window": (512, "of the model whose layers are rings, at the positions"),
    }
    metrics: ClassVar[Mapping[str, Sequence[str]]] = {
        TEXT: (FIRST, STEP),
        REPEATED: (FIRST, STEP),
        POSITION: (STEP,),
    }
    broken_down: ClassVar[str] = TEXT
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
            "prompts": "random tokens, the same for all backends",
        }

    @property
    @override
    def step_work(self) -> Work:
        return self.counted({}).call(0, 1)

    @override
    def tables(self) -> Sequence[Table]:
        texts = Table(
            trials=self.texts(),
            metrics={FIRST: "first ms", STEP: "a step ms"},
            places={"batch": "rows"},
            facts={"tokens/s": ("tokens_per_second", ".1f")},
        )
        repeated = replace(
            texts,
            trials=[{"measure": REPEATED, "rows": 1, "prompt": self.prompt, "steps": self.new}],
            line=f"after a passage that stands {_COPIES} times in the prompt",
        )
        far = Table(
            trials=[
                {"measure": POSITION, "rows": 1, "prompt": position, "steps": STEPS_AT_POSITION}
                for position in self.positions
            ],
            metrics={STEP: "a step ms"},
            places={"position": "prompt"},
            limit="step at {prompt}",
        )
        return [texts, repeated, far] if self.positions else [texts, repeated]

    def texts(self) -> list[Trial]:
        """Return the trials of whole texts, one for each number of rows."""
        return [
            {"measure": TEXT, "rows": rows, "prompt": self.prompt, "steps": self.new}
            for rows in self.batch
        ]

    @override
    def run(self, backend: Any, trial: Trial) -> TurnAnswer:
        rows, new = trial["rows"], trial["steps"] + 1
        prompts = self._prompts(trial)
        ticks = Ticks()
        texts: list[Tokens] = backend.generate(prompts, new, ticks)
        check_tokens(texts, rows, new)
        if len(ticks.times) != new:
            raise KvcastError(f"took {len(ticks.times)} steps to {new} tokens")
        steps = np.diff(ticks.times).tolist()
        return {
            FIRST: ticks.times[0] - ticks.began,
            STEP: _TYPICAL[trial["measure"]](steps),
            "tokens": texts[0],
        }

    @override
    def work(self, trial: Trial, backend: Backend) -> Mapping[str, Work]:
        # A text's step is its middle one.
        rows, prompt, is_text = trial["rows"], trial["prompt"], trial["measure"] != POSITION
        sizes = self.dimensions
        if backend.window is not None:
            sizes = replace(sizes, windows=(backend.window,) * sizes.layers)
        model, held = ModelWork(dimensions=sizes), prompt + is_text * trial["steps"] // 2
        step = {STEP: model.call(held, 1, rows=rows)}
        return step | {FIRST: model.call(0, prompt, rows=rows)} if is_text else step

    @override
    def facts(self, trial: Trial, name: str, results: Results) -> Mapping[str, Any]:
        result = of_trial(results, trial)[name]
        return {
            "tokens": result.last["tokens"],
            "tokens_per_second": trial["rows"] / median(result.series(STEP)),
        }

    def _prompts(self, trial: Trial) -> list[Tokens]:
        rows, length, vocabulary = trial["rows"], trial["prompt"], self.dimensions.vocab_size
        if trial["measure"] != REPEATED:
            return random_tokens(rows, length, vocabulary)
        sequences = random_tokens(rows, -(-length // _COPIES), vocabulary)
        return [(sequence * _COPIES)[:length] for sequence in sequences]
