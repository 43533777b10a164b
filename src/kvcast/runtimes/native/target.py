"""kvcast's own interpreter as a target. torch is imported inside functions, as opening needs none.

Knows no checkpoint.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.families.base import Interface
from kvcast.families.table import family_of
from kvcast.runtimes.self_test import SelfTestResult, compile_tiny
from kvcast.runtimes.target import BuildOptions, Lowered, LoweringJob, Target
from kvcast.spec.phases import OnPhase
from kvcast.spec.runtimes import BundlePrecision

_DTYPES = {"fp32": "float32", "fp16": "float16", "int8": "int8"}


class NativeTarget(Target):
    """kvcast's own kernels."""

    tools: tuple[str, ...] = ()

    @override
    def check_build(self, precision: BundlePrecision, build: BuildOptions) -> None:
        pass  # whatever exports to it can build it

    @override
    def lower(self, job: LoweringJob, folder: Path) -> Lowered:
        from kvcast.runtimes.native.lowering import lower

        quantize = job.precision.quantize
        graphs = lower(job.signatures(), quantize, folder, job.on_phase, job.blocks_of)
        layers = family_of(job.family).caches(job.programs.dimensions)
        dtype = _DTYPES[job.precision.cache]
        return graphs, tuple(replace(layer, dtype=dtype) for layer in layers)

    @override
    def self_test(self) -> SelfTestResult:
        from kvcast.runtimes.native.build import check_compiler, find_library
        from kvcast.runtimes.native.library import chosen_instructions

        if find_library() is None:  # the first use compiles it; a test takes no such time
            check_compiler()
            return SelfTestResult(versions=compile_tiny())
        return SelfTestResult(versions={"instructions": chosen_instructions()})

    @override
    def processor(self) -> tuple[str, ...]:
        return ()

    @override
    def suits_machine(self, on_phase: OnPhase) -> bool:
        from kvcast.runtimes.native.build import is_there
        from kvcast.runtimes.native.library import instruction_sets

        # The plain set, of any processor, is no faster than other runtimes.
        return is_there(lambda: on_phase("compiling kernels")) and len(instruction_sets()) > 1

    @override
    def runtimes(self) -> Mapping[Interface, Any]:
        from kvcast.runtimes.native.prefix import NativePrefix
        from kvcast.runtimes.native.runtime import NativeEncoderDecoder, NativeRuntime

        return {
            "decoder-only": NativeRuntime,
            "encoder-decoder": NativeEncoderDecoder,
            "prefix": NativePrefix,
        }
