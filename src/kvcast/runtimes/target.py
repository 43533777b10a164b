"""The interface through which exporting and loading use a runtime. Knows no runtime."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from kvcast.bundle.manifest import Graph, Manifest
from kvcast.checkpoints.base import Checkpoint
from kvcast.families.base import Interface
from kvcast.families.caches import CacheLayers
from kvcast.families.programs import ProgramSignature
from kvcast.families.table import family_of
from kvcast.runtimes.self_test import SelfTestResult
from kvcast.spec.blocks import BlocksOf, no_blocks
from kvcast.spec.phases import OnPhase, ignore_phase
from kvcast.spec.program import Program
from kvcast.spec.runtimes import BundlePrecision

Lowered = tuple[dict[str, Graph], tuple[CacheLayers, ...]]
"""Graphs by the names that the runtime looks up, and the layout of their caches."""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Options for compiling native code.

    Attributes:
        device: "cpu" or "cuda": where the code will run.
        max_autotune: whether the compiler times several kernels for each matrix product and keeps
            the fastest.

    """

    device: str = "cpu"
    max_autotune: bool = False


@dataclass(frozen=True, kw_only=True)
class LoweringJob:
    """The programs to lower, and how.

    Attributes:
        family: the model family that the programs belong to.
        programs: the programs of one checkpoint, in fp32, as PyTorch executes them.
        tensors: the checkpoint's, by canonical name.
        precision: the precision to lower them to.
        build: options for compiling native code.
        special_tokens: tokens that start, steer and end a text, for callers that read only the
            graphs' files.
        on_phase: called with each phase of lowering as it begins.
        blocks_of: the codes that the checkpoint has for a matrix, for targets that can keep them.

    """

    family: str
    programs: Any
    tensors: Mapping[str, NDArray[Any]]
    precision: BundlePrecision
    build: BuildOptions
    special_tokens: Mapping[str, Sequence[int]]
    on_phase: OnPhase = ignore_phase
    blocks_of: BlocksOf = no_blocks

    @property
    def dimensions(self) -> Any:
        """The dimensions of the model."""
        return self.programs.dimensions

    def written(self) -> Mapping[str, Program]:
        """Return the programs as their family writes them."""
        return family_of(self.family).written(self.dimensions)

    def described(self) -> Mapping[str, ProgramSignature]:
        """Return the programs' arguments and results."""
        return family_of(self.family).programs(self.dimensions)

    def constants(self) -> dict[str, NDArray[Any]]:
        """Return the programs' constants by name; matrices may be those of a smoothed model."""
        return {name: tensor.numpy() for name, tensor in self.programs.weights.items()}

    def signatures(self) -> Mapping[str, Any]:
        """Return what exporters need to know of each program, from `lowering.signatures`."""
        from kvcast.runtimes.lowering.signatures import signature_of  # which imports torch

        described = self.described().items()
        return {name: signature_of(self.programs[name], program) for name, program in described}


class Target(Protocol):
    """One runtime that models are exported to.

    Attributes:
        tools: packages, beside torch, whose versions the manifest records.

    """

    tools: tuple[str, ...]

    def check_build(self, precision: BundlePrecision, build: BuildOptions) -> None:
        """Raise UsageError if no machine can build this, KvcastError if this machine cannot."""

    def lower(self, job: LoweringJob, folder: Path) -> Lowered:
        """Write the graphs of a family's programs; raises KvcastError if the target cannot."""

    def self_test(self) -> SelfTestResult:
        """Run something tiny on this machine.

        Raises KvcastError or ImportError if something is missing; a broken package may raise
        anything.
        """

    def processor(self) -> tuple[str, ...]:
        """Return the processor instructions that graphs built here will need; empty if none."""

    def suits_machine(self, on_phase: OnPhase) -> bool:  # noqa: ARG002 - most need nothing
        """Tell whether it opens bundles here and is as fast as it is meant to be.

        It may compile what it needs first, after a call of `on_phase`.
        """
        return True

    def runtimes(self) -> Mapping[Interface, Any]:
        """Import the classes that open bundles; return them by the interface of a family."""

    def open(self, family: str, folder: Path, manifest: Manifest, threads: int) -> Any:
        """Open a bundle whose checksums have been verified."""
        return self.runtimes()[family_of(family).interface](folder, manifest, threads)

    def open_checkpoint(
        self,
        checkpoint: Checkpoint,
        precision: BundlePrecision,
        threads: int,
        on_phase: OnPhase = ignore_phase,
    ) -> Any:
        """Open a checkpoint as it is, on a runtime that needs no bundle."""
