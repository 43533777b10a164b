"""Verifies a model: makes all checks, in order."""

from collections.abc import Callable, Collection, Mapping
from importlib.metadata import version
from typing import TypeVar

from kvcast.errors import in_one_line
from kvcast.spec.runtimes import OnPhase, ignore_phase
from kvcast.verification.checks import CHECKS
from kvcast.verification.report import Check, Report
from kvcast.verification.subject import Subject
from kvcast.verification.trial import Trial

TrialT = TypeVar("TrialT", bound=Trial)


def verify(
    subject: Subject,
    *,
    positions: int = 512,
    seed: int = 0,
    only: Collection[str] = (),
    on_phase: OnPhase = ignore_phase,
) -> Report:
    """Compare a model's cached results with its results without a cache, and with a reference's.

    A check in which the runtime raises an error has failed; the others are made nevertheless. Texts
    have `positions`, if the model has that many; `on_phase` gets each check's name as it begins.
    """
    trial = subject.trial(positions=positions, seed=seed)
    oracle, checks = trial.oracle, []
    for name, check in CHECKS.items():
        if not only or name in only:
            on_phase(f"checking: {name}")
            checks.append(made(name, check, trial))
    return Report(
        subject=subject.name,
        runtime=subject.runtime_name,
        precision=subject.precision_words,
        reference="none: the model beside itself" if oracle is None else oracle.name,
        checks=checks,
        tools=tools_with(subject.tools),
    )


def made(name: str, check: Callable[[TrialT], Check], trial: TrialT) -> Check:
    """Run a check; one that raises an error has failed."""
    try:
        return check(trial)
    except Exception as error:  # a broken package may raise anything; the report has it
        detail = f"it could not be finished: {type(error).__name__}: {in_one_line(error)}"
        return Check(name=name, outcome="failed", detail=detail)


def tools_with(recorded: Mapping[str, str]) -> dict[str, str]:
    return {"kvcast": version("kvcast"), **recorded}
