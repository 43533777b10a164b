"""Prefix models on AOTInductor: compiled programs where eager executes them.

Knows programs by the names in the bundle's manifest and nothing of models.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.runtimes.aoti.decoder import Rings, RowsProgram
from kvcast.runtimes.aoti.runtime import CompiledProgram, DecodeProgram, open_programs
from kvcast.runtimes.eager.prefix import EagerPrefix
from kvcast.runtimes.eager.runtime import Model
from kvcast.runtimes.memory import Layer


class _CompiledModel(Model):
    def __init__(
        self, dimensions: Any, programs: Mapping[str, Callable[..., Sequence[Tensor]]]
    ) -> None:
        self._dimensions = dimensions
        self._programs = programs

    @property
    @override
    def dimensions(self) -> Any:
        return self._dimensions

    @override
    def __getitem__(self, name: str) -> Callable[..., Sequence[Tensor]]:
        return self._programs[name]


def _pool(program: CompiledProgram, hidden_nx: Tensor) -> Sequence[Tensor]:
    return [result.cpu() for result in program([hidden_nx], {})]


class AotiPrefix(EagerPrefix):
    """The first call of an empty row is its source."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        self._rings = Rings(manifest.cache)
        self.device = manifest.device
        compiled = open_programs(folder, manifest, threads)
        programs: dict[str, Any] = {"decode": RowsProgram(DecodeProgram(compiled), self._rings)}
        if "pool" in compiled:
            programs["pool"] = partial(_pool, compiled["pool"])
        super().__init__(_CompiledModel(SimpleNamespace(**manifest.dimensions), programs))

    @override
    def layers(self, capacity: int) -> Sequence[Layer]:
        return self._rings.of(capacity)
