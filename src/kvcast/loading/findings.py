"""What `kvcast doctor` finds out: the parts of kvcast that work on this machine, and a model.

Knows no check, and not how findings are displayed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvcast.spec.runtimes import DEFAULT_RUNTIMES


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """One runtime.

    Attributes:
        name: as `--runtime` takes it.
        usable: whether it passed its self-test.
        versions: versions of its packages, by name.
        problem: why it is not usable, or a caveat; empty if there is none.
        no_export: why nothing can be exported to it here; empty if exporting works, None if the
            runtime is not usable or has no bundles.

    """

    name: str
    usable: bool
    versions: Mapping[str, str]
    problem: str = ""
    no_export: str | None = None


@dataclass(frozen=True, kw_only=True)
class OptionalPackage:
    """A package that only some inputs need; `versions` is empty if it cannot be used."""

    name: str
    use: str
    versions: Mapping[str, str]
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Processor:
    """Cores that this process may use, vector instructions, and their use for bf16 and int8."""

    cores: int
    instructions: Sequence[str]
    bf16: str
    int8: str


@dataclass(frozen=True, kw_only=True)
class NativeLibrary:
    """kvcast's own compiled library, of the native runtime.

    Attributes:
        origin: "shipped" with kvcast, "compiled" here, or "none": the first use compiles it, or
            `problem` is the reason if it is not available.
        path: where it is; empty if it is not there.
        instructions: sets of its kernels that run on this processor; it uses the first, unless
            there is a problem. The rest follow, fastest first.
        kernels: what computes what with the first.
        threads: its default number of threads.
        problem: why it cannot be compiled or loaded, or is refused by the environment's setting.

    """

    origin: str
    path: str = ""
    instructions: Sequence[str] = ()
    kernels: str = ""
    threads: int
    problem: str = ""

    @property
    def stops(self) -> bool:
        """Whether a run without `--runtime` would end with the problem: the library is used."""
        return bool(self.problem) and len(self.instructions) > 1


@dataclass(frozen=True, kw_only=True)
class Cuda:
    """Names of the CUDA devices that PyTorch finds; `problem` says why there are none."""

    devices: Sequence[str]
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class CacheFolder:
    """The folder of exported models and its size in bytes; `problem` if it is not writable."""

    folder: str
    bytes: int
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The result of opening a bundle; `problem` says why it failed."""

    path: str
    runtime: str
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A model on kvcast's own kernels.

    Attributes:
        path: as it was named.
        family: of the model; empty if it cannot be opened.
        quantize: the precision of its matrices.
        seconds: until it was opened.
        weights: records of `kvcast.runtimes.native.inventory.Holding`.
        unused: names of tensors in its files that are no part of it.
        proof: tokens and logits beside those of the plain kernels, all at once; None if nobody
            asked.
        problem: why it cannot be opened.

    """

    path: str
    family: str = ""
    quantize: str = ""
    seconds: float = 0
    weights: Sequence[Mapping[str, Any]] = ()
    unused: Sequence[str] = ()
    proof: Mapping[str, Any] | None = None
    problem: str = ""

    @property
    def well(self) -> bool:
        """Whether it was opened, and its proof succeeded if there was one."""
        agrees = self.proof is None or self.proof["tokens_equal"] == self.proof["tokens"]
        return agrees and not self.problem


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Everything that `kvcast.loading.doctor.examine` finds out."""

    runtimes: Sequence[Runtime]
    processor: Processor
    library: NativeLibrary
    cuda: Cuda
    parts: Sequence[OptionalPackage]
    cache: CacheFolder
    bundle: Opened | None
    model: Examined | None

    @property
    def well(self) -> bool:
        """Whether the runtime that is the default works, and the model if one was given."""
        defaults = [runtime for runtime in self.runtimes if runtime.name in DEFAULT_RUNTIMES]
        works = any(runtime.usable for runtime in defaults) and not self.library.stops
        opens = not (self.bundle and self.bundle.problem)
        return works and opens and (self.model is None or self.model.well)
