"""All that a page shows, as JSON: slots, masks, tokens and costs of each call.

The page places and colours it, and computes nothing. Knows no HTML.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from kvcast.errors import UsageError
from kvcast.inspect import cache
from kvcast.inspect.masks import HIDDEN, SEEN, Mask, masks
from kvcast.inspect.page.costs import CostLine
from kvcast.inspect.page.kinds import LayerKind
from kvcast.inspect.schedule import row_name
from kvcast.inspect.units import plural, prefixed
from kvcast.spec.ring import positions_held

MOST = 200
"""Positions of all rows together: a mask of more would not be legible."""


def story(
    kinds: Sequence[LayerKind], texts: cache.Texts, costs: Sequence[CostLine], notes: Sequence[str]
) -> dict[str, Any]:
    """Return what a page shows.

    Args:
        kinds: of layers, whose schedules have the same calls.
        texts: words of each row's tokens; may be empty.
        costs: of these calls.
        notes: lines about what is not drawn.

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
        cache.check(schedule, texts)
    return {
        "title": schedule.title(),
        "rows": [
            {
                "name": row_name(row),
                "prompt": schedule.lengths[row],
                "tokens": [cache.token(row, position, texts) for position in range(end)],
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
