"""Reads the traffic of a model's programs, and finds whole copies of caches in a bundle."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcast.bundle.manifest import Manifest, read_bundle
from kvcast.errors import KvcastError, UsageError
from kvcast.families.base import Family
from kvcast.families.programs import ENCODED
from kvcast.runtimes.traffic import CacheTraffic, CallSizes, ModelTraffic, TrafficReader
from kvcast.spec.runtimes import RUNTIMES, BundlePrecision, imported

if TYPE_CHECKING:
    from kvcast.checkpoints.base import Checkpoint

_LENGTH = 64
"""Positions before a call, where nobody cares for how many."""
_USUAL_SOURCE = 128


def traffic_of(folder: Path, manifest: Manifest, sizes: CallSizes) -> ModelTraffic:
    """Return the traffic of a call of each program of a bundle whose checksums were verified.

    Raises UsageError for sizes that the model lacks, KvcastError if files lack information.
    """
    family, dimensions = manifest.model()
    sizes = _fitting(sizes, family, dimensions)
    programs = _reader(manifest.runtime).bundle(folder, manifest, sizes)
    order = list(family.programs(dimensions))  # `encode` comes first
    return ModelTraffic(
        family=manifest.family,
        runtime=manifest.runtime,
        precision=manifest.precision,
        sizes=sizes,
        programs=sorted(programs, key=lambda part: (*order, part.name).index(part.name)),
    )


def traffic_of_checkpoint(
    checkpoint: "Checkpoint", runtime: str, precision: BundlePrecision, sizes: CallSizes
) -> ModelTraffic:
    """Return the traffic of a call of each program of a checkpoint opened without a bundle.

    Raises UsageError for sizes that the model lacks, KvcastError if it cannot be read.
    """
    sizes = _fitting(sizes, checkpoint.family, checkpoint.dimensions)
    precision = checkpoint.resolve_precision(precision)
    return ModelTraffic(
        family=checkpoint.family.name,
        runtime=runtime,
        precision=precision,
        sizes=sizes,
        programs=_reader(runtime).checkpoint(checkpoint, precision, sizes),
    )


def copies_of(folder: Path, manifest: Manifest | None = None) -> Sequence[CacheTraffic]:
    """Return the caches that a step of a bundle copies whole; there should be none.

    `manifest` is the bundle's, if it was verified. Convolution inputs and states do not count,
    since each step rewrites them. Raises InputMissingError without a bundle, KvcastError if it is
    damaged.
    """
    manifest = read_bundle(folder) if manifest is None else manifest
    family, dimensions = manifest.model()
    length = min(_LENGTH, family.positions(dimensions) - 1)
    return traffic_of(folder, manifest, CallSizes(length=length)).copies


def _reader(runtime: str) -> TrafficReader:
    if runtime not in RUNTIMES:
        raise KvcastError(f"this kvcast does not support runtime {runtime}: update it")
    about = RUNTIMES[runtime]
    if not about.traffic:
        raise KvcastError(f"what {about.title} executes cannot be read")
    try:
        reader: TrafficReader = imported(about.traffic)()
    except ModuleNotFoundError as error:
        raise KvcastError(
            f"programs of {about.title} are read with {error.name}, which is not installed: "
            f"pip install 'kvcast[{about.extra}]'"
        ) from None
    return reader


def _fitting(sizes: CallSizes, family: Family, dimensions: Any) -> CallSizes:
    """Add the positions of encoded inputs; UsageError for sizes that the model does not support."""
    longest = family.positions(dimensions)
    if sizes.length + sizes.new > longest:
        raise UsageError(
            f"a cache of {sizes.length:,} positions and {sizes.new:,} new ones are more than the "
            f"model's {longest:,}: shorten --length or --new"
        )
    capacity = next((run.capacity for run in family.caches(dimensions) if run.kind in ENCODED), 1)
    if "source" not in family.programs(dimensions)["decode"].sizes:
        if sizes.source is not None:
            raise UsageError("the model has no source of various lengths: drop --source")
        return replace(sizes, source=capacity)
    if (sizes.source or 0) > capacity:
        raise UsageError(
            f"a source of {sizes.source:,} positions is too long: the model has {capacity:,}"
        )
    return replace(sizes, source=sizes.source or min(capacity, _USUAL_SOURCE))
