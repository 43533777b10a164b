"""AOTInductor as an export target; torch is imported inside functions.

C++ sources are in a separate archive, without comments, which name folders of the machine.
"""

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from numpy.typing import NDArray
from safetensors import safe_open
from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.errors import KvcastError, UsageError
from kvcast.families.base import Interface
from kvcast.machine.resources import instruction_sets
from kvcast.runtimes.lowering.activations import smooth
from kvcast.runtimes.native.bundles import constants_of
from kvcast.runtimes.reference import EagerReference, Reference
from kvcast.runtimes.self_test import (
    SelfTestResult,
    compile_tiny,
    double_on_torch,
    find_compiler,
    versions,
)
from kvcast.runtimes.target import BuildOptions, Lowered, LoweringJob, Stored, StoredValues, Target
from kvcast.spec.runtimes import BundlePrecision


class AotiTarget(Target):
    needs: tuple[str, ...] = ("torch",)
    tools: tuple[str, ...] = ("torch",)

    @override
    def check_build(self, precision: BundlePrecision, build: BuildOptions) -> None:
        if build.device == "cuda":
            _check_cuda(precision)
        if find_compiler() is None:
            raise KvcastError("compiling needs g++: install it, or use --runtime onnx")
        if precision.quantize == "int4":
            from kvcast.runtimes.native.build import open_library

            open_library()  # whose kernels int4 programs call

    @override
    def lower(self, job: LoweringJob, folder: Path) -> Lowered:
        from kvcast.runtimes.aoti import lowering as aoti
        from kvcast.runtimes.aoti.precision import Precision

        family, precision = job.family, job.precision
        if family.precision.smoothed and precision.quantize == "int8":
            job.on_phase("quantising")
            self._smooth(job)
        compiled = Precision(dtype=precision.dtype, quantize=precision.quantize)
        graphs = aoti.lower(
            job.signatures(),
            compiled,
            folder,
            device=job.build.device,
            max_autotune=job.build.max_autotune,
            on_phase=job.on_phase,
            blocks_of=job.blocks_of,
        )
        return graphs, aoti.cache_layers(family.caches(job.dimensions), compiled)

    def _smooth(self, job: LoweringJob) -> None:
        weights = {name: tensor.numpy() for name, tensor in job.programs().weights.items()}
        for name, array in smooth(job.write_programs()["decode"], weights, self.reference(job)):
            weights[name][...] = array

    @override
    def reference(self, job: LoweringJob) -> Reference:
        return EagerReference(job.programs())

    @override
    def read_stored(
        self, folder: Path, manifest: Manifest, shapes: Mapping[str, tuple[int, ...]]
    ) -> Stored:
        return read_stored(folder, manifest, shapes)

    @override
    def self_test(self) -> SelfTestResult:
        installed = versions("torch", "safetensors")
        double_on_torch()
        import torch.export.pt2_archive._package  # noqa: F401 - opens packages

        try:
            return SelfTestResult(versions=installed | compile_tiny())
        except KvcastError as error:
            return SelfTestResult(versions=installed, no_export=str(error))

    @override
    def processor(self) -> tuple[str, ...]:
        return instruction_sets()

    @override
    def open(self, family: str, folder: Path, manifest: Manifest, threads: int) -> Any:
        if missing := set(manifest.processor) - set(instruction_sets()):
            raise KvcastError(
                f"{folder} was compiled for a processor with {min(missing)}, which this one lacks: "
                "export the model here"
            )
        return super().open(family, folder, manifest, threads)

    @override
    def runtimes(self) -> Mapping[Interface, Any]:
        from kvcast.runtimes.aoti.runtime import AotiDecoderOnly, AotiEncoderDecoder, AotiPrefix

        return {
            "decoder-only": AotiDecoderOnly,
            "encoder-decoder": AotiEncoderDecoder,
            "prefix": AotiPrefix,
        }


def _check_cuda(precision: BundlePrecision) -> None:
    if precision.quantize != "none":
        raise UsageError(
            f"{precision.quantize} matrices run on the CPU only: "
            "add --quantize none --dtype bf16, or drop --device cuda"
        )
    import torch

    if not torch.cuda.is_available():
        raise UsageError(
            "--device cuda needs a CUDA device and there is none here: export on the machine that "
            "has one, or drop it"
        )


SOURCES = "aoti/sources.zip"
_MADE = (1980, 1, 1, 0, 0, 0)  # ZIP's first day: a fixed date makes equal archives equal bytes
_LONGEST = 1 << 28
"""The most bytes of a program's C++; that of a model with 100 layers has a tenth of it."""


def write_sources(folder: Path, files: Mapping[str, Sequence[str]]) -> None:
    """Archive the `.cpp` files among Inductor's output, by program, under a bundle's folder."""
    with zipfile.ZipFile(folder / SOURCES, "w", zipfile.ZIP_DEFLATED) as archive:
        for program, paths in files.items():
            record = zipfile.ZipInfo(f"{program}.cpp", _MADE)
            record.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(record, "".join(map(_code, paths)))


def _code(path: str) -> str:
    if not path.endswith(".cpp"):
        return ""
    lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith("//"))


def read_sources(package: Path, program: str) -> str:
    """Return a program's C++, from the archive or the package; raises KvcastError if missing."""
    places = (package.parents[1] / SOURCES, package)
    for path in filter(Path.is_file, places):
        try:
            with zipfile.ZipFile(path) as archive:
                if code := "".join(_members(archive, program)):
                    return code
        except (OSError, zipfile.BadZipFile, UnicodeDecodeError, NotImplementedError):
            raise KvcastError(f"{path} cannot be read; export it again") from None
    raise KvcastError(
        f"{package} was exported without the C++ of its programs, from which traffic is read: "
        "export it again"
    )


def _members(archive: zipfile.ZipFile, program: str) -> Iterator[str]:
    for record in archive.infolist():
        path = PurePosixPath(record.filename)
        is_own = path.parent.name == program or path.name == f"{program}.cpp"
        if is_own and path.suffix == ".cpp" and record.file_size <= _LONGEST:
            yield archive.read(record).decode()


WEIGHTS, PREFIX = "aoti/weights.safetensors", "results.program."
_ROUNDED = re.compile(r"_b?float16(?=\.(?:weight|bias)$)")


def read_stored(folder: Path, manifest: Manifest, shapes: Mapping[str, tuple[int, ...]]) -> Stored:
    if manifest.quantize == "int8":
        return Stored()
    file = safe_open(folder / WEIGHTS, framework="pt")  # NumPy has no bfloat16
    names = {own_name(name): name for name in file.keys()}  # type: ignore[no-untyped-call] # noqa: SIM118

    def read(name: str) -> NDArray[Any]:
        tensor = file.get_tensor(name)  # type: ignore[no-untyped-call]
        array: NDArray[Any] = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        return array

    constants = constants_of(read, names, shapes)
    rounded = {own_name(name) for name in names.values() if _ROUNDED.search(name)}
    return Stored(
        constants={
            name: partial(_rounded, of) if name in rounded else of for name, of in constants.items()
        }
    )


def own_name(name: str) -> str:
    """Return a tensor's name in programs, without the dtype of narrower ones."""
    return _ROUNDED.sub("", name.removeprefix(PREFIX))


def _rounded(read: Callable[[], StoredValues]) -> StoredValues:
    return replace(read(), bits=16)
