"""Prefix models on AOTInductor: compiled programs where eager has modules.

Knows programs by the names in the bundle's manifest and nothing of models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.runtimes.aoti.decoder import PackedProgram, Rings, RowsProgram
from kvcast.runtimes.aoti.runtime import CompiledProgram, DecodeProgram, open_programs
from kvcast.runtimes.eager.prefix import EagerPrefix, PrefixPrograms
from kvcast.runtimes.memory import Layer


@dataclass(frozen=True)
class _Dimensions:
    width: int
    max_positions: int


class _CompiledPrograms(PrefixPrograms):
    def __init__(
        self, programs: dict[str, CompiledProgram], manifest: Manifest, rings: Rings
    ) -> None:
        sizes = manifest.dimensions
        self._dimensions = _Dimensions(sizes["width"], sizes["max_positions"])
        self._rows = RowsProgram(DecodeProgram(programs), rings)
        self._packed = PackedProgram(self._rows)
        self._pool = programs.get("pool")

    @property
    @override
    def dimensions(self) -> _Dimensions:
        return self._dimensions

    @property
    @override
    def decode_packed(self) -> PackedProgram:
        return self._packed

    @override
    def decode(self, *arguments: Any) -> tuple[Tensor, Tensor, Any]:
        logits, hidden = self._rows(*arguments)
        return logits, hidden, arguments[-1]

    @override
    def pool(self, hidden_nx: Tensor) -> Tensor:
        return hidden_nx if self._pool is None else self._pool([hidden_nx], {})[0].cpu()


class AotiPrefix(EagerPrefix):
    """The first call of an empty row is its source."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        self._rings = Rings(manifest.cache)
        self.device = manifest.device
        programs = open_programs(folder, manifest, threads)
        super().__init__(_CompiledPrograms(programs, manifest, self._rings))

    @override
    def layers(self, capacity: int) -> Sequence[Layer]:
        return self._rings.of(capacity)
