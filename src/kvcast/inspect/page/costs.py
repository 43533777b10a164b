"""Costs of each call of a schedule by kind of layer, with a cache and without.

Without a cache a call computes all positions of its rows so far. Counts positions, and the pairs
of a query and a key that it sees; with a model also its operations and the bytes that it reads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from kvcast.families.programs import CacheLayers
from kvcast.inspect.schedule import ModelCall, Schedule
from kvcast.inspect.units import plural
from kvcast.inspect.walk import pairs
from kvcast.inspect.work import CacheKind, ModelWork, Work

ASSUMED_BYTES = 2.0
"""Bytes of each weight and of each cached number."""


@dataclass(frozen=True, kw_only=True)
class CostLine:
    """One measure of all calls.

    Attributes:
        unit: unit after an SI prefix; empty for plain counts.

    """

    name: str
    unit: str
    cached: Sequence[float]
    recomputed: Sequence[float]

    @property
    def so_far(self) -> list[tuple[float, float]]:
        """With and without a cache, of all calls up to each."""
        return list(zip(accumulate(self.cached), accumulate(self.recomputed), strict=True))


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """Layers whose caches are alike.

    Attributes:
        layers: how many a model has; 0 without a model.

    """

    name: str
    layers: int
    schedule: Schedule


def cost_lines(kinds: Sequence[LayerKind], model: ModelWork | None) -> list[CostLine]:
    """Return what is counted of the calls of all kinds' schedules, which have the same calls."""
    calls = list(kinds[0].schedule.calls())
    lines = [
        CostLine(
            name="positions computed",
            unit="",
            cached=[sum(call.counts) for call in calls],
            recomputed=[sum(end for _, end in _spans(call)) for call in calls],
        ),
        *(_pairs(kind, calls) for kind in kinds),
    ]
    if model is None:
        return lines
    works = list(_works(model, calls))
    return [
        *lines,
        CostLine(
            name="operations",
            unit="FLOP",
            cached=[cached.operations for cached, _ in works],
            recomputed=[recomputed.operations for _, recomputed in works],
        ),
        CostLine(
            name="weights and cache read",
            unit="B",
            cached=[_read(cached) for cached, _ in works],
            recomputed=[_read(recomputed) for _, recomputed in works],
        ),
    ]


def _spans(call: ModelCall) -> list[tuple[int, int]]:
    """Return the first new position, and the end, of each row that takes part."""
    rows = zip(call.lengths, call.counts, strict=True)
    return [(length, length + new) for length, new in rows if new]


def _pairs(kind: LayerKind, calls: Sequence[ModelCall]) -> CostLine:
    window = kind.schedule.window
    spans = [_spans(call) for call in calls]
    return CostLine(
        name=f"pairs of a query and a key in a {kind.name} layer",
        unit="",
        cached=[sum(pairs(end, window) - pairs(start, window) for start, end in s) for s in spans],
        recomputed=[sum(pairs(end, window) for _, end in s) for s in spans],
    )


def _works(model: ModelWork, calls: Sequence[ModelCall]) -> Iterator[tuple[Work, Work]]:
    """Yield the work of each call; weights are read once for all of its rows."""
    for i, call in enumerate(calls):
        spans = _spans(call)
        encoded = _together([model.encode()] * len(spans)) if i == 0 else Work()
        projected = _together([model.project()] * len(spans)) if i == 0 else Work()
        rows = _together([model.call(start, end - start) for start, end in spans])
        weights = model.call(0, sum(call.counts)).weights
        whole = _together([model.recompute(end, 0) for _, end in spans])
        read = model.recompute(sum(end for _, end in spans), 0).weights
        yield (
            encoded + projected + replace(rows, weights=weights),
            (encoded + replace(whole, weights=read)),
        )


def _together(rows: Sequence[Work]) -> Work:
    """Return the work of rows that share the weights that are read."""
    return replace(sum(rows, Work()), weights=max((work.weights for work in rows), default=0))


def _read(work: Work) -> float:
    return ASSUMED_BYTES * (work.weights + work.cached)


DRAWN = ("linear", "ring")
_OTHERS = {
    "cross": "{:,} positions of the source, written once",
    "inputs": "the last {:,} inputs of a convolution",
    "state": "a state that every position rewrites",
}


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """A schedule without a window: what is the same for all layers."""

    lengths: Sequence[int]
    chunk: int
    new: int

    def over(self, window: int | None, capacity: int | None = None) -> Schedule:
        """Return the schedule of layers with a window; raises UsageError as `Schedule.of`."""
        return Schedule.of(self.lengths, window, self.chunk, self.new, capacity)


def plain_kinds(prompts: Prompts, window: int | None, capacity: int | None) -> list[LayerKind]:
    """Return a ring, if there is a window, and a linear cache; `capacity` is the first one's."""
    if window is None:
        return [LayerKind(name="linear", layers=0, schedule=prompts.over(None, capacity))]
    ring = LayerKind(name="ring", layers=0, schedule=prompts.over(window, capacity))
    return [ring, LayerKind(name="linear", layers=0, schedule=prompts.over(None))]


def model_kinds(
    caches: Sequence[CacheLayers], prompts: Prompts, window: int | None, capacity: int | None
) -> list[LayerKind]:
    """Return the kinds of a model's layers with attention over the text.

    Args:
        caches: the layout of its caches.
        prompts: the schedule.
        window: drawn in place of that of its rings; None: their own.
        capacity: slots of its rings; None: the fewest possible.

    """
    layers: dict[tuple[str, Schedule], int] = {}
    for run in caches:
        if run.kind in DRAWN:
            sizes = (window or run.capacity, capacity) if run.kind == "ring" else (None,)
            kind = (run.kind, prompts.over(*sizes))
            layers[kind] = layers.get(kind, 0) + run.layers
    return [
        LayerKind(name=name, layers=count, schedule=schedule)
        for (name, schedule), count in layers.items()
    ]


def other_caches(caches: Sequence[CacheKind]) -> list[str]:
    """Return a line for each kind of cache without positions of the text."""
    return [
        f"{kind.kind}: {plural(kind.layers, 'layer')}, {_OTHERS[kind.kind].format(kind.positions)}"
        for kind in caches
        if kind.kind in _OTHERS
    ]
