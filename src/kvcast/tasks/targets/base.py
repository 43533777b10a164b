"""What exporting and loading ask of a runtime. Knows no runtime."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kvcast.bundle.manifest import CacheLayers, Graph, Manifest
from kvcast.errors import UsageError
from kvcast.tasks.targets.trial import Trial

Lowered = tuple[dict[str, Graph], tuple[CacheLayers, ...]]
"""Graphs by the names that the runtime knows, and the caches that they have."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What numbers a bundle has.

    Attributes:
        quantize: of matrices: "none" or one of the target's.
        dtype: of what is not quantised, "fp32", "bf16" or "fp16".
        cache: of self caches: `dtype`, or "int8".

    """

    quantize: str
    dtype: str = "fp32"
    cache: str = "fp32"

    @property
    def exact(self) -> bool:
        """Whether all are fp32, so that results must be equal."""
        return (self.quantize, self.dtype, self.cache) == ("none", "fp32", "fp32")


@dataclass(frozen=True, kw_only=True)
class Build:
    """How native code is made.

    Attributes:
        device: "cpu" or "cuda": what it runs on.
        max_autotune: whether the compiler tries several forms of a product and keeps the fastest.

    """

    device: str = "cpu"
    max_autotune: bool = False


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be lowered.

    Attributes:
        family: of the programs.
        programs: of one checkpoint, in fp32.
        numbers: those to have.
        build: how native code is made.
        special_tokens: for callers that read no other file than the graphs': what begins, steers
            and ends a text.

    """

    family: str
    programs: Any
    numbers: Numbers
    build: Build
    special_tokens: Mapping[str, Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Numbers as a user asks for them; None leaves the choice to the target."""

    quantize: str | None = None
    dtype: str | None = None
    cache: str | None = None


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise UsageError unless `value` is one of `choices`."""
    if value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


class Target(Protocol):
    """One runtime.

    Attributes:
        tools: packages beside torch whose versions a bundle names.

    """

    tools: tuple[str, ...]

    def numbers(self, asked: Asked) -> Numbers:
        """Choose what was left open; raises UsageError for numbers that the runtime lacks."""

    def check_build(self, numbers: Numbers, build: Build) -> None:
        """Raise UsageError for what cannot be made, KvcastError for what cannot be made here."""

    def lower(self, order: Order, folder: Path) -> Lowered:
        """Write the graphs of a family's programs; raises KvcastError for what cannot be had."""

    def try_out(self) -> Trial:
        """Compute something tiny; raises KvcastError or ImportError for what lacks, or anything."""

    def processor(self) -> tuple[str, ...]:
        """Name what the graphs will ask of a processor: this one's instructions, if anything."""

    def open(self, family: str, folder: Path, manifest: Manifest, threads: int) -> Any:
        """Open a bundle whose files have been checked."""
