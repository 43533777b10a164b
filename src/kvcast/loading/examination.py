"""Examines a model on the native kernels: tensors of its files, memory, and results, for `doctor`.

The proof compares the model, one token after the other through its caches, with the same program
on the plain kernels, all tokens at once. The findings are data classes, which become JSON.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from kvcast.bundle.manifest import Manifest, is_bundle, read_bundle
from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.lora import Adapter
from kvcast.checkpoints.source import locate, open_adapters, open_checkpoint
from kvcast.engine.model import Model
from kvcast.errors import UsageError
from kvcast.families.base import Family
from kvcast.families.table import family_of
from kvcast.loading.components import require_cache
from kvcast.loading.export_proof import TOLERANCE, at_once, generate_greedily, likeliest, steps_of
from kvcast.loading.opening import NO_ADAPTERS, checked_dimensions, open_model
from kvcast.loading.params import LoadParams
from kvcast.machine.resources import available_cores
from kvcast.runtimes.base import Runtime
from kvcast.runtimes.native import bundles
from kvcast.runtimes.native.interpreter import Interpreter
from kvcast.runtimes.native.library import PLAIN
from kvcast.runtimes.native.weights import inventory
from kvcast.runtimes.target import TARGETS
from kvcast.spec.runtimes import DEFAULT_RUNTIMES, RUNTIMES, PrecisionRequest

_NATIVE = "native"
ROUNDED_TOLERANCE = 0.1
"""As `TOLERANCE`, in standard deviations of the logits, if GEMMs take rounded values."""

Opener = Callable[[str | None], tuple[Manifest, Interpreter]]
"""Opens a model with a set of instructions; None: the chosen."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model that can be opened with any ISA; `unused`: tensors that it does not use."""

    family: Family
    dimensions: Any
    parts_of: Callable[[str], Sequence[StoredTensor]]
    open: Opener
    unused: Sequence[str] = ()


def examine_model(model: str, *, prove: bool, adapters: Sequence[str] = ()) -> dict[str, Any]:
    began = monotonic()
    source = _source(locate(model), open_adapters(adapters))
    manifest, interpreter = source.open(None)
    report = {
        "family": source.family.name,
        "quantize": manifest.quantize,
        "seconds": round(monotonic() - began, 3),
        "weights": [asdict(row) for row in inventory(interpreter.constants, source.parts_of)],
        "unused": list(source.unused),
    }
    if not prove:
        return report | {"proof": None}
    require_cache(model, source.family)
    runtime = _runtime(source, manifest, interpreter)
    del interpreter  # one set of packed matrices at a time
    return report | {"proof": proof(source, manifest, runtime)}


def proof(source: Source, manifest: Manifest, runtime: Runtime) -> dict[str, Any]:
    """Compare a runtime's greedy tokens and logits with the plain kernels'."""
    family, dimensions = source.family, source.dimensions
    probe = family.probe(dimensions)
    generated_rs, stepped_rsv = generate_greedily(
        runtime, probe, steps_of(family, dimensions, probe)
    )
    del runtime
    plain = _runtime(source, *source.open(PLAIN))
    whole_rsv = at_once(plain, family, probe, generated_rs)
    exact = manifest.quantize == "none"
    spread = float(whole_rsv.std())
    equal = likeliest(generated_rs, whole_rsv, TOLERANCE if exact else ROUNDED_TOLERANCE * spread)
    error = float(np.abs(stepped_rsv - whole_rsv).max())
    return {
        "tokens": generated_rs.size,
        "tokens_equal": equal,
        "max_logit_error": error if isfinite(error) else None,
        "logit_deviation": spread if isfinite(spread) else None,
    }


def _runtime(source: Source, manifest: Manifest, interpreter: Interpreter) -> Runtime:
    runtime: Runtime = TARGETS[_NATIVE].runtimes()[source.family.interface](manifest, interpreter)
    return runtime


def _source(place: Path, adapters: Sequence[Adapter]) -> Source:
    if not is_bundle(place):
        return _checkpoint(place, adapters)
    if adapters:
        raise UsageError(f"{place} {NO_ADAPTERS}")
    return _bundle(place)


def _bundle(folder: Path) -> Source:
    manifest = read_bundle(folder)
    if manifest.runtime != _NATIVE:
        raise UsageError(
            f"{folder} is a bundle for {manifest.runtime}: its proof is in its bundle.json"
        )

    def open_with(instructions: str | None) -> tuple[Manifest, Interpreter]:
        return manifest, bundles.open_bundle(folder, manifest, available_cores(), instructions)

    return Source(
        family=family_of(manifest.family),
        dimensions=checked_dimensions(folder, manifest),
        parts_of=lambda _: (),
        open=open_with,
    )


def _checkpoint(place: Path, adapters: Sequence[Adapter]) -> Source:
    checkpoint = open_checkpoint(place, adapters)
    precision = RUNTIMES[_NATIVE].choose_opening(PrecisionRequest())

    def open_with(instructions: str | None) -> tuple[Manifest, Interpreter]:
        return bundles.open_checkpoint(checkpoint, precision, available_cores(), instructions)

    return Source(
        family=checkpoint.family,
        dimensions=checkpoint.dimensions,
        parts_of=checkpoint.tensors.parts_of,
        open=open_with,
        unused=checkpoint.tensors.unused,
    )


# For a chunk and a step, for a step alone, and for vocabularies without Latin letters.
_PROMPTS = ("The quick brown fox jumps over the lazy dog. " * 4, "fox", "的")


def open_and_call(bundle: str, runtime: str, trust: str = "") -> None:
    params = LoadParams(runtime=runtime, threads=1, trust=bool(trust))
    opened = open_model(bundle, params, isolate=False)
    call_once(opened.model)


def call_once(model: Model) -> None:
    if model.task == "transcribe":
        noise = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
        list(
            model.transcribe(
                noise,
                temperature=0,
                max_new_tokens=2,
                no_speech_threshold=None,
                logprob_threshold=None,
            )
        )
        return
    for prompt in _PROMPTS:
        with contextlib.suppress(UsageError):  # longer than the model's context, or no token at all
            model.generate(prompt, max_new_tokens=2)


@dataclass(frozen=True, kw_only=True)
class RuntimeFinding:
    name: str
    usable: bool
    versions: Mapping[str, str]
    problem: str = ""  # why it is not usable, or a caveat; empty if there is none
    # why nothing can be exported to it here; empty if exporting works, None if the runtime is not
    # usable or has no bundles
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
    """The native runtime's own compiled library."""

    # "shipped" with kvcast, "compiled" here, or "none": the first use compiles it, or `problem` is
    # the reason if it is not available
    origin: str
    path: str = ""
    # sets of its kernels that run on this processor; it uses the first, unless there is a problem.
    # The rest follow, fastest first
    instructions: Sequence[str] = ()
    kernels: str = ""
    threads: int
    problem: str = ""

    @property
    def stops(self) -> bool:
        """Whether a run without `--runtime` would end with the problem."""
        return bool(self.problem) and len(self.instructions) > 1


@dataclass(frozen=True, kw_only=True)
class Cuda:
    """Names of the CUDA devices that PyTorch finds; `problem` says why there are none."""

    devices: Sequence[str]
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class CacheFolder:
    """The folder of exported models and its bytes; `problem` if it is not writable."""

    folder: str
    bytes: int
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Opened:
    path: str
    runtime: str
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Examined:
    path: str
    family: str = ""
    quantize: str = ""
    seconds: float = 0
    weights: Sequence[Mapping[str, Any]] = ()  # records of `kvcast.runtimes.native.weights.Holding`
    unused: Sequence[str] = ()
    proof: Mapping[str, Any] | None = None  # comparison with the plain kernels; None: not requested
    problem: str = ""

    @property
    def well(self) -> bool:
        agrees = self.proof is None or self.proof["tokens_equal"] == self.proof["tokens"]
        return agrees and not self.problem


@dataclass(frozen=True, kw_only=True)
class Findings:
    runtimes: Sequence[RuntimeFinding]
    processor: Processor
    library: NativeLibrary
    cuda: Cuda
    parts: Sequence[OptionalPackage]
    cache: CacheFolder
    bundle: Opened | None
    model: Examined | None

    @property
    def well(self) -> bool:
        defaults = [runtime for runtime in self.runtimes if runtime.name in DEFAULT_RUNTIMES]
        works = any(runtime.usable for runtime in defaults) and not self.library.stops
        opens = not (self.bundle and self.bundle.problem)
        return works and opens and (self.model is None or self.model.well)
