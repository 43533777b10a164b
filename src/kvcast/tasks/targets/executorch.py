"""ExecuTorch as a target. torch is imported inside functions."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.errors import KvcastError
from kvcast.spec.runtimes import BundlePrecision
from kvcast.tasks.targets.base import (
    BuildOptions,
    Lowered,
    LoweringJob,
    Target,
)
from kvcast.tasks.targets.self_test import SelfTestResult, versions


class ExecutorchTarget(Target):
    """ExecuTorch: one file that also runs on phones and embedded devices."""

    tools: tuple[str, ...] = ("executorch",)

    @override
    def check_build(self, precision: BundlePrecision, build: BuildOptions) -> None:
        if find_spec("executorch") is None:
            raise KvcastError(
                "exporting to ExecuTorch needs it installed: pip install 'kvcast[executorch]'"
            )

    @override
    def lower(self, job: LoweringJob, folder: Path) -> Lowered:
        job.on_phase("exporting")
        lower, layers = _LOWERINGS[job.family](job.programs.dimensions)
        graphs = lower(job.programs, layers, job.precision.quantize, folder, job.special_tokens)
        return graphs, tuple(layers)

    @override
    def self_test(self) -> SelfTestResult:
        found = versions("executorch", "torch")
        from kvcast.runtimes.executorch_methods import open_runtime

        if "XnnpackBackend" not in open_runtime().backend_registry.registered_backend_names:
            raise KvcastError("this ExecuTorch lacks XNNPACK: pip install 'kvcast[executorch]'")
        return SelfTestResult(versions=found)

    @override
    def processor(self) -> tuple[str, ...]:
        return ()

    @override
    def open(self, family: str, folder: Path, manifest: Manifest, threads: int) -> Any:
        from kvcast.runtimes.executorch import ExecutorchEncoderDecoder
        from kvcast.runtimes.executorch_decoder import ExecutorchDecoderOnly
        from kvcast.runtimes.executorch_unilm import ExecutorchUnilm

        runtimes = {"decoder": ExecutorchDecoderOnly, "unilm": ExecutorchUnilm}
        return runtimes.get(family, ExecutorchEncoderDecoder)(folder, manifest, threads)


def _whisper(dimensions: Any) -> tuple[Callable[..., Any], Sequence[Any]]:
    from kvcast.lowering import executorch_whisper, onnx_whisper

    return executorch_whisper.lower, onnx_whisper.cache_layers(dimensions)


def _t5(dimensions: Any) -> tuple[Callable[..., Any], Sequence[Any]]:
    from kvcast.lowering import executorch_t5

    return executorch_t5.lower, executorch_t5.bounded_layers(dimensions)


def _decoder(dimensions: Any) -> tuple[Callable[..., Any], Sequence[Any]]:
    from kvcast.lowering import executorch_decoder, onnx_decoder

    return executorch_decoder.lower, onnx_decoder.cache_layers(dimensions)


def _unilm(dimensions: Any) -> tuple[Callable[..., Any], Sequence[Any]]:
    from kvcast.lowering import executorch_unilm, onnx_decoder

    return executorch_unilm.lower, onnx_decoder.cache_layers(dimensions)


_LOWERINGS: Mapping[str, Callable[[Any], tuple[Callable[..., Any], Sequence[Any]]]] = {
    "whisper": _whisper,
    "t5": _t5,
    "decoder": _decoder,
    "unilm": _unilm,
}
