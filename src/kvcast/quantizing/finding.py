"""Finds a model's recipe: tries its parts alone and together, reports, and draws the frontier."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import is_bundle
from kvcast.checkpoints.source import fingerprint, locate, open_adapters, open_checkpoint
from kvcast.errors import UsageError
from kvcast.inspect.units import grid
from kvcast.loading.components import require_cache
from kvcast.loading.opening import open_model
from kvcast.loading.params import LoadParams
from kvcast.machine.resources import available_cores
from kvcast.quantizing.calibration_samples import calibration_samples
from kvcast.quantizing.params import QuantizeParams
from kvcast.quantizing.search import (
    WHOLE_ROUNDS,
    Level,
    Search,
    Timed,
    moves_of,
    product_seconds,
    seconds_per_token,
    time_in_turns,
)
from kvcast.quantizing.trials import CROSS_CACHE, SELF_CACHE, Trials, with_precision
from kvcast.spec.recipes import CACHES, Recipe
from kvcast.spec.runtimes import RUNTIMES, PrecisionRequest

CHOSEN = "chosen"
"""The name of the recipe that was found, among points."""
_UNIFORM = ("int8", "int4")
_ALONE = 4
"""Parts are tried alone on so small a part of the positions."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    name: str
    recipe: Recipe | None  # None if it is a plain quantization of that name
    flips: float  # the share of positions whose likeliest token is not fp32's
    size: int  # bytes of weights, and of the caches of the longest sequence
    token: Timed  # seconds for a token of the first sequence, including encoding and prefill


@dataclass(frozen=True, kw_only=True)
class Found:
    recipe: Recipe
    points: Sequence[Measured]  # fp32, int8, int4, the frontier, the recipe; largest first
    positions: int
    alone: Mapping[str, Sequence[Level]]  # each precision but fp32, of a target alone
    seconds: Mapping[str, Mapping[str, float]]  # per token, by matrix and precision


def find_recipe(model: str, params: QuantizeParams) -> Found:
    """Search for a precision of each matrix and cache; KvcastError if an input cannot be read."""
    if not params.on:
        raise UsageError("--on is missing: name a recording, or a text")
    place = locate(model, params.on_phase)
    if is_bundle(place):
        raise UsageError(f"{model} is a bundle: give the checkpoint that it was exported from")
    adapters = open_adapters(params.adapter, params.on_phase)
    checkpoint, threads = open_checkpoint(place, adapters), params.threads or available_cores()
    require_cache(model, checkpoint.family)
    exact: Any = open_model(
        model,
        LoadParams(
            runtime="native",
            quantize="none",
            cache="fp32",
            threads=threads,
            adapter=params.adapter,
            on_phase=params.on_phase,
        ),
    ).model
    params.on_phase("writing in fp32")
    family = checkpoint.family
    samples = calibration_samples(exact, family, params.on, params.positions, params.language)
    trials = Trials(checkpoint, exact.runtime.interpreter, samples, threads, params.on_phase)
    name = Path(model).resolve().name if Path(model).exists() else model
    start = Recipe(model=name, sha256=fingerprint(place, adapters), matrices=trials.uniform("fp32"))
    return _Finding(trials, start, params).find()


class _Finding:
    def __init__(self, trials: Trials, start: Recipe, params: QuantizeParams) -> None:
        self._trials, self._start, self._params = trials, start, params
        self._positions = sum(sample.positions for sample in trials.samples)
        self._known: dict[Recipe, float] = {}

    def find(self) -> Found:
        self._params.on_phase("timing matrices")
        seconds = product_seconds(self._trials)
        alone = self._try_alone(seconds)
        search = Search(
            start=self._start,
            moves=moves_of(alone),
            budget=self._params.budget,
            apply=with_precision,
            measure=self._flips,
        )
        recipe = self._label(search.run())
        points = self._points(recipe)
        return Found(
            recipe=recipe,
            points=points,
            positions=self._positions,
            alone=alone,
            seconds=seconds,
        )

    def _flips(self, recipe: Recipe) -> float:
        if recipe not in self._known:
            self._params.on_phase(f"trying recipe {len(self._known) + 1}")
            self._known[recipe] = self._trials.difference(self._trials.runtime(recipe)).share
        return self._known[recipe]

    def _try_alone(self, seconds: Mapping[str, Mapping[str, float]]) -> dict[str, list[Level]]:
        """Try each matrix, and both kinds of caches, alone in each precision."""
        sizes, least = self._trials, self._positions // _ALONE
        parts = list(self._parts())
        whole_bytes = sizes.bytes_of(self._start)
        caches = [recipe for target, _, recipe in parts if target not in sizes.choices]
        whole_seconds, *others = self._seconds([self._start, *caches])
        cached = dict(zip(caches, others, strict=True))
        levels: dict[str, list[Level]] = {}
        for number, (target, precision, recipe) in enumerate(parts, 1):
            self._params.on_phase(f"trying part {number} of {len(parts)}")
            saved = whole_bytes - sizes.bytes_of(recipe)
            if target in sizes.choices:
                own = seconds.get(target, {})
                faster = own.get("fp32", 0.0) - own.get(precision, 0.0)
            else:
                faster = whole_seconds - cached[recipe]
            levels.setdefault(target, []).append(
                Level(
                    precision=precision,
                    saving=self._saving(saved / whole_bytes, max(faster, 0.0) / whole_seconds),
                    cost=sizes.alone(recipe, target, least).divergence,
                )
            )
        return levels

    def _parts(self) -> Iterator[tuple[str, str, Recipe]]:
        """Yield a target, its precision and the recipe of that alone."""
        allowed = {target: precisions[1:] for target, precisions in self._trials.choices.items()}
        allowed[SELF_CACHE] = CACHES[1:]
        if self._trials.source_positions:
            allowed[CROSS_CACHE] = CACHES[1:]
        for target, precisions in allowed.items():
            for precision in precisions:
                yield target, precision, with_precision(self._start, target, precision)

    def _saving(self, size: float, time: float) -> float:
        return {"bytes": size, "time": time, "both": (size + time) / 2}[self._params.saving]

    def _seconds(self, recipes: Sequence[Recipe]) -> list[float]:
        runtimes = [self._trials.runtime(recipe) for recipe in recipes]
        return [each.median for each in self._time(runtimes)]

    def _time(self, runtimes: Sequence[Any]) -> list[Timed]:
        first = self._trials.samples[0]
        return time_in_turns(
            [partial(seconds_per_token, each, first) for each in runtimes], WHOLE_ROUNDS
        )

    def _label(self, recipe: Recipe) -> Recipe:
        return replace(
            recipe,
            measured={
                "flips": self._flips(recipe),
                "positions": self._positions,
                "budget": self._params.budget,
                "bytes": self._trials.bytes_of(recipe),
                "on": Path(self._params.on).name,
            },
        )

    def _points(self, chosen: Recipe) -> list[Measured]:
        trials, native = self._trials, RUNTIMES["native"]
        self._params.on_phase("timing recipes")
        plain = {
            quantize: trials.plain(native.choose_precision(PrecisionRequest(quantize=quantize)))
            for quantize in _UNIFORM
        }
        recipes = {"fp32": self._start}
        if chosen != self._start:
            recipes[CHOSEN] = chosen
        recipes |= {
            f"recipe {number}": recipe
            for number, recipe in enumerate(self._frontier(), 1)
            if recipe not in (chosen, self._start)
        }
        runtimes = [trials.runtime(recipe) for recipe in recipes.values()]
        times = self._time([*(runtime for runtime, _ in plain.values()), *runtimes])
        points = [
            Measured(
                name=name,
                recipe=None,
                flips=trials.difference(runtime).share,
                size=size,
                token=token,
            )
            for (name, (runtime, size)), token in zip(plain.items(), times, strict=False)
        ]
        points += [
            Measured(
                name=name,
                recipe=recipe,
                flips=self._flips(recipe),
                size=trials.bytes_of(recipe),
                token=token,
            )
            for (name, recipe), token in zip(recipes.items(), times[len(plain) :], strict=True)
        ]
        return sorted(points, key=lambda point: -point.size)

    def _frontier(self) -> list[Recipe]:
        """Recipes than which no smaller one has fewer flips, the largest first."""
        sizes, tried = self._trials.bytes_of, list(self._known.items())
        fewest, kept = float("inf"), list[Recipe]()
        for recipe, _ in sorted(tried, key=lambda each: (each[1], sizes(each[0]))):
            if sizes(recipe) < fewest:
                fewest = sizes(recipe)
                kept.append(recipe)
        return kept


_WIDTH, _HEIGHT = 760, 460
_LEFT, _TOP, _RIGHT, _BOTTOM = 70, 60, 40, 60
_TICKS = 5
# Okabe and Ito's palette, as in kvcast.inspect.masks.
_TRIED, _CHOSEN, _PLAIN, _BUDGET = "#0072b2", "#d55e00", "#009e73", "#999999"
_STYLE = (
    "text{font-family:sans-serif;font-size:11px;fill:#333}.h{font-size:12px;font-weight:bold}"
    ".x{text-anchor:middle}.y{text-anchor:end}"
)


def table(found: Found) -> Iterator[str]:
    """Yield lines with flips, size and milliseconds a token of each point, the largest first."""
    cells = [
        [
            f"{point.flips:.2%}",
            f"{point.size / 1e6:,.1f}",
            f"{1e3 * point.token.median:.2f}",
            f"({1e3 * point.token.least:.2f} to {1e3 * point.token.most:.2f})",
        ]
        for point in found.points
    ]
    columns = ["flips", "MB", "ms a token", "(least to most)"]
    yield from grid([point.name for point in found.points], columns, cells)


def draw(title: str, found: Found, budget: float) -> str:
    """SVG of each point's megabytes to the right, its flips in percent upwards."""
    width = _tick(max(point.size for point in found.points) / 1e6) * _TICKS
    height = _tick(100 * max(budget, *(point.flips for point in found.points))) * _TICKS

    def x(point: Measured) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * point.size / 1e6 / width

    def y(percent: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * percent / height

    frontier = [point for point in found.points if point.recipe is not None]
    line = " ".join(f"{x(point):.1f},{y(100 * point.flips):.1f}" for point in frontier)
    level = y(100 * budget)
    body = [
        f'<text class="h" x="{_LEFT}" y="24">{escape(title)}</text>',
        *_axes(width, height),
        f'<line x1="{_LEFT}" y1="{level:.1f}" x2="{_WIDTH - _RIGHT}" y2="{level:.1f}" '
        f'stroke="{_BUDGET}" stroke-dasharray="5 4"/>',
        f'<text class="y" x="{_WIDTH - _RIGHT}" y="{level - 4:.1f}">budget {budget:.2%}</text>',
        f'<polyline points="{line}" fill="none" stroke="{_TRIED}"/>',
        *(_mark(point, x(point), y(100 * point.flips)) for point in found.points),
    ]
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
        f'aria-label="{escape(title)}">\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _tick(most: float) -> float:
    least = max(most, 1e-3) / _TICKS
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= least * 0.999999)


def _axes(width: float, height: float) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for i in range(_TICKS + 1):
        x = _LEFT + (right - _LEFT) * i / _TICKS
        y = bottom - (bottom - _TOP) * i / _TICKS
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#eceff1"/>'
        yield f'<text class="y" x="{_LEFT - 6}" y="{y + 4:.1f}">{height * i / _TICKS:g}</text>'
        yield f'<text class="x" x="{x:.1f}" y="{bottom + 16}">{width * i / _TICKS:g}</text>'
    middle = (_LEFT + right) // 2
    yield f'<text class="x" x="{middle}" y="{bottom + 38}">MB, weights and caches</text>'
    yield f'<text x="{_LEFT - 40}" y="{_TOP - 12}">% of tokens that differ from fp32</text>'


def _mark(point: Measured, x: float, y: float) -> str:
    colour = _PLAIN if point.recipe is None else _CHOSEN if point.name == CHOSEN else _TRIED
    about = f"{point.name}: {point.size / 1e6:,.1f} MB, {point.flips:.2%}"
    named = point.recipe is None or point.name in ("fp32", CHOSEN)
    label = f'<text x="{x + 7:.1f}" y="{y - 6:.1f}">{escape(point.name)}</text>' if named else ""
    radius = 4 if named else 3
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}">'
        f"<title>{escape(about)}</title></circle>{label}"
    )


def summary(found: Found) -> Sequence[str]:
    recipe = found.recipe
    counts = {
        precision: sum(1 for each in recipe.matrices.values() if each == precision)
        for precision in ("fp32", "int8", "int4")
    }
    told = ", ".join(f"{count} {precision}" for precision, count in counts.items() if count)
    return (
        f"matrices: {told}; self caches {recipe.self_cache}, cross caches {recipe.cross_cache}",
        f"{found.positions} tokens compared",
    )
