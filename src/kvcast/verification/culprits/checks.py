"""Checks that name a culprit: a tensor of the files, an operation of a program, a layer's cache."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.target import Stored
from kvcast.spec.program import Program
from kvcast.verification.culprits.layers import Run, culprit
from kvcast.verification.culprits.tensors import difference, program_differences
from kvcast.verification.report import Check

DIMENSIONS, WEIGHTS, PROGRAMS, LAYERS = "dimensions", "weights", "programs", "layers"
CALIBRATED_BITS = 4
_UNKNOWN = "nobody knows what the bundle's tensors should be: name its checkpoint with --against"
_MOST = 3
"""As many culprits are named."""


def dimensions(bundle: Any, checkpoint: Any) -> Check:
    """Compare dimensions of a bundle and its checkpoint, except for names of architectures."""
    has, wanted = (dict(_fields(asdict(each))) for each in (bundle, checkpoint))
    wrong = {
        name: [has.get(name), wanted.get(name)]
        for name in sorted(has.keys() | wanted.keys())
        if name != "architecture" and has.get(name) != wanted.get(name)
    }
    if wrong:
        words = [f"{name} is {is_}, not {was}" for name, (is_, was) in wrong.items()]
        return Check(
            name=DIMENSIONS,
            outcome="failed",
            detail=f"{_some(words)} as in the checkpoint",
            measured={"wrong": wrong},
        )
    detail = f"{len(has)} dimensions are the checkpoint's"
    return Check(
        name=DIMENSIONS, outcome="passed", detail=detail, measured={"dimensions": len(has)}
    )


def weights(
    stored: Stored, expected: Mapping[str, NDArray[np.generic]], *, calibrated: bool = False
) -> Check:
    """Compare a bundle's constants with a checkpoint's, which are read on lookup.

    Calibrated int4 codes are not the nearest, so these are not compared.
    """
    if not stored.constants:
        return Check(
            name=WEIGHTS, outcome="skipped", detail="the runtime's files cannot be read by tensor"
        )
    wrong, compared = {}, 0
    for name in sorted(stored.constants.keys() & expected.keys()):
        values = stored.constants[name]()
        if calibrated and values.bits == CALIBRATED_BITS:
            continue
        compared += 1
        if words := difference(name, values, expected[name]):
            wrong[name] = words
    if not compared:
        return Check(name=WEIGHTS, outcome="skipped", detail=_UNKNOWN)
    if not wrong:
        detail = f"{compared} tensors are the checkpoint's, but for rounding to codes"
        return Check(name=WEIGHTS, outcome="passed", detail=detail, measured={"tensors": compared})
    return Check(
        name=WEIGHTS,
        outcome="failed",
        detail=_some([f"{name}: {words}" for name, words in wrong.items()]),
        measured={"tensors": compared, "wrong": wrong},
    )


def programs(stored: Stored, expected: Mapping[str, Program]) -> Check:
    """Compare programs in files with those that the family writes from the dimensions."""
    known = sorted(stored.programs.keys() & expected.keys())
    found = {name: program_differences(stored.programs[name], expected[name]) for name in known}
    wrong = [words for several in found.values() for words in several or ()]
    if wrong:
        return Check(
            name=PROGRAMS, outcome="failed", detail=_some(wrong), measured={"wrong": wrong}
        )
    same = [name for name in known if found[name] is not None]
    if not same:
        why = "were written by another version" if known else "cannot be read by operation"
        return Check(name=PROGRAMS, outcome="skipped", detail=f"the bundle's programs {why}")
    steps = sum(len(expected[name].steps) for name in same)
    detail = f"{steps} operations of {' and '.join(same)} are those of the model's dimensions"
    return Check(name=PROGRAMS, outcome="passed", detail=detail, measured={"operations": steps})


def layers(run: Run, tolerance: float, *, exact: bool) -> Check:
    """Compare the caches of both models, layer by layer, by relative difference.

    More than `tolerance` is an error if `exact`; quantized weights make differences grow from layer
    to layer, so then only values that are not finite are.
    """
    if not run.tensors:
        return Check(name=LAYERS, outcome="skipped", detail="no cache holds numbers")
    errors = {tensor.place: float(tensor.errors_p().max()) for tensor in run.tensors}
    largest = max(errors.values(), default=0.0)
    measured = {"tolerance": tolerance, "largest": largest, "by_tensor": errors}
    if words := culprit(run, tolerance if exact else np.finfo(np.float64).max):
        return Check(name=LAYERS, outcome="failed", detail=words, measured=measured)
    detail = f"{len(errors)} cached tensors differ from the reference's by up to {largest:.2g}"
    return Check(name=LAYERS, outcome="passed", detail=detail, measured=measured)


def _fields(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield values of nested dimensions by their names."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{before}{name}.")
        else:
            yield before + name, value


def _some(words: list[str]) -> str:
    return "; ".join(words[:_MOST]) + (
        f"; and {len(words) - _MOST} more" if len(words) > _MOST else ""
    )
