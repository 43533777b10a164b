"""Finds a model and reads what its programs do, from what a runtime would execute; runs nothing.

Knows no runtime and no file format.
"""

from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.bundle.packages import bundle_of, read_on_trust, unvouched_package
from kvcast.checkpoints.source import open_checkpoint
from kvcast.loading.opening import check_request, checked_dimensions, export_once, located
from kvcast.loading.params import LoadParams
from kvcast.runtimes.copies import traffic_of, traffic_of_checkpoint
from kvcast.runtimes.targets import default_runtime
from kvcast.runtimes.traffic import CallSizes, ModelTraffic
from kvcast.spec.runtimes import RUNTIMES

__all__ = ["CallSizes", "ModelTraffic", "read_traffic"]


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
            return traffic_of_checkpoint(open_checkpoint(folder), runtime, precision, sizes)
        folder, manifest = export_once(folder, model, params, None)
    check_request(folder, manifest, params.runtime, params.precision)
    checked_dimensions(folder, manifest)
    return traffic_of(folder, manifest, sizes)
