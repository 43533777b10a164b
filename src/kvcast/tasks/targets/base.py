"""The interface through which exporting and loading use a runtime. Knows no runtime."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kvcast.bundle.manifest import CacheLayers, Graph, Manifest
from kvcast.errors import UsageError
from kvcast.spec.phases import OnPhase, ignore_phase
from kvcast.tasks.targets.self_test import SelfTestResult

Lowered = tuple[dict[str, Graph], tuple[CacheLayers, ...]]
"""Graphs by the names that the runtime looks up, and the layout of their caches."""


@dataclass(frozen=True, kw_only=True)
class BundlePrecision:
    """The precision of a bundle.

    Attributes:
        quantize: how weight matrices are quantised: "none" or one of the target's schemes.
        dtype: of everything that is not quantised: "fp32", "bf16" or "fp16".
        cache: of self caches: the same as `dtype`, or "int8".

    """

    quantize: str
    dtype: str = "fp32"
    cache: str = "fp32"

    @property
    def exact(self) -> bool:
        """Whether everything is fp32, so results must equal the reference."""
        return (self.quantize, self.dtype, self.cache) == ("none", "fp32", "fp32")


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
        programs: the programs of one checkpoint, in fp32.
        precision: the precision to lower them to.
        build: options for compiling native code.
        special_tokens: tokens that start, steer and end a text, for callers that read only the
            graphs' files.
        on_phase: called with each phase of lowering as it begins.

    """

    family: str
    programs: Any
    precision: BundlePrecision
    build: BuildOptions
    special_tokens: Mapping[str, Sequence[int]]
    on_phase: OnPhase = ignore_phase


@dataclass(frozen=True, kw_only=True)
class PrecisionRequest:
    """The precision that a user asks for; None leaves the choice to the target."""

    quantize: str | None = None
    dtype: str | None = None
    cache: str | None = None


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise UsageError unless `value` is one of `choices`."""
    if value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


class Target(Protocol):
    """One runtime that models are exported to.

    Attributes:
        tools: packages, beside torch, whose versions the manifest records.

    """

    tools: tuple[str, ...]

    def choose_precision(self, request: PrecisionRequest) -> BundlePrecision:
        """Fill in what was left open; raises UsageError for a precision the runtime lacks."""

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

    def open(self, family: str, folder: Path, manifest: Manifest, threads: int) -> Any:
        """Open a bundle whose checksums have been verified."""
