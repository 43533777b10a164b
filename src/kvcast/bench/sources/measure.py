"""A T5 beside its peers: greedy and with beams, one source and several, short sources and long."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from kvcast.bench.arena import Arena
from kvcast.bench.command import say
from kvcast.bench.course import Course, known_rates
from kvcast.bench.precision import OURS
from kvcast.bench.sources.document import Measured, document
from kvcast.bench.sources.floor import Floor
from kvcast.bench.sources.limits import Limit
from kvcast.bench.sources.peers import CONTENDERS
from kvcast.bench.sources.peers.base import Task
from kvcast.bench.sources.trials import Trial
from kvcast.errors import UsageError
from kvcast.spec.t5 import T5Dimensions

_CONTESTANT = "kvcast.bench.sources.contestant:Writer"
_BREAKDOWN = "kvcast.bench.sources.breakdown:Breakdown"


def measure(
    model: str,
    folder: Path,
    dimensions: T5Dimensions,
    *,
    threads: int,
    runs: int,
    batch: Sequence[int],
    quantize: Sequence[str],
    peers: Sequence[str],
    source: int,
    target: int,
    beam: Sequence[int],
    lengths: Sequence[int],
) -> dict[str, Any]:
    """Measure and return the document; the keywords are the command's options.

    Raises UsageError where the model is too short for them.
    """
    texts = [
        Trial(rows=rows, source=source, beams=beams, target=target)
        for rows, beams in product(batch, beam)
    ]
    others = [Trial(rows=1, source=length, beams=1, target=target) for length in lengths]
    trials = list(dict.fromkeys((*texts, *others)))
    _check(trials, dimensions)
    task = Task(folder=str(folder), threads=threads, vocab_size=dimensions.vocab_size)
    arena = Arena(
        threads=threads, contestant=_CONTESTANT, arguments={"task": asdict(task)}, report=say
    )
    course = Course(arena=arena, quantize=quantize, runs=runs)
    settings = {
        "threads": threads,
        "runs": runs,
        "source": source,
        "target": target,
        "batches": list(batch),
        "beams": list(beam),
        "lengths": list(lengths),
    }
    measured = _measured(course, task, dimensions, trials, peers)
    return document(measured, model, settings=settings)


def _check(trials: Sequence[Trial], dimensions: T5Dimensions) -> None:
    for trial in trials:
        if trial.target < 2:
            raise UsageError("target must be 2 or more: a step is what comes after the first token")
        if trial.beams > dimensions.vocab_size:
            raise UsageError(f"{trial.beams} beams are more than {dimensions.vocab_size} tokens")
        for what, tokens, most in (
            ("a source", trial.source, dimensions.source_positions),
            ("a target", trial.target, dimensions.target_positions - 1),
        ):
            if tokens > most:
                raise UsageError(
                    f"{tokens} tokens are more than the {most} of {what} that the model takes"
                )


def _measured(
    course: Course,
    task: Task,
    dimensions: T5Dimensions,
    trials: Sequence[Trial],
    peers: Sequence[str],
) -> Measured:
    floors = {
        quantize: Floor(dimensions=dimensions, quantize=quantize) for quantize in course.quantize
    }
    first = trials[0]
    step_bytes = {
        quantize: round(floor.decode(rows=1, new=1, held=1, inputs=1, source=first.source).bytes)
        for quantize, floor in floors.items()
    }

    def rates() -> Any:
        return course.rates(step_bytes.__getitem__, first.source, dimensions.width)

    before = rates()
    names = [*(OURS[quantize] for quantize in course.quantize), *peers]
    contenders = [CONTENDERS[name](task) for name in names]
    with course.arena.seated(contenders) as (seats, absent):
        present = course.present(absent)
        results = course.turns(trials, seats, seats)
    breakdowns = course.breakdowns(_BREAKDOWN, task.folder, present, trials)
    known = known_rates(before, rates())
    return Measured(
        seats=seats,
        precisions={contender.name: contender.precision for contender in contenders},
        absent=absent,
        results=results,
        breakdowns=breakdowns,
        floors=None
        if known is None
        else {
            name: Limit(floors[quantize], known[quantize]).held(
                breakdowns[name], step_bytes[quantize]
            )
            for quantize, name in present.items()
        },
    )
