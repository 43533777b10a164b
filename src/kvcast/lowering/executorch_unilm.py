"""A UniLM's programs to the methods of an ExecuTorch file in a bundle's folder.

Knows the programs' signatures; nothing of checkpoints, and of bundles only the manifest's
vocabulary.
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
    """Write `executorch/model.pte` with `decode` and, of a pooled model, `pool`.

    Args:
        programs: fp32 programs.
        layers: one entry a layer, in order.
        quantize: "none", "8da8w" or "8da4w".
        folder: an existing folder.
        special_tokens: by name, for a caller that reads nothing but the file.

    Returns:
        What the manifest says of the methods.

    """
    # A source's positions all see each other, so all of it comes in one call.
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
