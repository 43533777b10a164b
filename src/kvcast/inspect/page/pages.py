"""An HTML page about a schedule: the cache and the costs of each call, by kind of layer."""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from kvcast.checkpoints.source import locate
from kvcast.errors import UsageError
from kvcast.families.table import family_with
from kvcast.inspect.cost import CostQuery
from kvcast.inspect.masks import HIDDEN, SEEN, Mask, masks
from kvcast.inspect.page.costs import (
    ASSUMED_BYTES,
    CostLine,
    LayerKind,
    Prompts,
    cost_lines,
    model_kinds,
    other_caches,
    plain_kinds,
)
from kvcast.inspect.schedule import Schedule, Texts, check_texts, row_name, token_label
from kvcast.inspect.units import plural, prefixed
from kvcast.inspect.work import ModelWork
from kvcast.loading.components import dimensions_of
from kvcast.spec.ring import positions_held


def page(
    schedule: Schedule, window: int | None, capacity: int | None, texts: Texts, model: str | None
) -> str:
    """Return the page of a schedule.

    Args:
        schedule: its prompts, chunks and steps.
        window: of rings; None: those of the model, or no ring.
        capacity: slots of rings; None: the fewest possible.
        texts: words of each row's tokens; may be empty.
        model: as `kvcast inspect cost` takes it; None: one layer of each kind, without a model.

    Raises:
        UsageError: sizes, texts or the model do not fit.
        KvcastError: the model cannot be read.

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


MOST = 200
"""Positions of all rows together: a mask of more would not be legible."""


def story(
    kinds: Sequence[LayerKind], texts: Texts, costs: Sequence[CostLine], notes: Sequence[str]
) -> dict[str, Any]:
    """Return what a page shows.

    Args:
        kinds: of layers, whose schedules have the same calls.
        texts: words of each row's tokens; may be empty.
        costs: of these calls.
        notes: lines about omitted parts.

    Raises:
        UsageError: texts do not fit, or there are too many positions.

    """
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
        return f"{prefixed(number)}{line.unit}".strip()

    each = zip(line.cached, line.recomputed, line.so_far, strict=True)
    return {
        "name": line.name,
        "calls": [[*map(shown, (*call, *so_far))] for *call, so_far in each],
    }


_SPELLED = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


def html(story: Mapping[str, Any]) -> str:
    """Return the page of a story, whose `title` is its title."""
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
    """Return how a policy names a text that is within the page (CSP 3)."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
