"""Times matrices in each precision, and whole models, in turns.

What is compared takes turns, so that a busy moment meets all alike; medians count. Knows no search.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from kvcast.quantizing.passages import Passage
from kvcast.quantizing.trials import Trials, ready_cache
from kvcast.runtimes.native.building import Matrix
from kvcast.runtimes.native.interpreter import Call, Interpreter
from kvcast.spec.program import Constant, Node, Program, Step

_ROUNDS, _FEW_ROUNDS = 7, 3
WHOLE_ROUNDS = 5
"""Turns of whole models."""
_STEPS = 24
_NAME, _X = "products", "x"


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Seconds of a token: the median of several turns, with the least and the most."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Timed":
        """Return what several turns took."""
        return cls(median=median(seconds), least=min(seconds), most=max(seconds))


def timed(calls: Sequence[Callable[[], float]], rounds: int = _ROUNDS) -> list[Timed]:
    """Let calls take turns, but for a first one that warms up; each returns its own seconds."""
    for call in calls:
        call()
    turns = [[call() for call in calls] for _ in range(rounds)]
    return [Timed.of(each) for each in zip(*turns, strict=True)]


def seconds_per_token(runtime: Any, passage: Passage) -> float:
    """Return the seconds of a token: encoding, the prompt and steps, shared by all tokens written.

    A passage whose target is longer than some steps counts as if the others took as long.
    """
    began = time.perf_counter()
    cache = ready_cache(runtime, passage)
    _, cache = runtime.prefill([passage.prompt], cache)
    before = time.perf_counter() - began
    steps = passage.target[:_STEPS, None]
    began = time.perf_counter()
    for token_s in steps:
        _, cache = runtime.decode([token_s], cache)
    return before / passage.positions + (time.perf_counter() - began) / len(steps)


def product_seconds(trials: Trials) -> dict[str, dict[str, float]]:
    """Return the seconds of a token that each matrix of products takes in each precision.

    Those of a shape are multiplied one after the other, so that they come from memory as they do
    in a model: with one row for each token, or, where an encoder reads them, with its positions,
    shared by the tokens of a source. Experts and convolutions are not timed.
    """
    seconds: dict[str, dict[str, float]] = {}
    for rows, share, names in _alike(trials):
        for name, by_precision in _measured(trials, names, rows):
            each = seconds.setdefault(name, dict.fromkeys(by_precision, 0.0))
            for precision, taken in by_precision.items():
                each[precision] += taken * share
    return seconds


def _alike(trials: Trials) -> Iterator[tuple[int, float, list[str]]]:
    """Yield rows, the times that a token asks for them, and names of matrices of one shape."""
    sources = sum(1 for passage in trials.passages if passage.source)
    tokens = sum(passage.positions for passage in trials.passages)
    calls = {"decode": (1, 1.0), "encode": (trials.source_positions, sources / tokens)}
    for program, (rows, share) in calls.items():
        if program not in trials.programs or not rows:
            continue
        shapes: dict[tuple[int, int], list[str]] = defaultdict(list)
        for name in sorted(trials.programs[program].matrices("linear") & trials.choices.keys()):
            matrix = _matrix(trials.packed["fp32"], name)[1]
            shapes[matrix.outputs, matrix.inputs].append(name)
        for names in shapes.values():
            yield rows, share, names


def _measured(
    trials: Trials, names: Sequence[str], rows: int
) -> Iterator[tuple[str, dict[str, float]]]:
    precisions = trials.choices[names[0]]
    calls = [_call(trials, trials.packed[precision], names, rows) for precision in precisions]
    turns = _ROUNDS if rows == 1 else _FEW_ROUNDS
    taken = [each.median / len(names) for each in timed(calls, turns)]
    for name in names:
        yield name, dict(zip(precisions, taken, strict=True))


def _call(
    trials: Trials, packed: Mapping[Constant, Any], names: Sequence[str], rows: int
) -> Callable[[], float]:
    """Return a function that multiplies with matrices and tells the seconds."""
    parts = dict(_matrix(packed, name) for name in names)
    steps = [Step(f"y{i}", "linear", (Node(_X), part)) for i, part in enumerate(parts)]
    program = Program(inputs=[_X], outputs={step.name: step.name for step in steps}, steps=steps)
    interpreter = Interpreter(
        trials.machine, {_NAME: program}, parts, lambda _: Path(_NAME), exact=True
    )
    x = np.random.default_rng(0).standard_normal((rows, next(iter(parts.values())).inputs))
    given = {_X: x.astype(np.float32)}
    results = {
        step.name: np.empty((rows, matrix.outputs), np.float32)
        for step, matrix in zip(steps, parts.values(), strict=True)
    }
    call: Call = interpreter.call(_NAME, given, results)

    def run() -> float:
        began = time.perf_counter()
        interpreter.run(call)
        return time.perf_counter() - began

    # The call has addresses alone.
    run.__dict__["kept"] = given, results
    return run


def _matrix(packed: Mapping[Constant, Any], name: str) -> tuple[Constant, Matrix]:
    return next((part, each) for part, each in packed.items() if part.name == name)
