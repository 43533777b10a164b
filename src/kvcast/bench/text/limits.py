"""How near kvcast comes to what the machine could do at most."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from kvcast.bench.cost import Cost, Rates, best_of, held_against, parts_held
from kvcast.bench.text.breakdown import PREFILL, STEP
from kvcast.bench.text.floor import Floor
from kvcast.bench.text.trials import Trial
from kvcast.bench.turns import Result


@dataclass(frozen=True)
class Limit:
    """What one of kvcast's contenders is held against.

    `floor` counts its work; `measurements` are of the machine's rates while it reads as much.
    """

    floor: Floor
    measurements: Sequence[Mapping[str, float]]

    def with_window(self, window: int) -> "Limit":
        """Return the same for a model of these sizes with a window in each layer."""
        sizes = self.floor.dimensions
        windowed = replace(sizes, windows=(window,) * sizes.layers)
        return Limit(replace(self.floor, dimensions=windowed), self.measurements)

    def held(
        self,
        breakdowns: Mapping[Trial, Mapping[str, Any]],
        positions: Mapping[Trial, Result],
    ) -> dict[str, Any]:
        """Hold breakdowns, and steps at positions, against the best rates."""
        rates, best = best_of(self.measurements)
        return {
            "rates": rates,
            "step_bytes": step_bytes(self.floor),
            "texts": [
                {"rows": trial.rows, **self._parts(best, breakdown)}
                for trial, breakdown in breakdowns.items()
            ],
            "positions": [
                {"position": trial.prompt, **self._at(best, trial, result)}
                for trial, result in positions.items()
                if result.stands
            ],
        }

    def _parts(self, rates: Rates, breakdown: Mapping[str, Any]) -> dict[str, Any]:
        costs: dict[str, list[Cost]] = {PREFILL: [], STEP: []}
        for part, rows, new, held in breakdown["decodes"]:
            costs[part].append(self.floor.decode(rows=rows, new=new, held=held))
        return parts_held(costs, rates, breakdown)

    def _at(self, rates: Rates, trial: Trial, result: Result) -> dict[str, float]:
        cost = self.floor.decode(rows=trial.rows, new=1, held=trial.prompt)
        return held_against([cost], rates, median(result.series("median_step")))


def step_bytes(floor: Floor) -> int:
    """Return what the first step of one text reads."""
    return round(floor.decode(rows=1, new=1, held=0).bytes)
