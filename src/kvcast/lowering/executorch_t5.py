"""Lowers T5's programs to methods of an ExecuTorch file in a bundle's folder.

Knows the programs' signatures and the manifest's vocabulary, but no checkpoints.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch.export import Dim

from kvcast.bundle.manifest import CacheLayers, Graph
from kvcast.lowering import signatures
from kvcast.lowering.executorch import (
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
from kvcast.lowering.onnx_t5 import cache_layers
from kvcast.programs.t5 import T5Programs
from kvcast.spec.t5 import T5Dimensions

# Memory is planned for the longest source, whose bias has an entry for each pair of positions.
_LONGEST_SOURCE = 512
_CHUNK = 16


def bounded_layers(dimensions: T5Dimensions) -> tuple[CacheLayers, ...]:
    """Describe the caches for the manifest: cross caches for sources of up to 512 tokens."""
    own, cross = cache_layers(dimensions)
    return own, replace(cross, capacity=min(cross.capacity, _LONGEST_SOURCE))


def lower(
    programs: T5Programs,
    layers: Sequence[CacheLayers],
    quantize: str,
    folder: Path,
    special_tokens: Mapping[str, Sequence[int]],
) -> dict[str, Graph]:
    """Write `executorch/model.pte` with methods `encode` and `decode` under an existing folder.

    Args:
        programs: fp32 programs.
        layers: `bounded_layers`.
        quantize: "none", "8da8w" or "8da4w", which leaves the encoder and the cross projections
            in int8.
        folder: an existing folder.
        special_tokens: by role, for callers that read only this file.

    Returns:
        The manifest's entries for the methods.

    """
    own, cross = layers
    dtype = cross_dtype(quantize)
    dimensions = programs.dimensions
    signature = signatures.t5(programs)
    source = Dim("source", max=cross.capacity)
    lengths = (torch.ones(1, dtype=torch.int32), None)
    chunk = min(_CHUNK, own.capacity)
    encoded = [(torch.zeros(1, 5, dtype=torch.int64), {1: source}), lengths]
    decoded = [
        *new_positions(chunk),
        caches([own], Dim("capacity", max=own.capacity)),
        cross_caches(cross, source, dtype),
        lengths,
    ]
    methods = {
        "encode": export_method(
            signature["encode"], encoded, as_cross_caches(dtype), for_many_tokens(quantize)
        ),
        "decode": export_method(signature["decode"], decoded, without_caches, quantize),
    }
    facts = facts_of(dimensions.vocab_size, [own], chunk, special_tokens)
    facts |= {"longest_source": cross.capacity, "start_tokens": [dimensions.start_token]}
    return save_methods(methods, signature, facts, folder)
