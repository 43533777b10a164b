"""The least time that a machine with given rates could take for given work.

Knows nothing of models and of clocks: a floor counts operations and bytes, and here they are
divided by measured rates.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Bytes and operations a second."""

    read: float
    int8: float
    fp32: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Operations by arithmetic (a multiplication and an addition are two), and bytes read."""

    int8: float = 0.0
    fp32: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Self) -> Self:
        return type(self)(
            int8=self.int8 + other.int8,
            fp32=self.fp32 + other.fp32,
            bytes=self.bytes + other.bytes,
        )

    def seconds(self, rates: Rates) -> float:
        """Return the least time: reading and multiplying overlap, the two products do not."""
        products = self.int8 / rates.int8 + self.fp32 / rates.fp32
        return max(products, self.bytes / rates.read)


def total(costs: Iterable[Cost], rates: Rates) -> float:
    """Return the least time of pieces of work one after the other."""
    return sum(cost.seconds(rates) for cost in costs)


def best_of(measurements: Sequence[Mapping[str, float]]) -> tuple[dict[str, float], Rates]:
    """Return the best of each measured rate, and what a floor charges: one must not be too high."""
    rates = {name: max(found[name] for found in measurements) for name in measurements[0]}
    read = max(rates["read"], rates["read_again"])
    return rates, Rates(read=read, int8=rates["int8"], fp32=rates["fp32"])


def held_against(costs: Sequence[Cost], rates: Rates, measured: float) -> dict[str, float]:
    """Compare what some calls took with the least that they could; `fraction` is 1 at best."""
    least = total(costs, rates)
    return {
        "floor": least,
        "measured": measured,
        "fraction": least / measured if measured else 0.0,
        "calls": len(costs),
    }


def parts_held(
    costs: Mapping[str, Sequence[Cost]], rates: Rates, breakdown: Mapping[str, Any]
) -> dict[str, Any]:
    """Compare each part of a breakdown that has costs, and the `whole`, with the least."""
    parts = {part: held_against(costs[part], rates, breakdown["parts"][part]) for part in costs}
    everything = [cost for part in costs.values() for cost in part]
    whole = held_against(everything, rates, breakdown["seconds"])
    return {**parts, "whole": {**whole, "calls": 1}}
