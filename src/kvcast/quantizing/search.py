"""Searches for a recipe: the largest saving first, as long as few tokens change.

Every matrix and both kinds of caches are tried alone in every precision. A *move* takes one of them
to a smaller one; moves are sorted by savings per divergence. How many moves fit is measured with
all of them together: by bisection, then by trying the others in halves. Timings alternate between
the candidates, and medians count, so that a busy moment affects all alike.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from kvcast.quantizing.calibration_samples import CalibrationSample
from kvcast.quantizing.trials import Trials, ready_cache
from kvcast.runtimes.native.interpreter import Call, Interpreter
from kvcast.runtimes.native.plan_builder import Matrix
from kvcast.spec.program import Constant, Node, Program, Step
from kvcast.spec.recipes import Recipe

MOST_TRIALS = 48
"""Recipes that are measured whole, at most."""
_LEAST_COST = 1e-9  # nats; less is indistinguishable from 0
_ON_THE_WAY = 6  # recipes on the way to all moves, for the frontier


@dataclass(frozen=True, kw_only=True)
class Level:
    """A precision of a matrix or of caches, compared with fp32 while all else is fp32."""

    precision: str
    saving: float  # as a share of the fp32 total
    cost: float


@dataclass(frozen=True, kw_only=True)
class Move:
    """A step of a target (a matrix, "self_cache", "cross_cache") to a smaller precision."""

    target: str
    precision: str
    worth: float


@dataclass(frozen=True, kw_only=True)
class Point:
    recipe: Recipe
    flips: float


def moves_of(levels: Mapping[str, Sequence[Level]]) -> list[Move]:
    """Return moves, the worthiest first: each target's upper hull of savings over costs."""
    moves = [move for target, each in levels.items() for move in _hull(target, each)]
    return sorted(moves, key=lambda move: (-move.worth, move.target))


def _hull(target: str, levels: Sequence[Level]) -> Iterator[Move]:
    saving, cost = 0.0, 0.0
    while larger := [level for level in levels if level.saving > saving]:
        worths = [(each.saving - saving) / max(each.cost - cost, _LEAST_COST) for each in larger]
        worth = max(worths)
        best = larger[worths.index(worth)]
        yield Move(target=target, precision=best.precision, worth=worth)
        saving, cost = best.saving, max(best.cost, cost)


@dataclass
class Search:
    start: Recipe
    moves: Sequence[Move]
    budget: float
    apply: Callable[[Recipe, str, str], Recipe]  # sets a target's precision
    measure: Callable[[Recipe], float]  # share of flips; each recipe once
    points: list[Point] = field(default_factory=list)

    def run(self) -> Recipe:
        """Return the best recipe whose flips stay under the budget; the start if none does."""
        for i in range(1, _ON_THE_WAY + 1):
            self._fits(self.moves[: round(i * len(self.moves) / _ON_THE_WAY)])
        fits, fails = 0, len(self.moves) + 1
        while fails - fits > 1:
            # The first probe is all of them.
            middle = len(self.moves) if fails > len(self.moves) else (fits + fails) // 2
            if self._fits(self.moves[:middle]):
                fits = middle
            else:
                fails = middle
        kept = list(self.moves[:fits])
        self._extend(kept, self.moves[fails:])
        return self._recipe(kept)

    def _extend(self, kept: list[Move], others: Sequence[Move]) -> None:
        """Keep the other moves that fit, trying halves of groups that do not."""
        others = self._possible(kept, others)
        if not others or len(self.points) >= MOST_TRIALS:
            return
        if self._fits([*kept, *others]):
            kept += others
        elif len(others) > 1:
            middle = len(others) // 2
            self._extend(kept, others[:middle])
            self._extend(kept, others[middle:])

    def _possible(self, kept: Sequence[Move], others: Sequence[Move]) -> list[Move]:
        """Return moves of targets whose earlier moves are all kept."""
        done, possible = {*kept}, list[Move]()
        for move in others:
            earlier = [each for each in self.moves if each.target == move.target]
            if done.issuperset(earlier[: earlier.index(move)]):
                possible.append(move)
                done.add(move)
        return possible

    def _fits(self, moves: Sequence[Move]) -> bool:
        recipe = self._recipe(moves)
        known = next((point for point in self.points if point.recipe == recipe), None)
        if known is None:
            known = Point(recipe=recipe, flips=self.measure(recipe))
            self.points.append(known)
        return known.flips <= self.budget

    def _recipe(self, moves: Sequence[Move]) -> Recipe:
        recipe = self.start
        for move in moves:
            recipe = self.apply(recipe, move.target, move.precision)
        return recipe


_ROUNDS, _FEW_ROUNDS = 7, 3
WHOLE_ROUNDS = 5
"""Turns of whole models."""
_STEPS = 24
_NAME, _X = "products", "x"


@dataclass(frozen=True, kw_only=True)
class Timed:
    median: float
    least: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Timed":
        return cls(median=median(seconds), least=min(seconds), most=max(seconds))


def time_in_turns(calls: Sequence[Callable[[], float]], rounds: int = _ROUNDS) -> list[Timed]:
    """Call in turn, after a warm-up of each; a call returns its seconds."""
    for call in calls:
        call()
    turns = [[call() for call in calls] for _ in range(rounds)]
    return [Timed.of(each) for each in zip(*turns, strict=True)]


def seconds_per_token(runtime: Any, sample: CalibrationSample) -> float:
    """Includes encoding and prefill; only some steps of a long target are timed."""
    began = time.perf_counter()
    cache = ready_cache(runtime, sample)
    _, cache = runtime.prefill([sample.prompt], cache)
    before = time.perf_counter() - began
    steps = sample.target[:_STEPS, None]
    began = time.perf_counter()
    for token_s in steps:
        _, cache = runtime.decode([token_s], cache)
    return before / sample.positions + (time.perf_counter() - began) / len(steps)


def product_seconds(trials: Trials) -> dict[str, dict[str, float]]:
    """Seconds per token of each matrix in each precision.

    Matrices of a shape are multiplied in turn, so that they come from memory as in a model: by one
    row per token, or, in an encoder, by its positions, divided by the tokens of a source.
    Experts and convolutions are not timed.
    """
    seconds: dict[str, dict[str, float]] = {}
    for rows, share, names in _alike(trials):
        for name, by_precision in _measure(trials, names, rows):
            each = seconds.setdefault(name, dict.fromkeys(by_precision, 0.0))
            for precision, taken in by_precision.items():
                each[precision] += taken * share
    return seconds


def _alike(trials: Trials) -> Iterator[tuple[int, float, list[str]]]:
    """Rows, their calls per token, and names of matrices of one shape."""
    sources = sum(1 for sample in trials.samples if sample.source)
    tokens = sum(sample.positions for sample in trials.samples)
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


def _measure(
    trials: Trials, names: Sequence[str], rows: int
) -> Iterator[tuple[str, dict[str, float]]]:
    precisions = trials.choices[names[0]]
    calls = [_call(trials, trials.packed[precision], names, rows) for precision in precisions]
    turns = _ROUNDS if rows == 1 else _FEW_ROUNDS
    taken = [each.median / len(names) for each in time_in_turns(calls, turns)]
    for name in names:
        yield name, dict(zip(precisions, taken, strict=True))


def _call(
    trials: Trials, packed: Mapping[Constant, Any], names: Sequence[str], rows: int
) -> Callable[[], float]:
    """Return a function that multiplies with matrices and returns the seconds."""
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
