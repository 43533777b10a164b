"""Decoder-only bundles of AOTInductor.

The program writes a ring before it reads it, so a ring has slots to spare, and what would displace
more goes in pieces. Knows programs by the names in the bundle's
manifest and nothing of models.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.families.caches import CacheLayers
from kvcast.runtimes.aoti.runtime import DecodeProgram, open_programs
from kvcast.runtimes.eager.decoder import TorchDecoderOnly, decode_neighbours
from kvcast.runtimes.memory import Layer, TurningRing, recurrent_layers

# A ring takes a chunk of one position more than it has slots to spare.
_SPARE = 127


@dataclass(frozen=True)
class Rings:
    """Sizes of caches as a manifest describes them, one entry a layer."""

    layers: Sequence[CacheLayers]

    @property
    def window(self) -> int:
        """The widest of the rings' windows; 0 where no layer is a ring."""
        return max((layer.capacity for layer in self.layers if layer.kind == "ring"), default=0)

    def of(self, capacity: int) -> list[Layer]:
        """Describe caches [rows, kv_heads, slots, d]; all rings of attention are alike."""
        return [part for layer in self.layers for part in self._parts(layer, capacity)]

    def _parts(self, layer: CacheLayers, capacity: int) -> list[Layer]:
        if parts := recurrent_layers(layer, torch.float32):
            return parts
        slots = {"linear": capacity, "ring": min(self.window + _SPARE, capacity)}
        shape = layer.heads, slots[layer.kind], layer.head_dim
        ring = TurningRing(layer.capacity, slots["ring"]) if layer.kind == "ring" else None
        return [Layer(shape, getattr(torch, layer.dtype), ring)] * len(layer.parts)


class RowsProgram:
    """A compiled `decode` over as many new positions for every row."""

    def __init__(self, program: DecodeProgram, rings: Rings) -> None:
        self._program = program
        self._kinds = [layer.kind for layer in rings.layers for _ in layer.parts]
        self._window = rings.window

    def __call__(
        self, tokens_rs: Tensor, lengths: Tensor, offsets: Tensor, *caches: Tensor
    ) -> list[Tensor]:
        """Return the program's results at `offsets`, each [rows, len(offsets), ...]."""
        kinds = zip(self._kinds, caches, strict=True)
        capacities = {kind: cache.shape[2] for kind, cache in kinds}
        pieces, places = [], []
        for span in self._pieces(tokens_rs.shape[1], int(lengths.max()), capacities.get("ring")):
            place = ((offsets >= span.start) & (offsets < span.stop)).nonzero().flatten()
            held = int(lengths.max()) + span.stop
            slots = {kind: min(held, capacity) for kind, capacity in capacities.items()}
            inputs = [tokens_rs[:, span].contiguous(), lengths + span.start]
            inputs += [offsets[place] - span.start, *caches]
            pieces.append(self._program(inputs, slots))
            places.append(place)
        if len(pieces) == 1:
            return pieces[0]
        order = torch.cat(places).argsort()
        return [torch.cat(parts, dim=1)[:, order] for parts in zip(*pieces, strict=True)]

    def _pieces(self, new: int, held: int, ring: int | None) -> Iterator[slice]:
        """Cut new positions so that none displaces one that a query of its piece sees."""
        first = 0
        while first < new:
            size = new - first
            if ring is not None:
                size = min(size, max(ring - held - first, ring - self._window + 1))
            yield slice(first, first + size)
            first += size


class AotiDecoderOnly(TorchDecoderOnly):
    """A ring has slots to spare beside the window."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        self._rings = Rings(manifest.cache)
        self.device = manifest.device
        decode = DecodeProgram(open_programs(folder, manifest, threads))
        self._decode = RowsProgram(decode, self._rings)

    @override
    def layers(self, capacity: int) -> Sequence[Layer]:
        return self._rings.of(capacity)

    @override
    def decode_packed(self, *arguments: Any) -> Tensor:
        return decode_neighbours(self._decode, *arguments)
