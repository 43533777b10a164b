"""kvcast with the recomputing programs instead of cached ones.

torch is imported inside functions.
"""

import hashlib
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.bundle.manifest import Manifest, read_bundle
from kvcast.bundle.writing import seal
from kvcast.checkpoints.base import Checkpoint
from kvcast.loading.components import model_of, programs_of, quantize_eager
from kvcast.runtimes.target import TARGETS, BuildOptions
from kvcast.spec.runtimes import BundlePrecision
from kvcast_bench.models import BenchModel
from kvcast_bench.peers.kvcast import EAGER, PRECISIONS, Kvcast


class Recomputing(Kvcast):
    """See `kvcast_bench.recompute`."""

    settings = "cross keys and values of every layer projected anew in every call"

    def __init__(self, model: BenchModel, runtime: str, precision: str) -> None:
        super().__init__(model, runtime, precision, f"{runtime}-{precision}-recompute")
        self.recomputes = True

    @override
    def files(self) -> Path:
        processor = ",".join(TARGETS[self.runtime].processor())
        made_for = hashlib.sha256(processor.encode()).hexdigest()[:8]
        label = "-".join(("recompute", self.runtime, self.precision, made_for))
        return self.model.made(label, self._lower, self.packages)

    @override
    def load(self) -> None:
        checkpoint = self.model.checkpoint()
        runtime = self._eager() if self.runtime == EAGER else self._exported()
        self.engine = model_of(runtime, checkpoint.dimensions, checkpoint.text)

    def _exported(self) -> Any:
        folder, target = self.files(), TARGETS[self.runtime]
        return target.open("whisper", folder, read_bundle(folder), self.model.threads)

    def _lower(self, folder: Path) -> None:
        write_bundle(self.model.checkpoint(), self.runtime, self.bundled, folder)

    def _eager(self) -> Any:
        from kvcast.runtimes.eager.runtime import eager_runtime, use_threads
        from kvcast_bench.recompute.programs import recomputing

        use_threads(self.model.threads)
        programs = recomputing(programs_of(self.model.checkpoint()), EAGER)
        if (quantize := PRECISIONS[self.precision]) != "none":
            quantize_eager(programs, quantize)
        return eager_runtime(programs)


def write_bundle(
    checkpoint: Checkpoint, runtime: str, precision: BundlePrecision, folder: Path
) -> None:
    """Lower the programs, made to recompute; the runtime opens `folder` as a Whisper's."""
    from kvcast_bench.recompute.programs import RecomputingJob, recomputing

    job = RecomputingJob(
        checkpoint=checkpoint,
        programs=cache(lambda: recomputing(programs_of(checkpoint), runtime)),
        precision=precision,
        build=BuildOptions(),
        special_tokens={},
    )
    graphs, layers = TARGETS[runtime].lower(job, folder)
    manifest = Manifest(
        family="whisper-recompute",
        runtime=runtime,
        quantize=precision.quantize,
        dtype=precision.dtype,
        processor=TARGETS[runtime].processor(),
        dimensions=asdict(checkpoint.dimensions),
        cache=layers,
        graphs=graphs,
        source={},
        tools={},
    )
    seal(folder, manifest)
