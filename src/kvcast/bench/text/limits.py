"""How near kvcast comes to what the machine could do at most."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from kvcast.bench.arena import Arena
from kvcast.bench.cost import Cost, Rates, best_of, held_against
from kvcast.bench.text.breakdown import PREFILL, STEP
from kvcast.bench.text.floor import Floor
from kvcast.bench.text.peers.base import decoder_checkpoint
from kvcast.bench.text.trials import Trial
from kvcast.bench.turns import Result
from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.errors import KvcastError
from kvcast.spec.decoder import DecoderDimensions


def dimensions_of(folder: Path) -> DecoderDimensions:
    """Return a model's sizes; raises KvcastError if it generates no text."""
    if not is_bundle(folder):
        return decoder_checkpoint(folder).dimensions
    manifest = read_bundle(folder)
    if manifest.family != "decoder":
        raise KvcastError(f"{folder} is no decoder-only model, so it cannot generate")
    return DecoderDimensions.from_json(manifest.dimensions)


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
        parts = {part: held_against(costs[part], rates, breakdown["parts"][part]) for part in costs}
        everything = [cost for part in costs for cost in costs[part]]
        whole = held_against(everything, rates, breakdown["seconds"])
        return {**parts, "whole": {**whole, "calls": 1}}

    def _at(self, rates: Rates, trial: Trial, result: Result) -> dict[str, float]:
        cost = self.floor.decode(rows=trial.rows, new=1, held=trial.prompt)
        return held_against([cost], rates, median(result.series("median_step")))


def machine_rates(arena: Arena, floor: Floor, prompt: int) -> dict[str, float] | None:
    """Measure the machine at the model's sizes; None without `onnx`, which builds the products."""
    if find_spec("onnx") is None:
        return None
    return arena.rates(step_bytes(floor), prompt, floor.dimensions.width)


def step_bytes(floor: Floor) -> int:
    """Return what the first step of one text reads."""
    return round(floor.decode(rows=1, new=1, held=0).bytes)
