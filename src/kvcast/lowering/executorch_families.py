"""Lowers each family's programs to methods of an ExecuTorch file: what families differ in.

Knows the programs' signatures and the manifest's vocabulary, but no checkpoints.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

from kvcast.bundle.caches import CACHES
from kvcast.bundle.manifest import CacheLayers, Graph
from kvcast.lowering.executorch import (
    Argument,
    Results,
    as_cross_caches,
    caches,
    cross_caches,
    export_method,
    facts_of,
    new_positions,
    save_methods,
    without_caches,
)
from kvcast.lowering.executorch_quantize import cross_dtype, for_many_tokens
from kvcast.lowering.signatures import SIGNATURES
from kvcast.spec.phases import OnPhase

# Most new positions of one call.
_CHUNK, _T5_CHUNK = 128, 16
# Memory is planned for T5's longest source, whose bias has an entry for each pair of positions.
_LONGEST_SOURCE = 512


@dataclass(frozen=True, kw_only=True)
class _Method:
    """How a program becomes a method: its arguments, what becomes of its results, its scheme."""

    arguments: Sequence[Argument]
    finish: Callable[[Results], Results]
    quantize: str


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Methods of one file: the most new positions of a call, self caches, further facts."""

    methods: Mapping[str, _Method]
    chunk: int
    self_layers: Sequence[CacheLayers]
    facts: Mapping[str, Any] = field(default_factory=dict)


def lower(
    family: str,
    programs: Any,
    quantize: str,
    folder: Path,
    special_tokens: Mapping[str, Sequence[int]],
    on_phase: OnPhase,
) -> tuple[dict[str, Graph], tuple[CacheLayers, ...]]:
    """Write `executorch/model.pte` with a method for each program under an existing folder.

    Args:
        family: the programs' family.
        programs: fp32 programs.
        quantize: "none", "8da8w" or "8da4w", which leaves encoders and cross projections in int8.
        folder: an existing folder.
        special_tokens: by role, for callers that read only this file.
        on_phase: called as each program is exported, and when all are compiled.

    Returns:
        The manifest's entries for the methods, and the layout of their caches.

    Raises:
        KvcastError: attention has a soft cap, or the model has a mixture of experts.

    """
    layers = _LIMITS.get(family, tuple)(CACHES[family](programs.dimensions))
    layout = _LAYOUTS[family](programs.dimensions, layers, quantize)
    signatures = SIGNATURES[family](programs)
    methods = {}
    for name, method in layout.methods.items():
        on_phase(f"exporting {name}")
        methods[name] = export_method(
            signatures[name], method.arguments, method.finish, method.quantize
        )
    on_phase("compiling")
    vocab = programs.dimensions.vocab_size
    facts = facts_of(vocab, layout.self_layers, layout.chunk, special_tokens)
    return save_methods(methods, signatures, {**facts, **layout.facts}, folder), layers


def _whisper(dimensions: Any, layers: Sequence[CacheLayers], quantize: str) -> _Layout:
    own, cross = layers
    chunk = min(_CHUNK, own.capacity)
    capacity = Dim("capacity", max=own.capacity)
    dtype = cross_dtype(quantize)
    mel_bins, mel_frames = dimensions.n_mels, 2 * dimensions.source_positions
    encode = _Method(
        arguments=[(torch.zeros(1, mel_bins, mel_frames), None)],
        finish=as_cross_caches(dtype),
        quantize=for_many_tokens(quantize),
    )
    decode = _Method(
        arguments=[
            *new_positions(chunk),
            caches([own], capacity),
            cross_caches(cross, None, dtype),
        ],
        finish=without_caches,
        quantize=quantize,
    )
    return _Layout(
        methods={"encode": encode, "decode": decode},
        chunk=chunk,
        self_layers=[own],
        facts={"mel_bins": mel_bins, "mel_frames": mel_frames},
    )


def _t5(dimensions: Any, layers: Sequence[CacheLayers], quantize: str) -> _Layout:
    own, cross = layers
    chunk = min(_T5_CHUNK, own.capacity)
    capacity, source = Dim("capacity", max=own.capacity), Dim("source", max=cross.capacity)
    dtype = cross_dtype(quantize)
    lengths = (torch.ones(1, dtype=torch.int32), None)
    encode = _Method(
        arguments=[(torch.zeros(1, 5, dtype=torch.int64), {1: source}), lengths],
        finish=as_cross_caches(dtype),
        quantize=for_many_tokens(quantize),
    )
    decode = _Method(
        arguments=[
            *new_positions(chunk),
            caches([own], capacity),
            cross_caches(cross, source, dtype),
            lengths,
        ],
        finish=without_caches,
        quantize=quantize,
    )
    return _Layout(
        methods={"encode": encode, "decode": decode},
        chunk=chunk,
        self_layers=[own],
        facts={"longest_source": cross.capacity, "start_tokens": [dimensions.start_token]},
    )


def _decoder(dimensions: Any, layers: Sequence[CacheLayers], quantize: str) -> _Layout:
    longest = dimensions.max_positions
    chunk = min(_CHUNK, longest)
    # A chunk is written before it is read, so a ring has room for both (`kvcast.spec.ring`).
    with_chunk = [
        replace(layer, capacity=layer.capacity + chunk - 1) if layer.kind == "ring" else layer
        for layer in layers
    ]
    decode = _Method(
        arguments=[*new_positions(chunk), caches(with_chunk, Dim("capacity", max=longest))],
        finish=without_caches,
        quantize=quantize,
    )
    return _Layout(methods={"decode": decode}, chunk=chunk, self_layers=with_chunk)


def _unilm(dimensions: Any, layers: Sequence[CacheLayers], quantize: str) -> _Layout:
    # All positions of a source see each other, so it takes one call.
    chunk = dimensions.max_positions
    decode = _Method(
        arguments=[*new_positions(chunk), caches(layers, Dim("capacity", max=chunk))],
        finish=without_caches,
        quantize=quantize,
    )
    pool = _Method(
        arguments=[(torch.zeros(1, dimensions.width), None)],
        finish=lambda pooled: pooled,
        quantize=quantize,
    )
    methods = {"decode": decode} | ({"pool": pool} if dimensions.pooled else {})
    return _Layout(methods=methods, chunk=chunk, self_layers=layers)


def _short_sources(layers: Sequence[CacheLayers]) -> tuple[CacheLayers, ...]:
    own, cross = layers
    return own, replace(cross, capacity=min(cross.capacity, _LONGEST_SOURCE))


_LIMITS: Mapping[str, Callable[[Sequence[CacheLayers]], tuple[CacheLayers, ...]]] = {
    "t5": _short_sources
}
_LAYOUTS: Mapping[str, Callable[[Any, Sequence[CacheLayers], str], _Layout]] = {
    "whisper": _whisper,
    "t5": _t5,
    "decoder": _decoder,
    "unilm": _unilm,
}
