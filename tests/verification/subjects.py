"""Models under verification: random ones of every family, on any runtime."""

from pathlib import Path
from typing import Any

from kit.dimensions import (
    BERGAMOT,
    CANARY,
    CROSS_BIASED_T5,
    CTC,
    DSA,
    GEMMA3,
    GEMMA4,
    GPT_OSS,
    GRANITE4,
    KIMI,
    LFM2,
    LLAMA,
    MARIAN,
    MISTRAL,
    MIXTRAL,
    MOONSHINE,
    MOONSHINE_STREAMING,
    NLLB,
    QWEN3_5,
    QWEN3_ASR,
    ROFORMER,
    SIMBERT,
    SMALL,
    SMALL_T5,
    T5GEMMA,
    T5GEMMA2,
    TDT,
    VOXTRAL,
    YOUTU,
)
from kit.models import bundle, checkpoint_of, open_folder, random_programs, write
from kvcast.bundle.manifest import read_bundle
from kvcast.families.table import family_with
from kvcast.models.executor import TorchModel
from kvcast.runtimes.reference import EagerReference
from kvcast.runtimes.target import TARGETS
from kvcast.spec.runtimes import BundlePrecision
from kvcast.verification.references import files_of
from kvcast.verification.subject import Subject
from kvcast.verification.verifying import verify

FAMILIES = {
    **{"whisper": SMALL, "t5": SMALL_T5, "cross-biased t5": CROSS_BIASED_T5},
    **{
        "marian": MARIAN,
        "bergamot": BERGAMOT,
        "nllb": NLLB,
        "t5gemma": T5GEMMA,
        "t5gemma2": T5GEMMA2,
    },
    **{"moonshine": MOONSHINE, "streaming moonshine": MOONSHINE_STREAMING},
    **{"canary": CANARY, "ctc": CTC, "tdt": TDT, "qwen3-asr": QWEN3_ASR, "voxtral": VOXTRAL},
    **{"llama": LLAMA, "mistral": MISTRAL, "gemma3": GEMMA3, "gemma4": GEMMA4},
    **{"mixtral": MIXTRAL, "gpt-oss": GPT_OSS, "lfm2": LFM2, "qwen3.5": QWEN3_5},
    **{"youtu": YOUTU, "mistral_large4": DSA, "kimi": KIMI},
    **{"granite4": GRANITE4, "roformer": ROFORMER, "simbert": SIMBERT},
}
EXACT = BundlePrecision(quantize="none")
INT8 = BundlePrecision(quantize="int8", cache="fp16")
CACHE_CHECKS = (
    *("free-running", "chunks", "second-input", "batch", "rows-come-and-go"),
    *("capacity", "window", "beams", "prefix", "truncate"),
)


def subject(
    dimensions: Any,
    runtime: str = "native",
    precision: BundlePrecision = EXACT,
    seed: int = 0,
    folder: Any = None,
) -> Subject:
    """Return a random model, beside itself in fp32; a bundle is written into a folder."""
    programs = random_programs(dimensions, seed)
    if runtime == "eager":
        from kvcast.runtimes.eager.runtime import eager_runtime

        opened = eager_runtime(random_programs(dimensions, seed))
    elif folder is None:
        opened = TARGETS[runtime].open_checkpoint(checkpoint_of(programs), precision, 1)
    else:
        kinds = {"dtype": precision.dtype, "cache": precision.cache}
        write(programs, folder, precision.quantize, runtime, **kinds)
        return subject_of(folder, programs)
    return Subject(
        name="random",
        runtime_name=runtime,
        precision=precision,
        runtime=opened,
        dimensions=dimensions,
        layers=family_with(dimensions).caches(dimensions),
        reference=EagerReference(programs),
    )


def subject_of(folder: Path, programs: TorchModel) -> Subject:
    """Return a bundle, beside the model in fp32 that it was made of, or should have been."""
    manifest, checkpoint = read_bundle(folder), checkpoint_of(programs)
    return Subject(
        name="random",
        runtime_name=manifest.runtime,
        precision=manifest.precision,
        runtime=open_folder(folder),
        dimensions=programs.dimensions,
        layers=manifest.cache,
        reference=EagerReference(programs),
        files=files_of(folder, manifest, programs.dimensions, checkpoint),
    )


def failed(report: Any) -> dict[str, str]:
    """Return what a report says of the checks that failed, by name."""
    return {check.name: check.detail for check in report.checks if check.outcome == "failed"}


def outcomes(report: Any) -> dict[str, str]:
    """Return the outcomes by name."""
    return {check.name: check.outcome for check in report.checks}


def assert_caches_are_right(dimensions: Any, runtime: str) -> None:
    """Make the checks of caches, of the random model of these dimensions on a runtime."""
    if runtime == "eager":
        model = subject(dimensions, runtime)
    else:
        folder = bundle(dimensions, runtime=runtime)
        model = subject_of(folder, random_programs(dimensions))
    report = verify(model, positions=32, only=CACHE_CHECKS)
    assert failed(report) == {}
    made = [check.name for check in report.checks if check.outcome == "passed"]
    assert len(made) >= len(CACHE_CHECKS) - 2, "of windows and prefixes some models have none"
