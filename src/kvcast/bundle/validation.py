"""Checks that a manifest is consistent: dimensions, caches, programs and the files' sizes.

A manifest may be wrong although all checksums match. So its fields are compared with each other
before memory is allocated or a file is opened because of them. Knows no weights and no runtime.
"""

from collections.abc import Iterable
from math import prod
from typing import Any

from kvcast.bundle.manifest import MANIFEST, Manifest
from kvcast.errors import KvcastError
from kvcast.families.caches import CacheLayers
from kvcast.families.table import family_of


def check_manifest(manifest: Manifest, dimensions: Any) -> None:
    """Raise KvcastError where a manifest contradicts itself.

    Args:
        manifest: parsed; its files have the sizes that it states.
        dimensions: the manifest's, as the model's family reads them.

    """
    family = family_of(manifest.family)
    expected = _each(family.caches(dimensions))
    layers = _each(manifest.cache)
    for layer, wanted in zip(layers, expected, strict=False):
        if not _fits(layer, wanted):
            raise _contradiction(
                f"a cache is {_shown(layer)} and the dimensions say {_shown(wanted)}"
            )
    if len(layers) != len(expected):
        raise _contradiction(f"it has {len(layers)} layers of caches and not {len(expected)}")
    for program in family.programs(dimensions):
        manifest.graph(program)
    # Each weight takes at least 4 bits.
    least = sum(map(prod, family.tensor_shapes(dimensions).values())) // 2
    held = sum(record.size for record in manifest.files.values())
    if held < least:
        raise _contradiction(
            f"a model of its dimensions takes {least} bytes or more, and its files have {held}"
        )


def _contradiction(label: str) -> KvcastError:
    return KvcastError(f"{MANIFEST} contradicts itself: {label}; export it again")


def _each(runs: Iterable[CacheLayers]) -> list[CacheLayers]:
    return [run for run in runs for _ in range(run.layers)]


def _fits(layer: CacheLayers, wanted: CacheLayers) -> bool:
    # A target chooses the dtype, and may allow only shorter sources than the model does.
    is_shorter = layer.kind == "cross" and layer.capacity < wanted.capacity
    same = (layer.kind, layer.length, layer.sizes) == (wanted.kind, wanted.length, wanted.sizes)
    return same and (layer.capacity == wanted.capacity or is_shorter)


def _shown(layer: CacheLayers) -> str:
    return f"{layer.kind}, {layer.heads} heads of {layer.head_dim}, {layer.capacity} positions"
