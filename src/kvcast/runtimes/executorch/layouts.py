"""Lowers a model's programs to methods of an ExecuTorch file.

Knows the programs' signatures and the manifest's vocabulary, but no family and no checkpoints.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import Graph
from kvcast.families.base import Family
from kvcast.families.caches import CacheLayers
from kvcast.runtimes.executorch.lowering import MethodLayout, export_method, facts_of, save_methods
from kvcast.runtimes.executorch.quantize import cross_dtype, for_many_tokens
from kvcast.runtimes.lowering.signatures import Signature
from kvcast.runtimes.memory import recurrent_layers
from kvcast.spec.runtimes import OnPhase

# Most new positions of one call. With a bias attention is products over the whole capacity.
_CHUNK, _BIASED_CHUNK = 128, 16
# Memory is planned for the longest source, whose bias has an entry for each pair of positions.
_LONGEST_BIASED_SOURCE = 512


def lower(
    family: Family,
    signatures: Mapping[str, Signature],
    dimensions: Any,
    quantize: str,
    folder: Path,
    special_tokens: Mapping[str, Sequence[int]],
    on_phase: OnPhase,
) -> tuple[dict[str, Graph], tuple[CacheLayers, ...]]:
    """Write `executorch/model.pte` with a method for each program under an existing folder.

    Args:
        family: the programs'.
        signatures: the programs, in fp32, by the names that the runtime looks up.
        dimensions: the model's.
        quantize: "none", "8da8w" or "8da4w", which leaves encoders and cross projections in int8.
        folder: an existing folder.
        special_tokens: by role, for callers that read only this file.
        on_phase: called as each program is exported, and when all are compiled.

    Returns:
        The manifest's entries for the methods, and the layout of their caches.

    Raises:
        KvcastError: attention has a soft cap, or the model has a mixture of experts.

    """
    layers = tuple(_limited(layer, family) for layer in family.caches(dimensions))
    layout = _layout(family, dimensions, layers)
    methods = {}
    for name, signature in signatures.items():
        on_phase(f"exporting {name}")
        scheme = for_many_tokens(quantize) if name == "encode" else quantize
        methods[name] = export_method(signature, layout, scheme, cross_dtype(quantize))
    on_phase("compiling")
    facts = facts_of(dimensions.vocab_size, layout.self_layers, layout.chunk, special_tokens)
    return save_methods(methods, signatures, {**facts, **layout.facts}, folder), layers


def _limited(layer: CacheLayers, family: Family) -> CacheLayers:
    if layer.kind == "cross" and family.biased:
        return replace(layer, capacity=min(layer.capacity, _LONGEST_BIASED_SOURCE))
    return layer


def _layout(family: Family, dimensions: Any, layers: Sequence[CacheLayers]) -> MethodLayout:
    longest = family.positions(dimensions)
    # All positions of a prefix see each other, so it takes one call.
    most = longest if family.interface == "prefix" else _BIASED_CHUNK if family.biased else _CHUNK
    chunk = min(most, longest)
    facts = dict(family.facts(dimensions))
    if "source" in family.programs(dimensions)["decode"].sizes:
        facts["longest_source"] = max(layer.capacity for layer in layers if layer.kind == "cross")
    return MethodLayout(
        chunk=chunk,
        self_layers=[_with_chunk(layer, chunk) for layer in layers if layer.kind != "cross"],
        longest_source=facts.get("longest_source", 0),
        facts=facts,
    )


def _with_chunk(layer: CacheLayers, chunk: int) -> CacheLayers:
    # A chunk is written before it is read, so a ring has room for both (`kvcast.spec.ring`).
    if layer.kind == "ring":
        return replace(layer, capacity=layer.capacity + chunk - 1)
    if parts := recurrent_layers(layer, None):
        return replace(layer, capacity=parts[0].shape[1])
    return layer
