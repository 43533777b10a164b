"""kvcast's own interpreter as an export target, without torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.bundle.manifest import Manifest
from kvcast.checkpoints.base import Checkpoint
from kvcast.families.base import Interface
from kvcast.families.table import family_of
from kvcast.runtimes.reference import EagerReference, Reference, has_torch
from kvcast.runtimes.self_test import SelfTestResult, compile_tiny
from kvcast.runtimes.target import Lowered, LoweringJob, Stored, Target
from kvcast.spec.runtimes import BundlePrecision, OnPhase, ignore_phase


class NativeTarget(Target):
    needs: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()

    @override
    def lower(self, job: LoweringJob, folder: Path) -> Lowered:
        from kvcast.runtimes.native.bundles import cache_layers, lower

        graphs = lower(
            job.write_programs(),
            job.checkpoint.tensors,
            job.family.constants(job.dimensions, job.checkpoint.tensors),
            job.precision,
            folder,
            job.on_phase,
            job.blocks_of,
        )
        return graphs, cache_layers(job.family, job.dimensions, job.precision)

    @override
    def reference(self, job: LoweringJob) -> Reference:
        from kvcast.runtimes.native.library import PLAIN

        # Neither shares kernels with the bundle; plain C++ takes minutes for a large encoder.
        return EagerReference(job.programs()) if has_torch() else job.reference(PLAIN)

    @override
    def self_test(self) -> SelfTestResult:
        from kvcast.runtimes.native.build import check_compiler, find_library
        from kvcast.runtimes.native.library import chosen_isa

        if find_library() is None:  # the first use compiles it; a test takes no such time
            check_compiler()
            return SelfTestResult(versions=compile_tiny())
        return SelfTestResult(versions={"instructions": chosen_isa()})

    @override
    def suits_machine(self, on_phase: OnPhase) -> bool:
        from kvcast.runtimes.native.build import is_there
        from kvcast.runtimes.native.library import instruction_sets

        # The plain set, of any processor, is no faster than other runtimes.
        return is_there(lambda: on_phase("compiling kernels")) and len(instruction_sets()) > 1

    @override
    def runtimes(self) -> Mapping[Interface, Any]:
        from kvcast.runtimes.native.runtime import (
            NativeEncoderDecoder,
            NativePrefix,
            NativeRuntime,
            NativeTextEncoder,
        )

        return {
            "decoder-only": NativeRuntime,
            "encoder-decoder": NativeEncoderDecoder,
            "prefix": NativePrefix,
            "encoder": NativeTextEncoder,
        }

    @override
    def open(self, family: str, folder: Path, manifest: Manifest, threads: int) -> Any:
        from kvcast.runtimes.native.bundles import open_bundle

        interpreter = open_bundle(folder, manifest, threads)
        return self.runtimes()[family_of(family).interface](manifest, interpreter)

    @override
    def read_stored(
        self, folder: Path, manifest: Manifest, shapes: Mapping[str, tuple[int, ...]]
    ) -> Stored:
        from kvcast.runtimes.native.bundles import read_stored

        return read_stored(folder, manifest, shapes)

    @override
    def open_checkpoint(
        self,
        checkpoint: Checkpoint,
        precision: BundlePrecision,
        threads: int,
        on_phase: OnPhase = ignore_phase,
    ) -> Any:
        from kvcast.runtimes.native.bundles import open_checkpoint

        manifest, interpreter = open_checkpoint(checkpoint, precision, threads, on_phase=on_phase)
        return self.runtimes()[checkpoint.family.interface](manifest, interpreter)
