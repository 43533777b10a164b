"""How near kvcast comes to what the machine could do at most."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvcast.bench.arena import Arena
from kvcast.bench.cost import Cost, Rates, best_of, parts_held
from kvcast.bench.speech.floor import Floor
from kvcast.bench.speech.peers.base import whisper_checkpoint
from kvcast.bench.speech.peers.ours import quantize_of
from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.spec.whisper import WhisperDimensions


def machine_rates(arena: Arena, folder: Path) -> dict[str, float] | None:
    """Measure the machine at the model's sizes; None without `onnx`."""
    floor = _floor(folder)
    sizes = floor.dimensions
    return arena.rates(_step_bytes(floor), sizes.source_positions, sizes.d_model)


def limits(
    folder: Path,
    breakdowns: Mapping[int, Mapping[str, Any]],
    measurements: Sequence[Mapping[str, float] | None],
) -> dict[str, Any] | None:
    """Hold breakdowns by beam against the best of several measurements of the machine's rates."""
    known = [found for found in measurements if found is not None]
    if not known:
        return None
    floor = _floor(folder)
    rates, best = best_of(known)
    return {
        "rates": rates,
        "step_bytes": _step_bytes(floor),
        "beams": {beam: _held(floor, best, breakdown) for beam, breakdown in breakdowns.items()},
    }


def _step_bytes(floor: Floor) -> int:
    """Return what the first greedy step reads."""
    return round(floor.decode(rows=1, new=1, length=1).bytes)


def _held(floor: Floor, rates: Rates, breakdown: Mapping[str, Any]) -> dict[str, Any]:
    costs: dict[str, list[Cost]] = {
        "encode": [floor.encode()] * breakdown["windows"],
        "prefill": [],
        "step": [],
    }
    for rows, new, held, asked in breakdown["decodes"]:
        part = "step" if held else "prefill"
        costs[part].append(floor.decode(rows=rows, new=new, length=held, asked=asked))
    return parts_held(costs, rates, breakdown)


def _floor(folder: Path) -> Floor:
    if is_bundle(folder):
        dimensions = WhisperDimensions.from_json(read_bundle(folder).dimensions)
    else:
        dimensions = whisper_checkpoint(folder).dimensions
    return Floor(dimensions=dimensions, quantize=quantize_of(folder))
