"""Bundles of random models for ExecuTorch. Lowering takes 10 s a model: once a run each."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from decoding.letters import VOCAB
from kvcast.bundle.manifest import Manifest, read_bundle
from kvcast.bundle.packages import describe_packages
from kvcast.bundle.writing import seal, staged
from kvcast.tasks.families import family_of
from kvcast.tasks.targets import TARGETS
from kvcast.tasks.targets.base import BuildOptions, BundlePrecision, LoweringJob
from random_decoders import MISTRAL, random_decoder
from random_models import CROSS_BIASED_T5, SMALL, SMALL_T5, random_programs, random_t5_programs
from random_unilms import ROFORMER, random_unilm
from shared import once

NEEDED = "ExecuTorch is not installed: pip install executorch==1.5.1"
SPECIAL_TOKENS = {
    "start_tokens": [3, 1, 4],
    "end_tokens": [7, 9],
    "language_tokens": [],
    "suppressed_tokens": [5, 6, 11],
    "blank_tokens": [8, 7],
}
WHISPER = replace(SMALL, encoder_layers=1, decoder_layers=2, vocab_size=2000)
# A ring and a linear cache side by side.
MIXED = replace(MISTRAL, windows=(7, None), vocab_size=VOCAB)
MODELS: Mapping[str, tuple[str, Callable[[], Any]]] = {
    "whisper": ("whisper", lambda: random_programs(WHISPER)),
    "t5": (
        "t5",
        lambda: random_t5_programs(replace(SMALL_T5, heads=2, encoder_layers=1, decoder_layers=2)),
    ),
    "cross-biased t5": (
        "t5",
        lambda: random_t5_programs(
            replace(CROSS_BIASED_T5, heads=2, encoder_layers=1, decoder_layers=1)
        ),
    ),
    "decoder": ("decoder", lambda: random_decoder(MIXED)),
    "unilm": ("unilm", lambda: random_unilm(replace(ROFORMER, layers=2))),
}


@dataclass(frozen=True)
class Exported:
    """A bundle, opened, and the same model in eager."""

    folder: Path
    manifest: Manifest
    runtime: Any
    eager: Any

    @property
    def file(self) -> Path:
        return self.folder / "executorch" / "model.pte"


def lowering(name: str) -> ModuleType:
    """The module `kvcast.lowering.executorch_<name>`, or a skipped test."""
    pytest.importorskip("executorch", reason=NEEDED)
    return __import__(f"kvcast.lowering.executorch_{name}", fromlist=["lower"])


@cache
def exported(name: str, quantize: str = "none") -> Exported:
    """Lower and seal one of MODELS, without the proof that `kvcast.export_bundle` adds."""
    pytest.importorskip("executorch", reason=NEEDED)
    family, programs = MODELS[name][0], MODELS[name][1]()
    job = LoweringJob(
        family=family,
        programs=programs,
        precision=BundlePrecision(quantize=quantize),
        build=BuildOptions(),
        special_tokens=SPECIAL_TOKENS,
    )
    folder = once(f"executorch-{name}-{quantize}", lambda path: _write(job, path))
    manifest = read_bundle(folder)
    runtime = TARGETS["executorch"].open(family, folder, manifest, 1)
    return Exported(folder, manifest, runtime, family_of(family).eager(programs))


def _write(job: LoweringJob, folder: Path) -> None:
    with staged(folder, overwrite=False) as staging:
        graphs, layers = TARGETS["executorch"].lower(job, staging)
        manifest = Manifest(
            family=job.family,
            runtime="executorch",
            quantize=job.precision.quantize,
            dimensions=asdict(job.programs.dimensions),
            cache=layers,
            graphs=graphs,
            source={},
            tools={},
        )
        describe_packages(staging, manifest)
        seal(staging, manifest)
