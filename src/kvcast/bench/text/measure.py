"""A decoder-only model beside its peers: prompts and what follows them, and steps far in a text."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvcast.bench.arena import Arena
from kvcast.bench.command import say
from kvcast.bench.course import Course, Rates, known_rates, of_contender
from kvcast.bench.precision import OURS
from kvcast.bench.text.document import Measured, document
from kvcast.bench.text.floor import Floor
from kvcast.bench.text.limits import Limit, step_bytes
from kvcast.bench.text.peers import CONTENDERS, RING
from kvcast.bench.text.peers.base import Task
from kvcast.bench.text.trials import Trial
from kvcast.errors import UsageError
from kvcast.spec.decoder import DecoderDimensions

STEPS_AT_POSITION = 16
_CONTESTANT = "kvcast.bench.text.contestant:Generator"
_BREAKDOWN = "kvcast.bench.text.breakdown:Breakdown"


def measure(
    model: str,
    folder: Path,
    dimensions: DecoderDimensions,
    *,
    threads: int,
    runs: int,
    quantize: Sequence[str],
    peers: Sequence[str],
    **settings: Any,
) -> dict[str, Any]:
    """Measure and return the document; `settings` are the command's options of these models."""
    task = Task(
        model=model,
        folder=str(folder),
        threads=threads,
        vocab_size=dimensions.vocab_size,
        window=settings["window"],
    )
    plan = _Plan.of(dimensions, settings)
    course = Course(
        arena=Arena(
            threads=threads, contestant=_CONTESTANT, arguments={"task": asdict(task)}, report=say
        ),
        quantize=quantize,
        runs=runs,
    )
    return document(
        _measured(plan, course, task, peers),
        task,
        settings={
            "prompt": settings["prompt"],
            "new": settings["new"],
            "batches": settings["batch"],
            "positions": settings["positions"],
            "window": settings["window"],
        },
        runs=runs,
    )


@dataclass(frozen=True, kw_only=True)
class _Plan:
    dimensions: DecoderDimensions
    texts: Sequence[Trial]
    positions: Sequence[Trial]

    @classmethod
    def of(cls, dimensions: DecoderDimensions, settings: Mapping[str, Any]) -> "_Plan":
        """Plan what was asked for; raises UsageError where the model is too short for it."""
        texts = [
            Trial(rows=rows, prompt=settings["prompt"], steps=settings["new"])
            for rows in settings["batch"]
        ]
        positions = [
            Trial(rows=1, prompt=position, steps=STEPS_AT_POSITION)
            for position in settings["positions"]
        ]
        for trial in (*texts, *positions):
            if trial.prompt + trial.new > dimensions.max_positions:
                raise UsageError(
                    f"{trial.prompt} + {trial.new} tokens are more than the "
                    f"{dimensions.max_positions} that the model takes"
                )
        return cls(dimensions=dimensions, texts=texts, positions=positions)

    def floor(self, quantize: str) -> Floor:
        """Return what counts kvcast's work."""
        return Floor(dimensions=self.dimensions, quantize=quantize)

    def rates(self, course: Course) -> dict[str, Rates | None]:
        """Measure the machine."""
        return course.rates(
            lambda quantize: step_bytes(self.floor(quantize)),
            self.texts[0].prompt,
            self.dimensions.width,
        )

    def limits(self, known: Mapping[str, Sequence[Rates]], window: int) -> dict[str, Limit]:
        """Return what each of kvcast's contenders is held against."""
        found = {OURS[quantize]: Limit(self.floor(quantize), known[quantize]) for quantize in known}
        if OURS["int8"] in found:
            found[RING] = found[OURS["int8"]].with_window(window)
        return found


def _measured(plan: _Plan, course: Course, task: Task, peers: Sequence[str]) -> Measured:
    before = plan.rates(course)
    rings = [RING] if plan.positions else []
    names = [*(OURS[quantize] for quantize in course.quantize), *rings, *peers]
    contenders = [CONTENDERS[name](task) for name in names]
    with course.arena.seated(contenders) as (seats, absent):
        present = course.present(absent)
        steady = [seat for seat in seats if seat.name != RING]
        texts = course.turns(plan.texts, steady, seats)
        positions = course.turns(plan.positions, seats, seats)
    breakdowns = course.breakdowns(_BREAKDOWN, task.model, present, plan.texts)
    known = known_rates(before, plan.rates(course))
    return Measured(
        seats=seats,
        precisions={contender.name: contender.precision for contender in contenders},
        absent=absent,
        texts=texts,
        positions=positions,
        breakdowns=breakdowns,
        floors=None
        if known is None
        else {
            name: limit.held(breakdowns.get(name, {}), of_contender(positions, name))
            for name, limit in plan.limits(known, task.window).items()
            if name in {seat.name for seat in seats}
        },
    )
