"""T5s: targets of sources, greedily and with beams, one source and several, short and long ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any, ClassVar

from typing_extensions import override

from kvcast.errors import UsageError
from kvcast.families.t5 import T5Dimensions
from kvcast.inspect.work import ModelWork, Work
from kvcast_bench.backend import Tokens
from kvcast_bench.models import BenchModel, Seq2seqModel
from kvcast_bench.probes import ENCODE, LOOP, PREFILL, REORDER, STEP
from kvcast_bench.turns import Results, Trial, TurnAnswer
from kvcast_bench.workload import (
    OptionDefaults,
    Table,
    Workload,
    check_tokens,
    of_trial,
    random_tokens,
    timed,
)

TARGETS = "targets"
FIRST, WHOLE = "first", "whole"


@dataclass(frozen=True, kw_only=True)
class Seq2seq(Workload):
    """Sources of equal length, and targets of a given number of tokens."""

    dimensions: T5Dimensions
    source: int
    target: int  # 2 or more
    batch: Sequence[int]  # sources at once, with each of `beam`
    beam: Sequence[int]
    lengths: Sequence[int] = ()  # one source at a time and greedy

    name: ClassVar[str] = "seq2seq"
    kind: ClassVar[str] = "T5s"
    model: ClassVar[type[BenchModel]] = Seq2seqModel
    options: ClassVar[OptionDefaults] = {
        "source": (128, "tokens of each source"),
        "target": (64, "tokens to write for each"),
        "beam": ([1, 4], "beams; 1 is greedy"),
        "lengths": ([32, 128, 512], "of sources whose steps are compared; none to skip"),
    }
    metrics: ClassVar[Mapping[str, Sequence[str]]] = {TARGETS: (FIRST, STEP, WHOLE)}
    broken_down: ClassVar[str] = TARGETS
    parts: ClassVar[Sequence[str]] = (ENCODE, PREFILL, STEP, REORDER, LOOP)

    def __post_init__(self) -> None:
        if self.target < 2:
            raise UsageError("target must be 2 or more: a step is what comes after the first token")
        sizes = self.dimensions
        for trial in self.trials():
            if trial["beams"] > sizes.vocab_size:
                raise UsageError(f"{trial['beams']} beams are more than {sizes.vocab_size} tokens")
            for label, tokens, most in (
                ("a source", trial["source"], sizes.source_positions),
                ("a target", trial["target"], sizes.target_positions - 1),
            ):
                if tokens > most:
                    raise UsageError(
                        f"{tokens} tokens are more than the {most} of {label} that the model takes"
                    )

    @property
    @override
    def settings(self) -> Mapping[str, Any]:
        return {
            "source": self.source,
            "target": self.target,
            "batches": list(self.batch),
            "beams": list(self.beam),
            "lengths": list(self.lengths),
            "decoding": "1 beam: greedy; more: the best of all, length penalty 1",
            "end_tokens": "held back until a target has all its tokens",
            "sources": "random tokens, the same for all backends",
        }

    @property
    @override
    def step_work(self) -> Work:
        return self.counted({}).call(1, 1)

    @override
    def tables(self) -> Sequence[Table]:
        metrics = {FIRST: "first ms", STEP: "a step ms"}
        targets = Table(
            trials=[
                self._trial(rows, self.source, beams)
                for rows, beams in product(self.batch, self.beam)
            ],
            metrics=metrics,
            places={"batch": "rows", "beam": "beams"},
            facts={"tokens/s": ("tokens_per_second", ".1f")},
        )
        lengths = Table(
            trials=self._compared(),
            line="one source at a time, greedy",
            metrics=metrics,
            places={"source": "source"},
            facts={"over the first": ("over_first_length", ".2f")},
            by_backend=True,
        )
        return [targets, lengths] if self.lengths else [targets]

    @override
    def run(self, backend: Any, trial: Trial) -> TurnAnswer:
        """Time a call for one token, and a call for all.

        Beam search commits to no token until it ends. So the time to first token is a call for one
        token, and a step is the additional time of a call for all, divided by their number; greedy
        calls are timed like this too. A warm-up call is not counted: while a program waited for its
        turn, its weights left the processor's caches.
        """
        self._write(backend, trial, 1)
        first, _ = self._write(backend, trial, 1)
        whole, targets = self._write(backend, trial, self.target)
        return {
            FIRST: first,
            WHOLE: whole,
            STEP: (whole - first) / (self.target - 1),
            "tokens": targets[0],
        }

    @override
    def once(self, backend: Any, trial: Trial) -> object:
        return self._write(backend, trial, self.target)

    @override
    def counted(self, trial: Trial) -> ModelWork:
        return ModelWork(dimensions=self.dimensions, source=trial.get("source", self.source))

    @override
    def facts(self, trial: Trial, name: str, results: Results) -> Mapping[str, Any]:
        result = of_trial(results, trial)[name]
        return {
            "tokens": result.last["tokens"],
            "tokens_per_second": trial["rows"] * self.target / median(result.series(WHOLE)),
            "over_first_length": self._over_first_length(trial, name, results),
        }

    def _over_first_length(self, trial: Trial, name: str, results: Results) -> float | None:
        """Return a step's time over that with the first of the lengths that are compared."""
        compared = self._compared()
        if trial not in compared or not (first := of_trial(results, compared[0])[name]).stands:
            return None
        steps: list[float] = of_trial(results, trial)[name].series(STEP)
        return median(steps) / median(first.series(STEP))

    def _compared(self) -> list[Trial]:
        return [self._trial(1, length, 1) for length in self.lengths]

    def _trial(self, rows: int, source: int, beams: int) -> Trial:
        sizes = {"rows": rows, "source": source, "beams": beams}
        return {"measure": TARGETS, **sizes, "target": self.target}

    def _write(self, backend: Any, trial: Trial, tokens: int) -> tuple[float, list[Tokens]]:
        rows, beams = trial["rows"], trial["beams"]
        sources = random_tokens(rows, trial["source"], self.dimensions.vocab_size)
        seconds, targets = timed(lambda: backend.write(sources, beams, tokens))
        check_tokens(targets, rows, tokens)
        return seconds, targets
