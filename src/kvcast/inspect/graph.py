"""A model's operators and memory traffic by layer, as JSON, as tables and as a picture.

docs/inspect.md documents every field.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from html import escape
from itertools import groupby
from typing import Any

from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.bundle.packages import bundle_of, read_on_trust, unvouched_package
from kvcast.checkpoints.source import open_checkpoint
from kvcast.inspect.units import plural, size, table
from kvcast.loading.components import require_cache
from kvcast.loading.opening import check_request, checked_dimensions, export_once, locate_model
from kvcast.loading.params import LoadParams
from kvcast.runtimes.copies import traffic_of, traffic_of_checkpoint
from kvcast.runtimes.target import default_runtime
from kvcast.runtimes.traffic import CallSizes, LayerTraffic, ModelTraffic, ProgramTraffic
from kvcast.spec.runtimes import RUNTIMES

__all__ = ["CallSizes", "document", "draw", "read_traffic", "render"]

FORMAT, VERSION = "kvcast.inspect.graph", 1
_MOST_OPERATORS = 5
_COLUMNS = ("layer", "weights", "cache read", "written", "caches", "operators")
_NUMBERS = range(1, 4)


def read_traffic(model: str, params: LoadParams, sizes: CallSizes) -> ModelTraffic:
    """Count a bundle's, a package's or a checkpoint's memory traffic, without running anything.

    A checkpoint is opened directly where the runtime supports it, else exported once as by `load`.
    """
    place = locate_model(model, params.on_phase)
    folder, package = bundle_of(place), unvouched_package(place, params.runtime)
    if package is not None:
        folder, manifest = package.parents[1], read_on_trust(package)
    elif is_bundle(folder):
        manifest = read_bundle(folder)
    else:
        runtime = params.runtime or default_runtime(params.precision, params.on_phase)
        precision = RUNTIMES[runtime].choose_opening(params.precision)
        if RUNTIMES[runtime].direct and not precision.calibrated:
            checkpoint = open_checkpoint(folder)
            require_cache(model, checkpoint.family)
            return traffic_of_checkpoint(checkpoint, runtime, precision, sizes)
        folder, manifest = export_once(folder, model, params, None)
    check_request(folder, manifest, params.runtime, params.precision)
    checked_dimensions(folder, manifest)
    return traffic_of(folder, manifest, sizes)


def document(name: str, model: ModelTraffic) -> dict[str, Any]:
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
    """Yield a row for each layer; equal adjacent layers share one."""
    for _, alike in groupby(program.layers, key=_row_key):
        layers = list(alike)
        first = layers[0]
        yield (
            _span(layers),
            size(first.weights),
            size(first.read),
            size(first.written),
            ", ".join(dict.fromkeys(f"{cache.kind} {cache.how}" for cache in first.caches)),
            _join(first.operators),
        )
    yield (
        "all",
        size(program.weights),
        size(sum(layer.read for layer in program.layers)),
        size(sum(layer.written for layer in program.layers)),
        "",
        "",
    )


def _row_key(layer: LayerTraffic) -> Any:
    """Return the properties by which layers share a row: all but their indices."""
    caches = tuple(replace(cache, name="") for cache in layer.caches)
    stack = layer.name.rpartition(" ")[0]
    return stack, dict(layer.operators), layer.weights, caches


def _span(layers: Sequence[LayerTraffic]) -> str:
    if len(layers) == 1:
        return layers[0].name
    stack, _, first = layers[0].name.rpartition(" ")
    return f"{stack}s {first} to {layers[-1].name.rpartition(' ')[2]}"


def _join(operators: Mapping[str, int]) -> str:
    shown = [f"{name} {count}" for name, count in [*operators.items()][:_MOST_OPERATORS]]
    more = len(operators) - len(shown)
    return ", ".join([*shown, *([f"{plural(more, 'other')}"] if more else [])])


def _verdict(model: ModelTraffic) -> str:
    if not model.copies:
        return "No cache is copied."
    each = ", ".join(f"{cache.name} ({', '.join(cache.by)})" for cache in model.copies)
    copied = size(sum(cache.copied for cache in model.copies))
    return f"Copied whole, {copied} a call: {each}"


BAR = 560
"""The width of the largest layer's bar."""

_GUTTER, _LINE, _HEADING, _MARGIN = 150, 20, 44, 20
_WIDTH = _GUTTER + BAR + 130
# Okabe and Ito's palette, which colour-blind people can distinguish.
_COLOURS = {
    "weights": "#0072b2",
    "cache read": "#e69f00",
    "cache written": "#009e73",
    "cache copied": "#d55e00",
}


def draw(title: str, model: ModelTraffic) -> str:
    """SVG: of each layer weights, then caches read, written and copied."""
    body, y = [*_legend(_MARGIN + 34)], _MARGIN + 60
    for program in model.programs:
        body += _program(program, y)
        y += _HEADING + _LINE * len(program.layers)
    name = escape(f"{title} on {model.runtime}: bytes that a call reads and writes")
    box = f'width="{_WIDTH}" height="{y}" viewBox="0 0 {_WIDTH} {y}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{name}">\n'
        f"<title>{name}</title>\n"
        "<style>text{font-family:sans-serif;font-size:12px;fill:#333}.h{font-weight:bold}</style>\n"
        f'<rect width="{_WIDTH}" height="{y}" fill="#ffffff"/>\n'
        f'<text class="h" x="{_MARGIN}" y="{_MARGIN + 8}">{name}</text>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def parts_of(layer: LayerTraffic) -> dict[str, int]:
    """Bytes of a layer's bar, by the legend; a copy is read and written."""
    copied = sum(cache.copied for cache in layer.caches)
    return {
        "weights": layer.weights,
        "cache read": layer.read - copied,
        "cache written": layer.written - copied,
        "cache copied": 2 * copied,
    }


def _legend(y: int) -> Iterator[str]:
    for i, (name, colour) in enumerate(_COLOURS.items()):
        x = _MARGIN + 140 * i
        yield f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 17}" y="{y}">{name}</text>'


def _program(program: ProgramTraffic, y: int) -> Iterator[str]:
    most = max((sum(parts_of(layer).values()) for layer in program.layers), default=0)
    yield f'<text class="h" x="{_MARGIN}" y="{y + 16}">{escape(program.name)}</text>'
    for i, layer in enumerate(program.layers):
        yield from _bar(layer, y + 26 + i * _LINE, most)


def _bar(layer: LayerTraffic, y: int, most: int) -> Sequence[str]:
    parts, x = parts_of(layer), float(_GUTTER)
    drawn = [f'<text x="{_MARGIN}" y="{y + 12}">{escape(layer.name)}</text>']
    for name, count in parts.items():
        width = BAR * count / most if most else 0
        if count:
            drawn.append(
                f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_LINE - 4}" '
                f'fill="{_COLOURS[name]}"><title>{name}: {count} B</title></rect>'
            )
        x += width
    drawn.append(f'<text x="{x + 6:.2f}" y="{y + 12}">{size(sum(parts.values()))}</text>')
    return drawn
