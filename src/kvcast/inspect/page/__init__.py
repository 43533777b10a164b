"""An HTML page about a schedule: the cache and the costs of each call, by kind of layer."""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import accumulate
from typing import Any

from kvcast.checkpoints.source import locate
from kvcast.errors import UsageError
from kvcast.families.programs import CacheLayers
from kvcast.families.table import family_with
from kvcast.inspect.cost import CostQuery
from kvcast.inspect.masks import HIDDEN, SEEN, Mask, masks
from kvcast.inspect.schedule import ModelCall, Schedule, Texts, check_texts, row_name, token_label
from kvcast.inspect.units import plural, with_prefix
from kvcast.inspect.walk import pairs
from kvcast.inspect.work import CacheKind, ModelWork, Work
from kvcast.loading.components import dimensions_of
from kvcast.spec.ring import positions_held

ASSUMED_BYTES = 2.0
"""Bytes of each weight and of each cached number."""


@dataclass(frozen=True, kw_only=True)
class CostLine:
    name: str
    unit: str
    cached: Sequence[float]
    recomputed: Sequence[float]

    @property
    def so_far(self) -> list[tuple[float, float]]:
        return list(zip(accumulate(self.cached), accumulate(self.recomputed), strict=True))


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    name: str
    layers: int
    schedule: Schedule


def cost_lines(kinds: Sequence[LayerKind], model: ModelWork | None) -> list[CostLine]:
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
    """A schedule without a window, the same for all layers."""

    lengths: Sequence[int]
    chunk: int
    new: int

    def over(self, window: int | None, capacity: int | None = None) -> Schedule:
        return Schedule.of(self.lengths, window, self.chunk, self.new, capacity)


def plain_kinds(prompts: Prompts, window: int | None, capacity: int | None) -> list[LayerKind]:
    if window is None:
        return [LayerKind(name="linear", layers=0, schedule=prompts.over(None, capacity))]
    ring = LayerKind(name="ring", layers=0, schedule=prompts.over(window, capacity))
    return [ring, LayerKind(name="linear", layers=0, schedule=prompts.over(None))]


def model_kinds(
    caches: Sequence[CacheLayers], prompts: Prompts, window: int | None, capacity: int | None
) -> list[LayerKind]:
    """Kinds of layers with attention; `window` and `capacity` replace those of rings."""
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
    return [
        f"{kind.kind}: {plural(kind.layers, 'layer')}, {_OTHERS[kind.kind].format(kind.positions)}"
        for kind in caches
        if kind.kind in _OTHERS
    ]


MOST = 200
"""Positions of all rows together: a mask of more would not be legible."""


def story(
    kinds: Sequence[LayerKind], texts: Texts, costs: Sequence[CostLine], notes: Sequence[str]
) -> dict[str, Any]:
    schedule = kinds[0].schedule
    ends = [length + schedule.new for length in schedule.lengths]
    if sum(ends) > MOST:
        raise UsageError(
            f"{sum(ends):,} positions are too many for a page (at most {MOST}): give fewer or "
            "shorter prompts, or fewer new tokens"
        )
    if texts:
        check_texts(schedule, texts)
    return {
        "title": schedule.title(),
        "rows": [
            {
                "name": row_name(row),
                "prompt": schedule.lengths[row],
                "tokens": [token_label(row, position, texts) for position in range(end)],
            }
            for row, end in enumerate(ends)
        ],
        "kinds": [_kind(kind) for kind in kinds],
        "calls": list(_calls(kinds)),
        "costs": [_cost(line) for line in costs],
        "notes": list(notes),
    }


def _kind(kind: LayerKind) -> dict[str, Any]:
    schedule = kind.schedule
    layers = f"{plural(kind.layers, 'layer')}, " if kind.layers else ""
    sees = "no window" if schedule.window is None else f"a window of {schedule.window:,}"
    return {
        "name": kind.name,
        "about": f"{layers}{sees}, {plural(schedule.capacity, 'slot')} a row",
        "slots": schedule.capacity,
    }


def _calls(kinds: Sequence[LayerKind]) -> Iterator[dict[str, Any]]:
    for of_kinds in zip(*(masks(kind.schedule) for kind in kinds), strict=True):
        call = of_kinds[0].call
        ends = [length + new for length, new in zip(call.lengths, call.counts, strict=True)]
        counts = " + ".join(map(str, call.counts))
        yield {
            "name": call.name,
            "heading": f"{call.name}: {counts} token{'s' * (counts != '1')}",
            "starts": list(call.lengths),
            "ends": ends,
            "kinds": [
                {
                    "slots": [positions_held(end, kind.schedule.capacity).tolist() for end in ends],
                    **_mask(mask),
                }
                for kind, mask in zip(kinds, of_kinds, strict=True)
            ],
        }


def _mask(mask: Mask) -> dict[str, Any]:
    return {
        "queries": list(mask.queries),
        "keys": list(mask.keys),
        "seen": ["".join(SEEN if one else HIDDEN for one in line) for line in mask.seen.tolist()],
        "beside": list(mask.beside),
    }


def _cost(line: CostLine) -> dict[str, Any]:
    def shown(number: float) -> str:
        return f"{with_prefix(number)}{line.unit}".strip()

    each = zip(line.cached, line.recomputed, line.so_far, strict=True)
    return {
        "name": line.name,
        "calls": [[*map(shown, (*call, *so_far))] for *call, so_far in each],
    }


_SPELLED = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


def html(story: Mapping[str, Any]) -> str:
    template, style, script = (
        (files("kvcast.inspect.page") / f"page.{kind}").read_text(encoding="utf-8")
        for kind in ("html", "css", "js")
    )
    parts = {
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}",
        "title": escape(story["title"]),
        "style": style,
        "script": script,
        "story": json.dumps(story).translate(_SPELLED),
    }
    before, *others = template.split("{")
    return before + "".join(
        parts[name] + rest for name, rest in (part.split("}", 1) for part in others)
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def page(
    schedule: Schedule, window: int | None, capacity: int | None, texts: Texts, model: str | None
) -> str:
    """`window` and `capacity` are of rings; None: the model's, the fewest slots possible.

    `model`: as in `kvcast inspect cost`; None: one layer of each kind. UsageError for a misfit.
    """
    again = "Without a cache, each call computes all positions of its rows again."
    prompts = Prompts(lengths=schedule.lengths, chunk=schedule.chunk, new=schedule.new)
    if model is None:
        kinds = plain_kinds(prompts, window, capacity)
        return html(story(kinds, texts, cost_lines(kinds, None), [again]))
    dimensions = dimensions_of(locate(model))
    work, family = ModelWork(dimensions=dimensions), family_with(dimensions)
    CostQuery(prompt=max(schedule.lengths), new=schedule.new + 1).check(work)
    if family.interface == "prefix":
        raise UsageError(
            f"{model} reads a source in one call, and a page shows prompts in chunks: draw it with "
            "kvcast inspect masks --unilm"
        )
    kinds = model_kinds(family.caches(dimensions), prompts, window, capacity)
    if not kinds:
        raise UsageError(f"{model} has no layer with attention over its text")
    notes = [
        again,
        f"Operations and bytes are {model}'s, in all layers, with its own windows: "
        f"{ASSUMED_BYTES:g} bytes a weight and a cached number.",
        *other_caches(work.cache(max(schedule.lengths) + schedule.new)),
    ]
    return html(story(kinds, texts, cost_lines(kinds, work), notes))
