"""The kinds of layers that a page shows, each with a schedule of its own for its slots.

Without a model they are a ring with a window and a linear cache. Knows no drawing and no cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvcast.families.caches import CacheLayers
from kvcast.inspect.schedule import Schedule
from kvcast.inspect.units import plural
from kvcast.inspect.work import CacheKind

DRAWN = ("linear", "ring")
_OTHERS = {
    "cross": "{:,} positions of the source, written once",
    "inputs": "the last {:,} inputs of a convolution",
    "state": "a state that every position rewrites",
}


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """Layers whose caches are alike.

    Attributes:
        name: "ring" or "linear".
        layers: how many a model has; 0 without a model.
        schedule: with their window and their slots.

    """

    name: str
    layers: int
    schedule: Schedule


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
        capacity: slots of its rings; None: as few as serve.

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
