"""AOTInductor as a target. torch is imported inside functions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.bundle.manifest import CacheLayers, Manifest
from kvcast.errors import KvcastError, UsageError
from kvcast.runtimes.cores import instruction_sets
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

    @override
    def lower(self, job: LoweringJob, folder: Path) -> Lowered:
        from kvcast.lowering import aoti
        from kvcast.lowering.aoti_precision import Precision
        from kvcast.lowering.smoothing import smooth

        programs, precision = job.programs, job.precision
        if (job.family, precision.quantize) == ("decoder", "int8"):
            job.on_phase("quantising")
            smooth(programs)
        compiled = Precision(dtype=precision.dtype, quantize=precision.quantize)
        signatures, layers = _SIGNATURES[job.family](programs)
        graphs = aoti.lower(
            signatures,
            compiled,
            folder,
            device=job.build.device,
            max_autotune=job.build.max_autotune,
            on_phase=job.on_phase,
        )
        return graphs, aoti.cache_layers(layers, compiled)

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


# Programs with their signatures (kvcast.lowering.signatures), and the layout of their caches.
_Signatures = tuple[Any, tuple[CacheLayers, ...]]


def _whisper(programs: Any) -> _Signatures:
    from kvcast.lowering import onnx_whisper, signatures

    return signatures.whisper(programs), onnx_whisper.cache_layers(programs.dimensions)


def _t5(programs: Any) -> _Signatures:
    from kvcast.lowering import onnx_t5, signatures

    return signatures.t5(programs), onnx_t5.cache_layers(programs.dimensions)


def _decoder(programs: Any) -> _Signatures:
    from kvcast.lowering import onnx_decoder, signatures

    layers = onnx_decoder.cache_layers(programs.dimensions)
    return signatures.decoder(programs, layers), layers


def _unilm(programs: Any) -> _Signatures:
    from kvcast.lowering import onnx_decoder, signatures

    layers = onnx_decoder.cache_layers(programs.dimensions)
    return signatures.unilm(programs, layers), layers


_SIGNATURES: Mapping[str, Callable[[Any], _Signatures]] = {
    "whisper": _whisper,
    "t5": _t5,
    "decoder": _decoder,
    "unilm": _unilm,
}
