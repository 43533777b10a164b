"""AOTInductor as an export target; torch is imported inside functions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.errors import KvcastError, UsageError
from kvcast.families.base import Interface
from kvcast.machine.resources import instruction_sets
from kvcast.runtimes.lowering.activations import smooth
from kvcast.runtimes.reference import EagerReference, Reference
from kvcast.runtimes.self_test import (
    SelfTestResult,
    compile_tiny,
    double_on_torch,
    find_compiler,
    versions,
)
from kvcast.runtimes.target import BuildOptions, Lowered, LoweringJob, Stored, Target
from kvcast.spec.runtimes import BundlePrecision


class AotiTarget(Target):
    """AOTInductor: native code for the machine that exports it."""

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
        """Smooth the programs in place, so that the reference is smoothed, too."""
        weights = {name: tensor.numpy() for name, tensor in job.programs().weights.items()}
        for name, array in smooth(job.written()["decode"], weights, self.reference(job)):
            weights[name][...] = array

    @override
    def reference(self, job: LoweringJob) -> Reference:
        return EagerReference(job.programs())

    @override
    def read_stored(
        self, folder: Path, manifest: Manifest, shapes: Mapping[str, tuple[int, ...]]
    ) -> Stored:
        from kvcast.runtimes.aoti.package import read_stored

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
