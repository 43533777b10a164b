"""Lowers each family's programs to methods of an ExecuTorch file: what families differ in.

Knows the programs' signatures and the manifest's vocabulary, but no checkpoints.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import Graph
from kvcast.families.caches import CACHES, CacheLayers
from kvcast.runtimes.executorch.lowering import Layout, export_method, facts_of, save_methods
from kvcast.runtimes.executorch.quantize import cross_dtype, for_many_tokens
from kvcast.runtimes.lowering.signatures import Signature
from kvcast.spec.phases import OnPhase

# Most new positions of one call.
_CHUNK, _T5_CHUNK = 128, 16
# Memory is planned for T5's longest source, whose bias has an entry for each pair of positions.
_LONGEST_SOURCE = 512


def lower(
    family: str,
    signatures: Mapping[str, Signature],
    dimensions: Any,
    quantize: str,
    folder: Path,
    special_tokens: Mapping[str, Sequence[int]],
    on_phase: OnPhase,
) -> tuple[dict[str, Graph], tuple[CacheLayers, ...]]:
    """Write `executorch/model.pte` with a method for each program under an existing folder.

    Args:
        family: the programs' family.
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
    layers = _LIMITS.get(family, tuple)(CACHES[family](dimensions))
    layout = _LAYOUTS[family](dimensions, layers)
    methods = {}
    for name, signature in signatures.items():
        on_phase(f"exporting {name}")
        scheme = for_many_tokens(quantize) if name == "encode" else quantize
        methods[name] = export_method(signature, layout, scheme, cross_dtype(quantize))
    on_phase("compiling")
    facts = facts_of(dimensions.vocab_size, layout.self_layers, layout.chunk, special_tokens)
    return save_methods(methods, signatures, {**facts, **layout.facts}, folder), layers


def _whisper(dimensions: Any, layers: Sequence[CacheLayers]) -> Layout:
    own, _ = layers
    return Layout(
        chunk=min(_CHUNK, own.capacity),
        self_layers=[own],
        facts={
            "mel_bins": dimensions.n_mels,
            "mel_frames": 2 * dimensions.source_positions,
            "alignment_layers": [layer for layer, _ in dimensions.alignment_heads],
            "alignment_heads": [head for _, head in dimensions.alignment_heads],
        },
    )


def _t5(dimensions: Any, layers: Sequence[CacheLayers]) -> Layout:
    own, cross = layers
    return Layout(
        chunk=min(_T5_CHUNK, own.capacity),
        self_layers=[own],
        longest_source=cross.capacity,
        facts={"longest_source": cross.capacity, "start_tokens": [dimensions.start_token]},
    )


def _decoder(dimensions: Any, layers: Sequence[CacheLayers]) -> Layout:
    chunk = min(_CHUNK, dimensions.max_positions)
    # A chunk is written before it is read, so a ring has room for both (`kvcast.spec.ring`).
    with_chunk = [
        replace(layer, capacity=layer.capacity + chunk - 1) if layer.kind == "ring" else layer
        for layer in layers
    ]
    return Layout(chunk=chunk, self_layers=with_chunk)


def _unilm(dimensions: Any, layers: Sequence[CacheLayers]) -> Layout:
    # All positions of a source see each other, so it takes one call.
    return Layout(chunk=dimensions.max_positions, self_layers=layers)


def _short_sources(layers: Sequence[CacheLayers]) -> tuple[CacheLayers, ...]:
    own, cross = layers
    return own, replace(cross, capacity=min(cross.capacity, _LONGEST_SOURCE))


_LIMITS: Mapping[str, Callable[[Sequence[CacheLayers]], tuple[CacheLayers, ...]]] = {
    "t5": _short_sources
}
_LAYOUTS: Mapping[str, Callable[[Any, Sequence[CacheLayers]], Layout]] = {
    "whisper": _whisper,
    "t5": _t5,
    "decoder": _decoder,
    "unilm": _unilm,
}
