"""Parts of a measurement's JSON object that all benchmarks share."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from kvcast.bench.arena import Seat
from kvcast.bench.turns import Result


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Return median, least and most, and all in order."""
    return {
        "median": median(values),
        "min": min(values),
        "max": max(values),
        "all": list(values),
    }


def surroundings(result: Result) -> dict[str, Any]:
    """Return what others did meanwhile."""
    return {"others": max(result.others), "unsettled": result.unsettled}


def seat_facts(seat: Seat) -> dict[str, Any]:
    """Return what is said of a contender whatever it does."""
    return {
        "name": seat.name,
        "dtype": seat.dtype,
        "settings": seat.settings,
        "versions": dict(seat.versions),
        "import_seconds": seat.imports,
        "load_seconds": seat.load,
    }


def absent_facts(absent: Mapping[str, str]) -> list[dict[str, str]]:
    """Return who did not take part, and why."""
    return [{"name": name, "reason": reason} for name, reason in absent.items()]


def part_shares(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return each part's seconds and share of the whole."""
    return {
        part: {"seconds": seconds, "share": seconds / found["seconds"]}
        for part, seconds in found["parts"].items()
    }
