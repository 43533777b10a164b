"""Bundles for any runtime: whichever worker asks first writes one, once a run or in all of CI.

Those of random models are lowered and sealed without the proof that `kvcast.export_bundle` adds:
the tests are that.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from kit.dimensions import SMALL
from kit.models import family_name, random_programs
from kvcast.bundle.manifest import Manifest, read_bundle
from kvcast.bundle.packages import describe_packages
from kvcast.bundle.writing import seal, staged
from kvcast.checkpoints.source import locate
from kvcast.loading.opening import export_once
from kvcast.loading.params import LoadParams
from kvcast.runtimes.onnx import lower
from kvcast.runtimes.target import BuildOptions, LoweringJob
from kvcast.runtimes.targets import TARGETS
from kvcast.spec.runtimes import BundlePrecision

# What a file for callers in C++ tells them; random models give tokens no meaning.
SPECIAL_TOKENS = {
    "start_tokens": [3, 1, 4],
    "end_tokens": [7, 9],
    "language_tokens": [],
    "suppressed_tokens": [5, 6, 11],
    "blank_tokens": [8, 7],
}
NEEDED = {
    "aoti": ("torch", "AOTInductor needs torch: pip install 'kvcast[export]'"),
    "executorch": ("executorch", "ExecuTorch is not installed: pip install executorch==1.5.1"),
}
_folders: list[Path] = []


def share(folder: Path) -> None:
    """Tell where all workers of this run can write."""
    _folders[:] = [folder]


def once(name: str, make: Callable[[Path], object]) -> Path:
    """Return what `make` has written, in this worker or another; where it fails nothing stays."""
    path = _folders[0] / f"shared-{name}"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            make(path)
    return path


def bundle(
    dimensions: Any,
    quantize: str = "none",
    runtime: str = "onnx",
    *,
    dtype: str = "fp32",
    cache: str = "fp32",
) -> Path:
    """Return the bundle of the random model of these dimensions; nobody may change it."""
    precision = {"quantize": quantize, "dtype": dtype, "cache": cache}
    key = sha256(repr((dimensions, runtime, precision)).encode()).hexdigest()[:16]

    def make(folder: Path) -> None:
        write(random_programs(dimensions), folder, runtime=runtime, **precision)

    return once(f"{runtime}-{quantize}-{key}", make)


def write(
    programs: Any,
    folder: Path,
    quantize: str = "none",
    runtime: str = "onnx",
    *,
    dtype: str = "fp32",
    cache: str = "fp32",
) -> Manifest:
    """Lower programs with weights of a test's own, and seal."""
    if runtime in NEEDED:
        module, reason = NEEDED[runtime]
        pytest.importorskip(module, reason=reason)
    family = family_name(programs.dimensions)
    job = LoweringJob(
        family=family,
        programs=programs,
        precision=BundlePrecision(quantize=quantize, dtype=dtype, cache=cache),
        build=BuildOptions(),
        special_tokens=SPECIAL_TOKENS,
    )
    with staged(folder, overwrite=False) as staging:
        graphs, layers = TARGETS[runtime].lower(job, staging)
        manifest = Manifest(
            family=family,
            runtime=runtime,
            quantize=quantize,
            dtype=dtype,
            dimensions=asdict(programs.dimensions),
            cache=layers,
            graphs=graphs,
            source={},
            tools={},
        )
        describe_packages(staging, manifest)
        return seal(staging, manifest)


def int8_cross_caches() -> Path:
    """Return SMALL's bundle of which only the cross caches are int8; nobody may change it.

    int8 matrices have one scale for all that they multiply, which would hide what caches do.
    """

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for function in ("quantize_matrices", "quantize_table"):
                patch.setattr(lower, function, lambda *_, **__: None)
            write(random_programs(SMALL), folder, "int8")

    return once("onnx-int8-cross-caches", make)


def exported(model: str, runtime: str = "onnx", **precision: str) -> Path:
    """Return a packaged model's bundle, that which `kvcast.load` opens; nobody may change it.

    Raises InputMissingError if the model is not installed.
    """
    params = LoadParams(runtime=runtime, **precision)
    folder, _ = export_once(locate(model), model, params, None)
    return folder


def open_folder(folder: Path) -> Any:
    """Open a bundle on its runtime, with one thread."""
    manifest = read_bundle(folder)
    return TARGETS[manifest.runtime].open(manifest.family, folder, manifest, 1)


@cache
def opened(dimensions: Any, quantize: str = "none", runtime: str = "onnx", **precision: str) -> Any:
    """Return the random model of these dimensions on a runtime: a bundle's, or eager."""
    if runtime == "eager":
        from kvcast.runtimes.eager.opening import eager_runtime

        return eager_runtime(random_programs(dimensions))
    return open_folder(bundle(dimensions, quantize, runtime, **precision))
