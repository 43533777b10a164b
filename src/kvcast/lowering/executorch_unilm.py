"""Lowers a UniLM's programs to methods of an ExecuTorch file in a bundle's folder.

Knows the programs' signatures and the manifest's vocabulary, but no checkpoints.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
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
from kvcast.programs.unilm import UnilmPrograms


def lower(
    programs: UnilmPrograms,
    layers: Sequence[CacheLayers],
    quantize: str,
    folder: Path,
    special_tokens: Mapping[str, Sequence[int]],
) -> dict[str, Graph]:
    """Write `executorch/model.pte` with `decode` and, if the model has a pooler, `pool`.

    Args:
        programs: fp32 programs.
        layers: one entry per layer, in order.
        quantize: "none", "8da8w" or "8da4w".
        folder: an existing folder.
        special_tokens: by role, for callers that read only this file.

    Returns:
        The manifest's entries for the methods.

    """
    # All positions of a source see each other, so it takes one call.
    chunk = programs.dimensions.max_positions
    signature = signatures.unilm(programs, layers)
    arguments = [*new_positions(chunk), caches(layers, Dim("capacity", max=chunk))]
    methods = {"decode": export_method(signature["decode"], arguments, without_caches, quantize)}
    if "pool" in signature:
        hidden = (torch.zeros(1, programs.dimensions.width), None)
        methods["pool"] = export_method(
            signature["pool"], [hidden], lambda pooled: pooled, quantize
        )
    facts = facts_of(programs.dimensions.vocab_size, layers, chunk, special_tokens)
    return save_methods(methods, signature, facts, folder)
