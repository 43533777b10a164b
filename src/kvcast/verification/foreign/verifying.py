"""Verifies a decoder that another tool exported, against a checkpoint."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.checkpoints.source import locate, open_checkpoint, read_dimensions
from kvcast.errors import KvcastError, UsageError
from kvcast.families.table import family_with
from kvcast.loading.components import programs_of
from kvcast.machine.resources import available_cores
from kvcast.runtimes.reference import Reference, reference_of
from kvcast.spec.runtimes import OnPhase, ignore_phase
from kvcast.verification.cases import Case, Driver, cases_of
from kvcast.verification.foreign.base import ForeignModel, ForeignRuntime
from kvcast.verification.foreign.checks import CHECKS, ForeignTrial
from kvcast.verification.foreign.readers import open_foreign
from kvcast.verification.references import CheckpointOracle
from kvcast.verification.report import Report
from kvcast.verification.trial import tolerance_of
from kvcast.verification.verifying import made, tools_with

_PROMPT = 8
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def verify_foreign(
    folder: Path,
    *,
    against: str | None = None,
    threads: int | None = None,
    trust: bool = False,
    positions: int = 512,
    seed: int = 0,
    on_phase: OnPhase = ignore_phase,
) -> Report:
    """Compare an exported decoder with a checkpoint and with itself, and report its steps' copies.

    Args:
        folder: of optimum, onnxruntime-genai or optimum-executorch.
        against: the source checkpoint; None: the folder's own, if it has one.
        threads: of the runtime; None: as many as there are cores.
        trust: whether native code in the folder is run.
        positions: of the longest text, if the decoder takes so many.
        seed: of sampled texts.
        on_phase: called with each check as it begins.

    Raises UsageError if `against` is another model, KvcastError if a model cannot be opened.

    """
    reopen = partial(open_foreign, folder, threads or available_cores(), trust=trust)
    model = reopen()
    reference = _reference(folder, against, model, on_phase)
    trial = _trial(folder, model, reference, reopen, positions, seed)
    checks = []
    for name, check in CHECKS.items():
        on_phase(f"checking: {name}")
        checks.append(made(name, check, trial))
    nobody = "none: the model beside itself"
    return Report(
        subject=str(folder),
        runtime=f"{model.runtime}, exported by {model.exporter}",
        precision=_words(model),
        reference=nobody if trial.oracle is None else trial.oracle.name,
        checks=checks,
        tools=tools_with(model.tools),
    )


def _reference(
    folder: Path, against: str | None, model: ForeignModel, on_phase: OnPhase
) -> Reference | None:
    beside = folder if any((folder / name).is_file() for name in _WEIGHTS) else None
    place = beside if against is None else locate(against, on_phase)
    if place is None:
        return None
    checkpoint = open_checkpoint(place)
    dimensions = checkpoint.dimensions
    encodes = family_with(dimensions).interface == "encoder-decoder"
    vocab = dimensions.vocab_size
    if encodes != bool(model.encoder) or (model.vocab_size and model.vocab_size != vocab):
        raise UsageError(
            f"{place} is another model than {folder}: it has {vocab} tokens and "
            f"{'an' if encodes else 'no'} encoder"
        )
    return reference_of(checkpoint, partial(programs_of, checkpoint), on_phase)


def _trial(
    folder: Path,
    model: ForeignModel,
    reference: Reference | None,
    reopen: Callable[[], ForeignModel],
    positions: int,
    seed: int,
) -> ForeignTrial:
    dimensions = _dimensions(folder, reference)
    most = positions if dimensions is None else family_with(dimensions).positions(dimensions)
    most = min(most, model.capacity or most)
    vocab = model.vocab_size or (0 if dimensions is None else dimensions.vocab_size)
    if not vocab:
        raise KvcastError(f"{folder} does not say how many tokens there are: give --against")
    cases = _cases(model, dimensions, vocab, most)
    driver = Driver(
        runtime=ForeignRuntime(model),
        vocab=vocab,
        positions=most,
        one_by_one=not model.takes_chunks,
        same_lengths=True,
        most_rows=model.most_rows,
        refuses=False,
    )
    return ForeignTrial(
        driver=driver,
        dimensions=dimensions,
        layers=(),
        cases=cases,
        tolerance=tolerance_of(model.runtime, model.precision),
        positions=positions,
        seed=seed,
        oracle=None if reference is None else CheckpointOracle(reference, cases),
        recorded=None,
        model=model,
        reopen=reopen,
    )


def _dimensions(folder: Path, reference: Reference | None) -> Any:
    """Return the checkpoint's dimensions, or a configuration's."""
    if reference is not None:
        return reference.dimensions
    return read_dimensions(folder) if (folder / "config.json").is_file() else None


def _cases(model: ForeignModel, dimensions: Any, vocab: int, most: int) -> Sequence[Case]:
    """Return prompts, cut to half of the positions."""
    if dimensions is not None:
        cases = cases_of(family_with(dimensions).probe(dimensions))
    elif model.encoder:
        raise KvcastError("an encoder's input depends on its model: give --against")
    else:
        generator = np.random.default_rng(0)
        cases = [Case(generator.integers(0, vocab, _PROMPT)) for _ in range(2)]
    longest = max(most // 2, 1)
    return [Case(case.prompt_s[:longest], case.source) for case in cases]


def _words(model: ForeignModel) -> str:
    precision = model.precision
    weights = "" if precision.quantize == "none" else f"{precision.quantize} weights"
    return ", ".join(filter(None, [weights, precision.dtype]))
