"""ONNX Runtime as a target. torch is imported inside functions, as opening a bundle needs none.

Knows no checkpoint.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.bundle.manifest import Graph, Manifest
from kvcast.errors import UsageError
from kvcast.runtimes.self_test import SelfTestResult, double_on_onnx, versions
from kvcast.runtimes.target import (
    BuildOptions,
    Lowered,
    LoweringJob,
    Target,
)
from kvcast.spec.runtimes import BundlePrecision


class OnnxTarget(Target):
    """ONNX Runtime."""

    tools: tuple[str, ...] = ("onnxruntime", "onnx")

    @override
    def check_build(self, precision: BundlePrecision, build: BuildOptions) -> None:
        pass  # whatever exports to it can build it

    @override
    def lower(self, job: LoweringJob, folder: Path) -> Lowered:
        from kvcast.families.caches import CACHES

        graphs = _LOWERINGS[job.family](job, folder)
        layers = CACHES[job.family](job.programs.dimensions)
        dtype = {"fp32": "float32", "int8": "int8"}[job.precision.cache]
        return graphs, tuple(replace(layer, dtype=dtype) for layer in layers)

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
        from kvcast.runtimes.onnx.runtime import OnnxEncoderDecoder, OnnxRuntime
        from kvcast.runtimes.onnx.unilm import OnnxUnilm

        runtimes = {"decoder": OnnxRuntime, "unilm": OnnxUnilm}
        return runtimes.get(family, OnnxEncoderDecoder)(folder, manifest, threads)


def _whisper(job: LoweringJob, folder: Path) -> dict[str, Graph]:
    _refuse_int8_cache("Whisper", job.precision)
    from kvcast.runtimes.onnx.lower_whisper import lower

    sizes, quantize = job.programs.dimensions, job.precision.quantize
    return lower(job.signatures(), sizes, quantize, folder, job.on_phase)


def _t5(job: LoweringJob, folder: Path) -> dict[str, Graph]:
    _refuse_int8_cache("T5", job.precision)
    from kvcast.runtimes.onnx.lower_t5 import lower

    return lower(job.programs, job.precision.quantize, folder, job.on_phase)


def _decoder(job: LoweringJob, folder: Path) -> dict[str, Graph]:
    from kvcast.runtimes.onnx.lower_decoder import lower

    precision = job.precision
    return lower(
        job.programs, precision.quantize, precision.cache, folder, job.on_phase, job.blocks_of
    )


def _unilm(job: LoweringJob, folder: Path) -> dict[str, Graph]:
    from kvcast.runtimes.onnx.lower_unilm import lower

    precision = job.precision
    return lower(job.programs, precision.quantize, precision.cache, folder, job.on_phase)


def _refuse_int8_cache(family: str, precision: BundlePrecision) -> None:
    if precision.cache != "fp32":
        raise UsageError(f"{family} keeps its self cache in fp32: drop --cache {precision.cache}")


_LOWERINGS: Mapping[str, Callable[[LoweringJob, Path], dict[str, Graph]]] = {
    "whisper": _whisper,
    "t5": _t5,
    "decoder": _decoder,
    "unilm": _unilm,
}
