"""Checks that a manifest is consistent: dimensions, caches, programs and the files' sizes.

A manifest may be wrong although all checksums match. So its fields are compared with each other
before memory is allocated or a file is opened because of them. Knows no weights and no runtime.
"""

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

from kvcast.bundle.manifest import MANIFEST, CacheLayers, Manifest
from kvcast.errors import KvcastError

_Layer = tuple[str, int, int, int]
"""Kind, heads, head_dim, capacity."""


def check_manifest(manifest: Manifest, dimensions: Any, shapes: Iterable[tuple[int, ...]]) -> None:
    """Raise KvcastError where a manifest contradicts itself.

    Args:
        manifest: parsed; its files have the sizes that it states.
        dimensions: the manifest's, as the model's family reads them.
        shapes: of the tensors of a model with these dimensions.

    """
    expected = _LAYERS[manifest.family](dimensions)
    found = [_layer(run) for run in manifest.cache for _ in range(run.layers)]
    for layer, wanted in zip(found, expected, strict=False):
        if layer[:3] != wanted[:3] or not _capacity_fits(layer, wanted):
            raise _contradiction(
                f"a cache is {_shown(layer)} and the dimensions say {_shown(wanted)}"
            )
    if len(found) != len(expected):
        raise _contradiction(f"it has {len(found)} layers of caches and not {len(expected)}")
    for program in _PROGRAMS[manifest.family](dimensions):
        manifest.graph(program)
    # Each weight takes at least 4 bits.
    least = sum(prod(shape) for shape in shapes) // 2
    held = sum(record.size for record in manifest.files.values())
    if held < least:
        raise _contradiction(
            f"a model of its dimensions takes {least} bytes or more, and its files have {held}"
        )


def _contradiction(what: str) -> KvcastError:
    return KvcastError(f"{MANIFEST} contradicts itself: {what}; export it again")


def _layer(run: CacheLayers) -> _Layer:
    return run.kind, run.heads, run.head_dim, run.capacity


def _capacity_fits(layer: _Layer, wanted: _Layer) -> bool:
    # A target may allow only shorter sources than the model does.
    return layer[3] == wanted[3] or (layer[0] == "cross" and layer[3] < wanted[3])


def _shown(layer: _Layer) -> str:
    kind, heads, head_dim, capacity = layer
    return f"{kind}, {heads} heads of {head_dim}, {capacity} positions"


def _encoder_decoder(dimensions: Any) -> list[_Layer]:
    heads = (dimensions.decoder_heads, dimensions.head_dim)
    own = [("linear", *heads, dimensions.target_positions)] * dimensions.decoder_layers
    return own + [("cross", *heads, dimensions.source_positions)] * dimensions.decoder_layers


def _decoder_only(dimensions: Any) -> list[_Layer]:
    heads = (dimensions.kv_heads, dimensions.head_dim)
    return [
        ("ring", *heads, window) if window else ("linear", *heads, dimensions.max_positions)
        for window in dimensions.windows
    ]


_LAYERS: Mapping[str, Callable[[Any], list[_Layer]]] = {
    "whisper": _encoder_decoder,
    "t5": _encoder_decoder,
    "decoder": _decoder_only,
    "unilm": _decoder_only,
}
_PROGRAMS: Mapping[str, Callable[[Any], tuple[str, ...]]] = {
    "whisper": lambda _: ("encode", "decode"),
    "t5": lambda _: ("encode", "decode"),
    "decoder": lambda _: ("decode",),
    "unilm": lambda dimensions: ("decode", "pool") if dimensions.pooled else ("decode",),
}
