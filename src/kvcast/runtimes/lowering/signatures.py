"""Signatures of programs for exporters: example arguments, dynamic shapes, names.

Every size that callers vary is dynamic: rows, new positions, capacities. All targets share this
module; it knows the programs' signatures and no target.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from kvcast.bundle.manifest import ALIGNMENT_QUERIES
from kvcast.families import caches
from kvcast.families.caches import CacheLayers
from kvcast.models.programs.decoder import DecoderPrograms
from kvcast.models.programs.t5 import T5Programs
from kvcast.models.programs.unilm import UnilmPrograms
from kvcast.models.programs.whisper import WhisperPrograms

# Sizes of the examples. Dynamic sizes all differ, so that torch.export takes no two for one.
_ROWS, _BATCH, _SOURCE = 4, 2, 5
_CAPACITIES = {"linear": 9, "ring": 11}


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A program and its signature.

    Attributes:
        program: the module to export, with kvcast's operators.
        arguments: example arguments.
        sizes: dynamic shapes of each argument, as torch.export takes them.
        inputs: names of the flattened arguments.
        outputs: names of the flattened results; `present_...` are the caches after the call.
        kinds: the kinds of its self caches, each once: "linear", "ring".

    """

    program: nn.Module
    arguments: tuple[Any, ...]
    sizes: tuple[Any, ...]
    inputs: Sequence[str]
    outputs: Sequence[str]
    kinds: Sequence[str] = ()


def cache_names(prefix: str, layers: int) -> list[str]:
    """Name every layer's key and value."""
    return [f"{prefix}_{part}_{i}" for i in range(layers) for part in ("key", "value")]


def whisper(programs: WhisperPrograms) -> Mapping[str, Signature]:
    """Return the signatures of `encode` and `decode`."""
    dimensions = programs.dimensions
    layers, heads = dimensions.decoder_layers, (dimensions.decoder_heads, dimensions.head_dim)
    features = torch.zeros(_BATCH, dimensions.n_mels, 2 * dimensions.source_positions)
    cross = _caches(layers, _BATCH, dimensions.source_positions, heads)
    batch = Dim("batch")
    own, own_sizes = _self_caches(["linear"] * layers, *heads)
    encode = Signature(
        program=programs.encode,
        arguments=(features,),
        sizes=({0: batch},),
        inputs=["features"],
        outputs=cache_names("cross", layers),
    )
    decode = Signature(
        program=programs.decode,
        arguments=(*_new_tokens(), own, cross),
        sizes=(*_new_token_sizes(), own_sizes, [({0: batch}, {0: batch})] * layers),
        inputs=[*_NEW_TOKENS, *cache_names("past", layers), *cache_names("cross", layers)],
        outputs=["logits", ALIGNMENT_QUERIES, *cache_names("present", layers)],
        kinds=["linear"],
    )
    return {"encode": encode, "decode": decode}


def t5(programs: T5Programs) -> Mapping[str, Signature]:
    """Return the signatures of `encode` and `decode`."""
    dimensions = programs.dimensions
    layers, heads = dimensions.decoder_layers, (dimensions.heads, dimensions.head_dim)
    batch, source = Dim("batch"), Dim("source")
    source_lengths = torch.tensor([_SOURCE, 3], dtype=torch.int32)
    own, own_sizes = _self_caches(["linear"] * layers, *heads)
    cross_sizes = {0: batch, 2: source}
    encode = Signature(
        program=programs.encode,
        arguments=(torch.zeros(_BATCH, _SOURCE, dtype=torch.int64), source_lengths),
        sizes=({0: batch, 1: source}, {0: batch}),
        inputs=["source", "source_lengths"],
        outputs=cache_names("cross", layers),
    )
    past, cross = cache_names("past", layers), cache_names("cross", layers)
    decode = Signature(
        program=programs.decode,
        arguments=(*_new_tokens(), own, _caches(layers, _BATCH, _SOURCE, heads), source_lengths),
        sizes=(
            *_new_token_sizes(),
            own_sizes,
            [(cross_sizes, cross_sizes)] * layers,
            {0: batch},
        ),
        inputs=[*_NEW_TOKENS, *past, *cross, "source_lengths"],
        outputs=["logits", *cache_names("present", layers)],
        kinds=["linear"],
    )
    return {"encode": encode, "decode": decode}


def decoder(programs: DecoderPrograms) -> Mapping[str, Signature]:
    """Return the signature of `decode`."""
    layers = caches.of_layers(programs.dimensions)
    return {"decode": _decode_alone(programs.decode, layers, ["logits"])}


def unilm(programs: UnilmPrograms) -> Mapping[str, Signature]:
    """Return the signatures of `decode` and, with a pooler, `pool`."""
    layers = caches.of_layers(programs.dimensions)
    decode = _decode_alone(programs.decode, layers, ["logits", "hidden"])
    if not programs.dimensions.pooled:
        return {"decode": decode}
    pool = Signature(
        program=programs.pool,
        arguments=(torch.zeros(3, programs.dimensions.width),),
        sizes=({0: Dim("n")},),
        inputs=["hidden"],
        outputs=["pooled"],
    )
    return {"decode": decode, "pool": pool}


def _decode_alone(
    program: nn.Module, layers: Sequence[CacheLayers], results: Sequence[str]
) -> Signature:
    kinds = [layer.kind for layer in layers]
    own, sizes = _self_caches(kinds, layers[0].heads, layers[0].head_dim)
    return Signature(
        program=program,
        arguments=(*_new_tokens(), own),
        sizes=(*_new_token_sizes(), sizes),
        inputs=[*_NEW_TOKENS, *cache_names("past", len(layers))],
        outputs=[*results, *cache_names("present", len(layers))],
        kinds=sorted(set(kinds)),
    )


# By family.
SIGNATURES: Mapping[str, Callable[[Any], Mapping[str, Signature]]] = {
    "whisper": whisper,
    "t5": t5,
    "decoder": decoder,
    "unilm": unilm,
}

_NEW_TOKENS = ("tokens", "lengths", "offsets")


def _new_tokens() -> tuple[Tensor, Tensor, Tensor]:
    tokens_rs = torch.zeros(_ROWS, 3, dtype=torch.int64)
    return tokens_rs, torch.zeros(_ROWS, dtype=torch.int32), torch.tensor([0, 2])


def _new_token_sizes() -> tuple[dict[int, Any], ...]:
    rows = Dim("rows")
    return {0: rows, 1: Dim("new")}, {0: rows}, {0: Dim("asked")}


def _self_caches(
    kinds: Sequence[str], heads: int, head_dim: int
) -> tuple[list[tuple[Tensor, Tensor]], list[Any]]:
    rows, open_capacities = (
        Dim("rows"),
        {
            # Smaller caches work as well, but torch.export treats sizes 0 and 1 as special cases.
            "linear": Dim("capacity", min=3),
            "ring": Dim("ring", min=3),
        },
    )
    examples, sizes = [], []
    for kind in kinds:
        examples += _caches(1, _ROWS, _CAPACITIES[kind], (heads, head_dim))
        part = {0: rows, 2: open_capacities[kind]}
        sizes.append((part, part))
    return examples, sizes


def _caches(
    layers: int, first: int, positions: int, heads: tuple[int, int]
) -> list[tuple[Tensor, Tensor]]:
    count, head_dim = heads
    shape = (first, count, positions, head_dim)
    return [(torch.zeros(shape), torch.zeros(shape)) for _ in range(layers)]
