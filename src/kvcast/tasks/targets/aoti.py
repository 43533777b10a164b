"""AOTInductor as a target. torch is imported inside functions. Knows no checkpoint."""

from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.errors import KvcastError, UsageError
from kvcast.machine.processor import instruction_sets
from kvcast.spec.runtimes import BundlePrecision
from kvcast.tasks.targets.base import (
    BuildOptions,
    Lowered,
    LoweringJob,
    Target,
)
from kvcast.tasks.targets.self_test import (
    SelfTestResult,
    compile_tiny,
    double_on_torch,
    find_compiler,
    versions,
)


class AotiTarget(Target):
    """AOTInductor: native code for the machine that exports it."""

    tools: tuple[str, ...] = ()

    @override
    def check_build(self, precision: BundlePrecision, build: BuildOptions) -> None:
        if build.device == "cuda":
            _check_cuda(precision)
        if find_compiler() is None:
            raise KvcastError("compiling needs g++: install it, or use --runtime onnx")
        if precision.quantize == "int4":
            from kvcast.native.build import open_library

            open_library()  # whose kernels int4 programs call

    @override
    def lower(self, job: LoweringJob, folder: Path) -> Lowered:
        from kvcast.bundle.caches import CACHES
        from kvcast.lowering import aoti
        from kvcast.lowering.aoti_precision import Precision
        from kvcast.lowering.smoothing import smooth

        programs, precision = job.programs, job.precision
        if (job.family, precision.quantize) == ("decoder", "int8"):
            job.on_phase("quantising")
            smooth(programs)
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
        return graphs, aoti.cache_layers(CACHES[job.family](programs.dimensions), compiled)

    @override
    def self_test(self) -> SelfTestResult:
        found = versions("torch", "safetensors")
        double_on_torch()
        import torch.export.pt2_archive._package  # noqa: F401 - opens packages

        try:
            return SelfTestResult(versions=found | compile_tiny())
        except KvcastError as error:
            return SelfTestResult(versions=found, no_export=str(error))

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
        from kvcast.runtimes.aoti import AotiEncoderDecoder
        from kvcast.runtimes.aoti_decoder import AotiDecoderOnly
        from kvcast.runtimes.aoti_unilm import AotiUnilm

        runtimes = {"decoder": AotiDecoderOnly, "unilm": AotiUnilm}
        return runtimes.get(family, AotiEncoderDecoder)(folder, manifest, threads)


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
