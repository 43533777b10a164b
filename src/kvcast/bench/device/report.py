"""The document of `kvcast bench gpu`, as people read it."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from kvcast.bench import tables

_SUMMARIES = {
    "recompute": "cross keys projected at every step",
    "cond": "torch.cond on a flag, one program",
    "programs": "two programs",
    "graphs": "two programs, CUDA graphs",
    "graphs-library": "two programs, CUDA graphs, library products",
}


def render(found: Mapping[str, Any]) -> str:
    """Return all tables and the lines around them."""
    return tables.render(_parts_of(found))


def _parts_of(found: Mapping[str, Any]) -> Iterator[str | Table]:
    device, settings, rates = found["device"], found["settings"], found["rates"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    yield (
        f"{device['name']} (driver {device['driver']}, CUDA {device['cuda']}), {versions}, "
        f"{settings['dtype']}, batch {settings['batch']}"
    )
    yield (
        f"its memory, in this run: copies {rates['copy'] / 1e9:.0f} GB/s (read and written), "
        f"reads {rates['read'] / 1e9:.0f} GB/s"
    )
    yield f"median of {settings['runs']} after a warm-up, in turns; random weights; greedy"
    for model in found["models"]:
        yield _times(model)
        for absent in model["absent"]:
            yield f"{_SUMMARIES[absent['name']]}: {absent['reason']}"


def _times(model: Mapping[str, Any]) -> Table:
    columns = ("tokens/s", "ms a token", "min", "max", "of the limit", "same tokens")
    drawn = tables.table(model["name"], *columns)
    for form in model["forms"]:
        step = form["step_seconds"]
        drawn.add_row(
            _SUMMARIES[form["name"]],
            f"{form['tokens_per_second']:.0f}",
            *(f"{1000 * step[part]:.3f}" for part in ("median", "min", "max")),
            f"{100 * form['fraction']:.0f}%",
            f"{form['agreeing']}/{model['new']}",
        )
    drawn.caption = (
        f"{model['new']} steps after {model['prompt']} tokens; the limit is "
        f"{1000 * model['floor_seconds']:.3f} ms: {model['step_bytes'] / 1e6:.0f} MB a step"
    )
    return drawn
