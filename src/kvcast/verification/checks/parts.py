"""Checks that name a culprit: a dimension, a tensor of the files, an operation, a layer's cache."""

import numpy as np

from kvcast.verification.checks.beside_reference import NOBODY_KNOWS
from kvcast.verification.culprits import checks
from kvcast.verification.culprits.layers import run_both
from kvcast.verification.report import Check
from kvcast.verification.trial import Trial, skipped

_NO_FILES = "the model was opened from its checkpoint: there is no bundle"
_LAYERS = "layers"


def dimensions(trial: Trial) -> Check:
    """Compare the manifest's dimensions with the checkpoint's."""
    if trial.files is None or trial.files.checkpoint is None:
        return skipped(checks.DIMENSIONS, NOBODY_KNOWS if trial.files else _NO_FILES)
    return checks.dimensions(trial.dimensions, trial.files.checkpoint)


def weights(trial: Trial) -> Check:
    """Compare constants in the bundle's files with the checkpoint's."""
    if trial.files is None:
        return skipped(checks.WEIGHTS, _NO_FILES)
    return checks.weights(
        trial.files.stored, trial.files.expected, calibrated=trial.files.calibrated
    )


def programs(trial: Trial) -> Check:
    """Compare programs in the bundle's files with those of its dimensions."""
    if trial.files is None:
        return skipped(checks.PROGRAMS, _NO_FILES)
    return checks.programs(trial.files.stored, trial.files.written)


def layers(trial: Trial) -> Check:
    """Compare caches with the reference's, layer by layer."""
    reference = None if trial.oracle is None else trial.oracle.runtime
    if trial.oracle is None or reference is None:
        return skipped(_LAYERS, NOBODY_KNOWS)
    case = trial.cases[0]
    text = trial.oracle.text(0, trial.steps(case), np.random.default_rng(trial.seed))
    run = run_both(
        trial.driver.runtime,
        reference,
        trial.layers,
        case.source,
        text.tokens,
        len(case.prompt_s),
    )
    allowed, exact = trial.tolerance.layers
    return checks.layers(run, allowed, exact=exact)
