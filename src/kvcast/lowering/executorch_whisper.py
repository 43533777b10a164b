"""Lowers Whisper's programs to methods of an ExecuTorch file in a bundle's folder.

Knows the programs' signatures and the manifest's vocabulary, but no checkpoints.
"""

from collections.abc import Mapping, Sequence
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
from kvcast.programs.whisper import WhisperPrograms

_CHUNK = 128


def lower(
    programs: WhisperPrograms,
    layers: Sequence[CacheLayers],
    quantize: str,
    folder: Path,
    special_tokens: Mapping[str, Sequence[int]],
) -> dict[str, Graph]:
    """Write `executorch/model.pte` with methods `encode` and `decode` under an existing folder.

    Args:
        programs: fp32 programs.
        layers: the self caches and the cross caches.
        quantize: "none", "8da8w" or "8da4w", which leaves the encoder and the cross projections
            in int8.
        folder: an existing folder.
        special_tokens: by role, for callers that read only this file.

    Returns:
        The manifest's entries for the methods.

    """
    own, cross = layers
    dtype = cross_dtype(quantize)
    signature = signatures.whisper(programs)
    features = torch.zeros(1, *signature["encode"].arguments[0].shape[1:])
    chunk = min(_CHUNK, own.capacity)
    capacity = Dim("capacity", max=own.capacity)
    methods = {
        "encode": export_method(
            signature["encode"],
            [(features, None)],
            as_cross_caches(dtype),
            for_many_tokens(quantize),
        ),
        "decode": export_method(
            signature["decode"],
            [*new_positions(chunk), caches([own], capacity), cross_caches(cross, None, dtype)],
            without_caches,
            quantize,
        ),
    }
    facts = facts_of(programs.dimensions.vocab_size, [own], chunk, special_tokens)
    facts |= {"mel_bins": features.shape[1], "mel_frames": features.shape[2]}
    return save_methods(methods, signature, facts, folder)
