"""Export targets: the interface through which exporting and loading use a runtime."""

from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.bundle.manifest import Graph, Manifest
from kvcast.checkpoints.base import Checkpoint
from kvcast.families.base import Family, Interface
from kvcast.families.programs import CacheLayers, ProgramSignature
from kvcast.families.table import family_of
from kvcast.runtimes.reference import Reference, reference_of
from kvcast.runtimes.self_test import SelfTestResult
from kvcast.spec.program import Program
from kvcast.spec.runtimes import (
    DEFAULT_RUNTIMES,
    RUNTIMES,
    BundlePrecision,
    OnPhase,
    PrecisionRequest,
    ignore_phase,
    imported,
)
from kvcast.spec.stored_matrices import BlocksOf, no_blocks

Lowered = tuple[dict[str, Graph], tuple[CacheLayers, ...]]
"""Graphs by the names that the runtime looks up, and the layout of their caches."""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    device: str = "cpu"  # "cpu" or "cuda"
    max_autotune: bool = False  # time several kernels for each GEMM and keep the fastest


@dataclass(frozen=True, kw_only=True)
class LoweringJob:
    checkpoint: Checkpoint
    programs: Callable[[], Any]  # returns the same fp32 programs each time; needs PyTorch
    precision: BundlePrecision
    build: BuildOptions
    special_tokens: Mapping[str, Sequence[int]]  # for callers that read only the graphs' files
    on_phase: OnPhase = ignore_phase
    # the checkpoint's codes of a matrix, for targets that can keep them
    blocks_of: BlocksOf = no_blocks

    @property
    def family(self) -> Family:
        return self.checkpoint.family

    @property
    def dimensions(self) -> Any:
        return self.checkpoint.dimensions

    def write_programs(self) -> Mapping[str, Program]:
        return self.family.write_programs(self.dimensions)

    def program_signatures(self) -> Mapping[str, ProgramSignature]:
        return self.family.programs(self.dimensions)

    def constants(self) -> dict[str, NDArray[Any]]:
        tensors: dict[str, NDArray[Any]] = {
            name: np.ascontiguousarray(tensor, np.float32)
            for name, tensor in self.checkpoint.tensors.items()
        }
        return {**tensors, **self.family.constants(self.dimensions, tensors)}

    def signatures(self) -> Mapping[str, Any]:
        from kvcast.runtimes.lowering.torch_export import signature_of  # which imports torch

        programs, described = self.programs(), self.program_signatures().items()
        return {name: signature_of(programs[name], program) for name, program in described}

    def reference(self, instructions: str | None = None) -> Reference:
        """Return the model in fp32; `instructions`: the kernels' ISA, by default the chosen one."""
        return reference_of(self.checkpoint, self.programs, self.on_phase, instructions)


@dataclass(frozen=True)
class StoredValues:
    values: NDArray[Any]  # in the checkpoint's shape, dequantized
    steps: NDArray[np.float32] | None = None  # scales [..., outputs, blocks]; None if not quantized
    bits: int = 32  # of a code, or of a value if not quantized
    clipped: float = 0.0  # steps by which codes of 8 bits may clip a block's largest value


@dataclass(frozen=True)
class Stored:
    """The constants and programs that can be read from a bundle's files; empty if they cannot."""

    constants: Mapping[str, Callable[[], StoredValues]] = field(default_factory=dict)
    programs: Mapping[str, Program] = field(default_factory=dict)


class Target(Protocol):
    """A runtime that models are exported to."""

    needs: tuple[str, ...]  # modules that exporting imports, installed by the runtime's extra
    tools: tuple[str, ...]

    def check_build(
        self,
        precision: BundlePrecision,  # noqa: ARG002 - by default, whatever exports to it builds it
        build: BuildOptions,  # noqa: ARG002
    ) -> None:
        """Raise UsageError if no machine can build this, KvcastError if this machine cannot."""
        return

    def lower(self, job: LoweringJob, folder: Path) -> Lowered:
        """Write the graphs of a family's programs; raises KvcastError if the target cannot."""

    def reference(self, job: LoweringJob) -> Reference:
        return job.reference()

    def self_test(self) -> SelfTestResult:
        """Run something tiny on this machine.

        Raises KvcastError or ImportError if something is missing; a broken package may raise
        anything.
        """

    def processor(self) -> tuple[str, ...]:
        """Return the ISA that graphs built here will need; empty if none."""
        return ()

    def suits_machine(self, on_phase: OnPhase) -> bool:  # noqa: ARG002 - most need nothing
        """Return whether bundles run at their intended speed; may compile after `on_phase`."""
        return True

    def runtimes(self) -> Mapping[Interface, Any]:
        """Import the classes that open bundles; return them by the interface of a family."""

    def open(self, family: str, folder: Path, manifest: Manifest, threads: int) -> Any:
        return self.runtimes()[family_of(family).interface](folder, manifest, threads)

    def read_stored(
        self,
        folder: Path,  # noqa: ARG002
        manifest: Manifest,  # noqa: ARG002
        shapes: Mapping[str, tuple[int, ...]],  # noqa: ARG002
    ) -> Stored:
        """Return the readable content of a bundle's files; `shapes` are the checkpoint's."""
        return Stored()

    def open_checkpoint(
        self,
        checkpoint: Checkpoint,
        precision: BundlePrecision,
        threads: int,
        on_phase: OnPhase = ignore_phase,
    ) -> Any:
        """Open a checkpoint directly, on a runtime that needs no bundle."""


class _Targets(UserDict[str, Any]):
    """The targets by runtime, each imported on first use: their modules import this one."""

    @override
    def __getitem__(self, name: str) -> Target:
        if self.data[name] is None:
            self.data[name] = imported(RUNTIMES[name].target)()
        target: Target = self.data[name]
        return target


TARGETS: Mapping[str, Target] = _Targets(
    {name: None for name, runtime in RUNTIMES.items() if runtime.exports}
)


def default_runtime(request: PrecisionRequest, on_phase: OnPhase = ignore_phase) -> str:
    """Return the runtime for a model that is not a bundle; compiles a library after `on_phase`."""
    suited = [name for name in DEFAULT_RUNTIMES if TARGETS[name].suits_machine(on_phase)]
    # If none suits, the first runs slowly or reports its requirements.
    fallback = next(iter(suited), DEFAULT_RUNTIMES[0])
    return next((name for name in suited if RUNTIMES[name].offers(request)), fallback)
