"""ONNX Runtime as an export target, without torch."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.errors import KvcastError
from kvcast.families.base import Interface
from kvcast.runtimes.reference import check_reference
from kvcast.runtimes.self_test import SelfTestResult, double_on_onnx, versions
from kvcast.runtimes.target import BuildOptions, Lowered, LoweringJob, Stored, Target
from kvcast.spec.runtimes import BundlePrecision, OnPhase


class OnnxTarget(Target):
    needs: tuple[str, ...] = ("onnx_ir", "onnxruntime")
    tools: tuple[str, ...] = ("onnxruntime", "onnx")

    @override
    def check_build(self, precision: BundlePrecision, build: BuildOptions) -> None:
        check_reference()

    @override
    def lower(self, job: LoweringJob, folder: Path) -> Lowered:
        from kvcast.runtimes.onnx.lowering import lower

        graphs = lower(job, folder)
        layers = job.family.caches(job.dimensions)
        dtype = {"fp32": "float32", "int8": "int8"}[job.precision.cache]
        return graphs, tuple(layer.of_dtype(dtype) for layer in layers)

    @override
    def self_test(self) -> SelfTestResult:
        installed = versions("onnxruntime")
        double_on_onnx()
        return SelfTestResult(versions=installed)

    @override
    def suits_machine(self, on_phase: OnPhase) -> bool:
        return _is_installed()

    @override
    def read_stored(
        self, folder: Path, manifest: Manifest, shapes: Mapping[str, tuple[int, ...]]
    ) -> Stored:
        if find_spec("onnx_ir") is None:  # what only runs bundles needs none
            return Stored()
        from kvcast.runtimes.onnx.lowering import read_stored

        return read_stored(folder, manifest, shapes)

    @override
    def runtimes(self) -> Mapping[Interface, Any]:
        _require_installed()
        from kvcast.runtimes.onnx.runtime import OnnxEncoderDecoder, OnnxPrefix, OnnxRuntime

        return {
            "decoder-only": OnnxRuntime,
            "encoder-decoder": OnnxEncoderDecoder,
            "prefix": OnnxPrefix,
        }


def _is_installed() -> bool:
    return find_spec("onnxruntime") is not None


def _require_installed() -> None:
    if not _is_installed():
        raise KvcastError("ONNX Runtime is not installed: pip install 'kvcast[onnx]'")
