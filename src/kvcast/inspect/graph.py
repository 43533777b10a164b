"""What a model's programs do, layer by layer, as a JSON-ready document and as tables.

The reading is `kvcast.loading.opening`'s; nothing is counted here. docs/inspect.md documents every
field. Knows no runtime.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

from kvcast.inspect.grid import table
from kvcast.inspect.units import plural, size
from kvcast.runtimes.traffic import LayerTraffic, ModelTraffic, ProgramTraffic

FORMAT, VERSION = "kvcast.inspect.graph", 1
_MOST_OPERATORS = 5
_COLUMNS = ("layer", "weights", "cache read", "written", "caches", "operators")
_NUMBERS = range(1, 4)


def document(name: str, model: ModelTraffic) -> dict[str, Any]:
    """Return all that was read, as JSON has it."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": name,
        "family": model.family,
        "runtime": model.runtime,
        "precision": {
            "quantize": model.precision.quantize,
            "dtype": model.precision.dtype,
            "cache": model.precision.cache,
        },
        "call": asdict(model.sizes),
        "programs": [
            {
                **asdict(program),
                "total": {
                    "weights": program.weights,
                    "read": sum(layer.read for layer in program.layers),
                    "written": sum(layer.written for layer in program.layers),
                },
            }
            for program in model.programs
        ],
        "copies": [cache.name for cache in model.copies],
    }


def render(name: str, model: ModelTraffic) -> str:
    """Return tables, one for each program."""
    lines = [*_introduction(name, model)]
    for program in model.programs:
        lines += ["", program.name, *table(_COLUMNS, [*_rows(program)], right=_NUMBERS)]
    return "\n".join([*lines, "", _verdict(model)]) + "\n"


def _introduction(name: str, model: ModelTraffic) -> Iterator[str]:
    sizes, precision = model.sizes, model.precision
    yield (
        f"{name}: {model.family} on {model.runtime}, weights {precision.quantize}, caches "
        f"{precision.cache}"
    )
    call = f"a call of {plural(sizes.rows, 'row')}: {plural(sizes.new, 'new token')} each, over "
    yield f"{call}{plural(sizes.length, 'position')}" + (
        f" and an input of {sizes.source:,}" if any(_encoded(model)) else ""
    )


def _encoded(model: ModelTraffic) -> Iterator[bool]:
    return (
        cache.name.startswith("cross_") for program in model.programs for cache in program.caches
    )


def _rows(program: ProgramTraffic) -> Iterator[Sequence[str]]:
    """Yield a row for each layer; neighbours that do the same share one."""
    for _, alike in groupby(program.layers, key=_does):
        layers = list(alike)
        first = layers[0]
        yield (
            _span(layers),
            size(first.weights),
            size(first.read),
            size(first.written),
            ", ".join(dict.fromkeys(f"{cache.kind} {cache.how}" for cache in first.caches)),
            _listed(first.operators),
        )
    yield (
        "all",
        size(program.weights),
        size(sum(layer.read for layer in program.layers)),
        size(sum(layer.written for layer in program.layers)),
        "",
        "",
    )


def _does(layer: LayerTraffic) -> Any:
    """Return what is alike in layers that share a row: all but their numbers."""
    caches = tuple(replace(cache, name="") for cache in layer.caches)
    stack = layer.name.rpartition(" ")[0]
    return stack, dict(layer.operators), layer.weights, caches


def _span(layers: Sequence[LayerTraffic]) -> str:
    if len(layers) == 1:
        return layers[0].name
    stack, _, first = layers[0].name.rpartition(" ")
    return f"{stack}s {first} to {layers[-1].name.rpartition(' ')[2]}"


def _listed(operators: Mapping[str, int]) -> str:
    shown = [f"{name} {count}" for name, count in [*operators.items()][:_MOST_OPERATORS]]
    more = len(operators) - len(shown)
    return ", ".join([*shown, *([f"{plural(more, 'other')}"] if more else [])])


def _verdict(model: ModelTraffic) -> str:
    if not model.copies:
        return "No cache is copied."
    each = ", ".join(f"{cache.name} ({', '.join(cache.by)})" for cache in model.copies)
    copied = size(sum(cache.copied for cache in model.copies))
    return f"Copied whole, {copied} a call: {each}"
