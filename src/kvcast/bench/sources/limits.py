"""How near kvcast comes to what the machine could do at most."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvcast.bench.cost import Cost, Rates, best_of, parts_held
from kvcast.bench.sources.floor import Floor
from kvcast.bench.sources.trials import Trial
from kvcast.bench.timed import ENCODE, PREFILL, STEP


@dataclass(frozen=True)
class Limit:
    """What one of kvcast's contenders is held against.

    `floor` counts its work; `measurements` are of the machine's rates while it reads as much.
    """

    floor: Floor
    measurements: Sequence[Mapping[str, float]]

    def held(
        self, breakdowns: Mapping[Trial, Mapping[str, Any]], step_bytes: int
    ) -> dict[str, Any]:
        """Hold breakdowns against the best rates."""
        rates, best = best_of(self.measurements)
        return {
            "rates": rates,
            "step_bytes": step_bytes,
            "targets": [
                {**trial.to_json(), **self._parts(best, trial, breakdown)}
                for trial, breakdown in breakdowns.items()
            ],
        }

    def _parts(self, rates: Rates, trial: Trial, breakdown: Mapping[str, Any]) -> dict[str, Any]:
        inputs, source = trial.rows, trial.source
        costs: dict[str, list[Cost]] = {
            ENCODE: [self.floor.encode(inputs=inputs, source=source)],
            PREFILL: [],
            STEP: [],
        }
        for rows, new, held, _ in breakdown["decodes"]:
            part = STEP if held else PREFILL
            costs[part].append(
                self.floor.decode(rows=rows, new=new, held=held, inputs=inputs, source=source)
            )
        again = self.floor.cross_keys(inputs=inputs, source=source).seconds(rates)
        return {**parts_held(costs, rates, breakdown), "cross_keys_again": again}
