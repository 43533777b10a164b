"""UniLM bundles of AOTInductor: compiled programs where eager has modules.

Knows programs by the names in the bundle's manifest and nothing of models.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from kvcast.bundle.manifest import Manifest
from kvcast.runtimes.aoti import CompiledProgram, DecodeProgram, open_programs
from kvcast.runtimes.aoti_decoder import CacheBuilder, PackedProgram, RowsProgram
from kvcast.runtimes.eager_decoder import EagerDecoderCache
from kvcast.runtimes.eager_unilm import EagerUnilm


@dataclass(frozen=True)
class _Dimensions:
    width: int
    max_positions: int


class _UnilmPrograms:
    """Meets `kvcast.runtimes.eager_unilm.Programs`."""

    def __init__(self, programs: dict[str, CompiledProgram], manifest: Manifest) -> None:
        sizes = manifest.dimensions
        self.dimensions = _Dimensions(sizes["width"], sizes["max_positions"])
        caches = CacheBuilder(manifest.cache, manifest.device)
        self._rows = RowsProgram(DecodeProgram(programs), caches)
        self.decode_packed = PackedProgram(self._rows)
        self._pool = programs.get("pool")

    def decode(self, *arguments: Any) -> tuple[Tensor, Tensor, Any]:
        """See `kvcast.programs.unilm.Decode`."""
        logits, hidden = self._rows(*arguments)
        return logits, hidden, arguments[-1]

    def pool(self, hidden_nx: Tensor) -> Tensor:
        """See `kvcast.programs.unilm.Pool`."""
        return hidden_nx if self._pool is None else self._pool([hidden_nx], {})[0].cpu()


class AotiUnilm(EagerUnilm):
    """Meets `kvcast.runtimes.base.DecoderOnly`; the first call of an empty row is its source."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        self._caches = CacheBuilder(manifest.cache, manifest.device)
        super().__init__(_UnilmPrograms(open_programs(folder, manifest, threads), manifest))

    def new_cache(self, rows: int, capacity: int) -> EagerDecoderCache:
        """See the protocol."""
        layers = self._caches.build(rows, capacity)
        return EagerDecoderCache(layers, self._history.empty(rows, capacity))
