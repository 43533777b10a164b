"""Reads what a model's programs do, from what a runtime would execute, and executes nothing.

Knows no runtime and no file format.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.bundle.packages import bundle_of, read_on_trust, unvouched_package
from kvcast.checkpoints.source import open_checkpoint
from kvcast.families.table import family_of
from kvcast.loading.opening import check_request, checked_dimensions, export_once, located
from kvcast.loading.params import LoadParams
from kvcast.runtimes.copies import reader_of, traffic_of
from kvcast.runtimes.targets import default_runtime
from kvcast.runtimes.traffic import COPIED, CallSizes, ProgramTraffic, sizes_for
from kvcast.spec.runtimes import OWN, RUNTIMES, BundlePrecision

__all__ = ["COPIED", "CallSizes", "ModelTraffic", "ProgramTraffic", "read_traffic"]


@dataclass(frozen=True, kw_only=True)
class ModelTraffic:
    """What a call of each of a model's programs does on a runtime."""

    family: str
    runtime: str
    precision: BundlePrecision
    sizes: CallSizes
    programs: Sequence[ProgramTraffic]


def read_traffic(model: str, params: LoadParams, sizes: CallSizes) -> ModelTraffic:
    """Read a bundle, a package without a manifest, or a checkpoint.

    A checkpoint is opened as it is where a runtime does, else exported once as `load` does it. A
    package needs no trust, because nothing of it is run.

    Raises:
        UsageError: the model has no such sizes, or not this precision.
        KvcastError: it cannot be found or read; the message is one line.

    """
    place = located(model, params.on_phase)
    folder, package = bundle_of(place), unvouched_package(place, params.runtime)
    if package is not None:
        folder, manifest = package.parents[1], read_on_trust(package)
    elif is_bundle(folder):
        manifest = read_bundle(folder)
    else:
        runtime = params.runtime or default_runtime(params.precision, params.on_phase)
        precision = RUNTIMES[runtime].choose_opening(params.precision)
        if RUNTIMES[runtime].direct and not precision.calibrated:
            checkpoint = open_checkpoint(folder)
            if precision.quantize == OWN and not checkpoint.tensors.has_codes():
                precision = replace(precision, quantize="int8")
            return ModelTraffic(
                family=checkpoint.family,
                runtime=runtime,
                precision=precision,
                sizes=sizes_for(family_of(checkpoint.family), checkpoint.dimensions, sizes),
                programs=reader_of(runtime).checkpoint(checkpoint, precision, sizes),
            )
        folder, manifest = export_once(folder, model, params, None)
    check_request(folder, manifest, params.runtime, params.precision)
    dimensions = checked_dimensions(folder, manifest)
    caches = {layers.dtype for layers in manifest.cache if layers.kind in ("linear", "ring")}
    return ModelTraffic(
        family=manifest.family,
        runtime=manifest.runtime,
        precision=BundlePrecision(
            quantize=manifest.quantize,
            dtype=manifest.dtype,
            cache=", ".join(sorted(caches)) or manifest.dtype,
        ),
        sizes=sizes_for(family_of(manifest.family), dimensions, sizes),
        programs=traffic_of(folder, manifest, sizes),
    )
