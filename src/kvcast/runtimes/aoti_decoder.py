"""Decoder-only bundles of AOTInductor: a compiled program where eager has a module.

The program takes as many new positions for every row, so rows side by side that have equally many
go in one call, on views of the caches. It writes a ring before it reads it, so a ring has slots to
spare, and what would displace more goes in pieces. Knows programs by the names in the bundle's
manifest and nothing of models.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvcast.bundle.manifest import CacheLayers, Manifest
from kvcast.runtimes.aoti import DecodeProgram, open_programs
from kvcast.runtimes.eager_decoder import EagerDecoderCache, EagerDecoderOnly, LayerCache
from kvcast.spec.rows import neighbours

# A ring takes a chunk of one position more than it has slots to spare.
_SPARE = 127


@dataclass(frozen=True)
class CacheBuilder:
    """Makes caches as a manifest describes them, one entry a layer, on a device."""

    layers: Sequence[CacheLayers]
    device: str

    @property
    def window(self) -> int:
        """The widest of the rings' windows; 0 where no layer is a ring."""
        return max((layer.capacity for layer in self.layers if layer.kind == "ring"), default=0)

    def ring(self, capacity: int) -> int:
        """Slots of every ring in a cache for sequences of `capacity` positions."""
        return min(self.window + _SPARE, capacity)

    def build(self, rows: int, capacity: int) -> list[LayerCache]:
        """Make empty caches (key, value) [rows, kv_heads, slots, d] of all layers."""
        slots = {"linear": capacity, "ring": self.ring(capacity)}

        def part(layer: CacheLayers) -> Tensor:
            shape = (rows, layer.heads, slots[layer.kind], layer.head_dim)
            return torch.zeros(shape, dtype=getattr(torch, layer.dtype), device=self.device)

        return [(part(layer), part(layer)) for layer in self.layers]


class RowsProgram:
    """A compiled `decode` over as many new positions for every row."""

    def __init__(self, program: DecodeProgram, caches: CacheBuilder) -> None:
        self._program = program
        self._kinds = [layer.kind for layer in caches.layers]
        self._window = caches.window

    def __call__(
        self, tokens_rs: Tensor, lengths: Tensor, offsets: Tensor, caches: Sequence[LayerCache]
    ) -> list[Tensor]:
        """Return what the program gives at `offsets`, each [rows, len(offsets), ...]."""
        flat = [part for layer in caches for part in layer]
        keys = [key for key, _ in caches]
        capacities = {kind: key.shape[2] for kind, key in zip(self._kinds, keys, strict=True)}
        pieces, places = [], []
        for span in self._pieces(tokens_rs.shape[1], int(lengths.max()), capacities.get("ring")):
            place = ((offsets >= span.start) & (offsets < span.stop)).nonzero().flatten()
            held = int(lengths.max()) + span.stop
            slots = {kind: min(held, capacity) for kind, capacity in capacities.items()}
            inputs = [tokens_rs[:, span].contiguous(), lengths + span.start]
            inputs += [offsets[place] - span.start, *flat]
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


class PackedProgram:
    """A compiled `decode` over rows that have different numbers of new positions."""

    def __init__(self, rows: RowsProgram) -> None:
        self._rows = rows

    def __call__(
        self,
        tokens_n: Tensor,
        rows: list[int],
        counts: list[int],
        lengths: Tensor,
        asked: Tensor,
        caches: Sequence[LayerCache],
    ) -> tuple[Tensor, Sequence[LayerCache]]:
        """See `kvcast.programs.decoder.DecodePacked`; all rows are asked for as many positions."""
        asked_rp = asked.view(len(rows), -1)
        logits, first, row = [], 0, 0
        for part, count in neighbours(rows, counts):
            size = part.stop - part.start
            tokens_rs = tokens_n[first : first + size * count].view(size, count)
            views = [(key[part], value[part]) for key, value in caches]
            results = self._rows(tokens_rs, lengths[part], asked_rp[row] - first, views)
            logits.append(results[0].flatten(0, 1))
            first, row = first + size * count, row + size
        return torch.cat(logits), caches


@dataclass(frozen=True)
class DecoderPrograms:
    """Meets `kvcast.runtimes.eager_decoder.Programs`."""

    dimensions: Any
    decode_packed: PackedProgram


class AotiDecoderOnly(EagerDecoderOnly):
    """Meets `kvcast.runtimes.base.DecoderOnly`. A ring has slots to spare beside the window."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        self._caches = CacheBuilder(manifest.cache, manifest.device)
        decode = DecodeProgram(open_programs(folder, manifest, threads))
        packed = PackedProgram(RowsProgram(decode, self._caches))
        super().__init__(DecoderPrograms(manifest.dimensions, packed))

    def new_cache(self, rows: int, capacity: int) -> EagerDecoderCache:
        """See the protocol."""
        layers = self._caches.build(rows, capacity)
        return EagerDecoderCache(layers, self._history.empty(rows, capacity))
