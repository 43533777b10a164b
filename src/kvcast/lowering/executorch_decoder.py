"""Lowers a decoder-only program to a method of an ExecuTorch file in a bundle's folder.

Knows the program's signature and the manifest's vocabulary, but no checkpoints.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch.export import Dim

from kvcast.bundle.manifest import CacheLayers, Graph
from kvcast.lowering import signatures
from kvcast.lowering.executorch import (
    caches,
    export_method,
    facts_of,
    new_positions,
    save_methods,
    without_caches,
)
from kvcast.programs.decoder import DecoderPrograms

_CHUNK = 128


def lower(
    programs: DecoderPrograms,
    layers: Sequence[CacheLayers],
    quantize: str,
    folder: Path,
    special_tokens: Mapping[str, Sequence[int]],
) -> dict[str, Graph]:
    """Write `executorch/model.pte` with a method `decode` under an existing folder.

    Args:
        programs: fp32 programs.
        layers: one entry per layer, in order; a ring's capacity is its window.
        quantize: "none", "8da8w" or "8da4w".
        folder: an existing folder.
        special_tokens: by role, for callers that read only this file.

    Returns:
        The manifest's entry for the method.

    Raises:
        KvcastError: attention has a soft cap, or the model has a mixture of experts.

    """
    longest = programs.dimensions.max_positions
    chunk = min(_CHUNK, longest)
    signature = signatures.decoder(programs, layers)
    # A chunk is written before it is read, so a ring has room for both (`kvcast.spec.ring`).
    with_chunk = [
        replace(layer, capacity=layer.capacity + chunk - 1) if layer.kind == "ring" else layer
        for layer in layers
    ]
    arguments = [*new_positions(chunk), caches(with_chunk, Dim("capacity", max=longest))]
    methods = {"decode": export_method(signature["decode"], arguments, without_caches, quantize)}
    facts = facts_of(programs.dimensions.vocab_size, with_chunk, chunk, special_tokens)
    return save_methods(methods, signature, facts, folder)
