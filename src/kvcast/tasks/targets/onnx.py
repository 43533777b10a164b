"""ONNX Runtime as a target. torch is imported inside functions, as opening a bundle needs none."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.errors import UsageError
from kvcast.spec.runtimes import BundlePrecision
from kvcast.tasks.targets.base import (
    BuildOptions,
    Lowered,
    LoweringJob,
    Target,
)
from kvcast.tasks.targets.self_test import SelfTestResult, double_on_onnx, versions


class OnnxTarget(Target):
    """ONNX Runtime."""

    tools: tuple[str, ...] = ("onnxruntime", "onnx")

    @override
    def check_build(self, precision: BundlePrecision, build: BuildOptions) -> None:
        pass  # whatever exports to it can build it

    @override
    def lower(self, job: LoweringJob, folder: Path) -> Lowered:
        job.on_phase("exporting")
        return _LOWERINGS[job.family](job.programs, job.precision, folder)

    @override
    def self_test(self) -> SelfTestResult:
        found = versions("onnxruntime")
        double_on_onnx()
        return SelfTestResult(versions=found)

    @override
    def processor(self) -> tuple[str, ...]:
        return ()

    @override
    def open(self, family: str, folder: Path, manifest: Manifest, threads: int) -> Any:
        from kvcast.runtimes.onnx import OnnxEncoderDecoder
        from kvcast.runtimes.onnx_decoder import OnnxDecoderOnly
        from kvcast.runtimes.onnx_unilm import OnnxUnilm

        runtimes = {"decoder": OnnxDecoderOnly, "unilm": OnnxUnilm}
        return runtimes.get(family, OnnxEncoderDecoder)(folder, manifest, threads)


def _whisper(programs: Any, precision: BundlePrecision, folder: Path) -> Lowered:
    _refuse_int8_cache("Whisper", precision)
    from kvcast.lowering.onnx_whisper import cache_layers, lower

    return lower(programs, precision.quantize, folder), cache_layers(programs.dimensions)


def _t5(programs: Any, precision: BundlePrecision, folder: Path) -> Lowered:
    _refuse_int8_cache("T5", precision)
    from kvcast.lowering.onnx_t5 import cache_layers, lower

    return lower(programs, precision.quantize, folder), cache_layers(programs.dimensions)


def _decoder(programs: Any, precision: BundlePrecision, folder: Path) -> Lowered:
    from kvcast.lowering.onnx_decoder import cache_layers, lower

    graphs = lower(programs, precision.quantize, folder, precision.cache)
    return graphs, cache_layers(programs.dimensions, precision.cache)


def _unilm(programs: Any, precision: BundlePrecision, folder: Path) -> Lowered:
    from kvcast.lowering.onnx_decoder import cache_layers
    from kvcast.lowering.onnx_unilm import lower

    graphs = lower(programs, precision.quantize, folder, precision.cache)
    return graphs, cache_layers(programs.dimensions, precision.cache)


def _refuse_int8_cache(family: str, precision: BundlePrecision) -> None:
    if precision.cache != "fp32":
        raise UsageError(f"{family} keeps its self cache in fp32: drop --cache {precision.cache}")


_LOWERINGS: Mapping[str, Callable[[Any, BundlePrecision, Path], Lowered]] = {
    "whisper": _whisper,
    "t5": _t5,
    "decoder": _decoder,
    "unilm": _unilm,
}
