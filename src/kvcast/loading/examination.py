"""Examines a model on kvcast's own kernels: what was read, what is in memory, what it computes.

The proof compares the model, one token after the other through its caches, with the same program
on the plain kernels, all tokens at once. Knows no family and no file format.
"""

from collections.abc import Callable, Sequence
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
from kvcast.errors import UsageError
from kvcast.families.base import Family
from kvcast.families.table import family_of
from kvcast.loading.opening import NO_ADAPTERS, checked_dimensions
from kvcast.loading.probing import TOLERANCE, at_once, likeliest, stepped, steps_of
from kvcast.machine.processor import available_cores
from kvcast.runtimes.base import Runtime
from kvcast.runtimes.native import opening
from kvcast.runtimes.native.interpreter import Interpreter
from kvcast.runtimes.native.inventory import inventory
from kvcast.runtimes.native.library import PLAIN
from kvcast.runtimes.targets import TARGETS
from kvcast.spec.runtimes import RUNTIMES, PrecisionRequest

_NATIVE = "native"
ROUNDED_TOLERANCE = 0.1
"""As `TOLERANCE`, in standard deviations of the logits, where products are of rounded numbers."""

Opener = Callable[[str | None], tuple[Manifest, Interpreter]]
"""Opens a model with a set of instructions; None: the chosen."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model that can be opened with any set of instructions; `unused`: tensors beside its own."""

    family: Family
    dimensions: Any
    parts_of: Callable[[str], Sequence[StoredTensor]]
    open: Opener
    unused: Sequence[str] = ()


def examine_model(model: str, *, prove: bool, adapters: Sequence[str] = ()) -> dict[str, Any]:
    """Open a model and describe it; raises KvcastError where it cannot be opened."""
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
    runtime = _runtime(source, manifest, interpreter)
    del interpreter  # one set of packed matrices at a time
    return report | {"proof": proof(source, manifest, runtime)}


def proof(source: Source, manifest: Manifest, runtime: Runtime) -> dict[str, Any]:
    """Compare a runtime's greedy tokens and logits with the plain kernels'."""
    family, dimensions = source.family, source.dimensions
    probe = family.probe(dimensions)
    written_rs, stepped_rsv = stepped(runtime, probe, steps_of(family, dimensions, probe))
    del runtime
    plain = _runtime(source, *source.open(PLAIN))
    whole_rsv = at_once(plain, family, probe, written_rs)
    exact = manifest.quantize == "none"
    spread = float(whole_rsv.std())
    equal = likeliest(written_rs, whole_rsv, TOLERANCE if exact else ROUNDED_TOLERANCE * spread)
    error = float(np.abs(stepped_rsv - whole_rsv).max())
    return {
        "tokens": written_rs.size,
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

    def opened(instructions: str | None) -> tuple[Manifest, Interpreter]:
        return manifest, opening.open_bundle(folder, manifest, available_cores(), instructions)

    return Source(
        family=family_of(manifest.family),
        dimensions=checked_dimensions(folder, manifest),
        parts_of=lambda _: (),
        open=opened,
    )


def _checkpoint(place: Path, adapters: Sequence[Adapter]) -> Source:
    checkpoint = open_checkpoint(place, adapters)
    precision = RUNTIMES[_NATIVE].choose_opening(PrecisionRequest())

    def opened(instructions: str | None) -> tuple[Manifest, Interpreter]:
        return opening.open_checkpoint(checkpoint, precision, available_cores(), instructions)

    return Source(
        family=family_of(checkpoint.family),
        dimensions=checkpoint.dimensions,
        parts_of=checkpoint.tensors.parts_of,
        open=opened,
        unused=checkpoint.tensors.unused,
    )
