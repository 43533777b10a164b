"""ExecuTorch as an export target; torch is imported inside functions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.families.base import Interface
from kvcast.runtimes.reference import EagerReference, Reference
from kvcast.runtimes.self_test import SelfTestResult, versions
from kvcast.runtimes.target import Lowered, LoweringJob, Target


class ExecutorchTarget(Target):
    needs: tuple[str, ...] = ("torch", "executorch")
    tools: tuple[str, ...] = ("torch", "executorch")

    @override
    def lower(self, job: LoweringJob, folder: Path) -> Lowered:
        from kvcast.runtimes.executorch.lowering import lower

        return lower(
            job.family,
            job.signatures(),
            job.dimensions,
            job.precision.quantize,
            folder,
            job.special_tokens,
            job.on_phase,
        )

    @override
    def reference(self, job: LoweringJob) -> Reference:
        return EagerReference(job.programs())

    @override
    def self_test(self) -> SelfTestResult:
        installed = versions("executorch", "torch")
        from kvcast.runtimes.executorch.methods import open_runtime

        if "XnnpackBackend" not in open_runtime().backend_registry.registered_backend_names:
            raise KvcastError("this ExecuTorch lacks XNNPACK: pip install 'kvcast[executorch]'")
        return SelfTestResult(versions=installed)

    @override
    def runtimes(self) -> Mapping[Interface, Any]:
        from kvcast.runtimes.executorch.runtime import (
            ExecutorchEncoderDecoder,
            ExecutorchPrefix,
            ExecutorchRuntime,
        )

        return {
            "decoder-only": ExecutorchRuntime,
            "encoder-decoder": ExecutorchEncoderDecoder,
            "prefix": ExecutorchPrefix,
        }
