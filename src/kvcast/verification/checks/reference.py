"""Checks against a reference (fp32 without a cache, or a record), and of a bundle's files."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kvcast.families.programs import ALIGNMENT_QUERIES
from kvcast.families.table import family_with
from kvcast.runtimes.base import Float32
from kvcast.verification.cases import Case, Text
from kvcast.verification.culprits import checks
from kvcast.verification.culprits.layers import run_both
from kvcast.verification.diagnosis import Place, first_difference
from kvcast.verification.references import Expected, errors_of
from kvcast.verification.report import Check, Outcome
from kvcast.verification.trial import Others, Trial, first_divergence, skipped

NOBODY_KNOWS = "there is no reference: name the model's checkpoint with --against"


def teacher_forced(trial: Trial) -> Check:
    """Compare logits after every token of texts that the reference generates."""
    name = "teacher-forced"
    if trial.oracle is None:
        return skipped(name, NOBODY_KNOWS)
    generator, oracle, driver = trial.generator(), trial.oracle, trial.driver
    comparison, divergences = trial.comparison(trial.tolerance.reference), []
    tokens = equal = 0
    for i, case in enumerate(trial.cases):
        text = oracle.text(i, trial.steps(case), generator)
        expected = oracle.expected(text)
        logits_nv, cache = driver.stepped(text, prompt=True)
        place = _beside(trial, text, cache)
        others = _of_other_inputs(trial, text, i)
        comparison.add(expected, logits_nv, f"input {i}", text.first, place, others)
        best_n = logits_nv[: len(expected)].argmax(axis=-1).tolist()
        tokens += len(best_n)
        equal += sum(token == expected.best(n) for n, token in enumerate(best_n))
        divergences.append(_divergence(trial, expected, logits_nv, text.first))
    found = next(filter(None, divergences), None)
    words = f"{equal} of {tokens} likeliest tokens are the reference's"
    if found is not None and not comparison.problem:
        words += f"; the first other one is a near-tie, {found['margin']:.2g} below"
    measured = {"tokens": tokens, "tokens_equal": equal, "first_divergence": found}
    return comparison.check(name, words, **measured)


def _of_other_inputs(trial: Trial, text: Text, i: int) -> Others:
    """Return the reference's logits of a text with the inputs of other cases."""
    oracle, prompt_s = trial.oracle, text.case.prompt_s
    if oracle is None or oracle.runtime is None or not text.case.source:
        return {}

    return {
        f"input {j}": partial(oracle.expected, Text(Case(prompt_s, other.source), text.generated_n))
        for j, other in enumerate(trial.cases)
        if j != i
    }


def free_running(trial: Trial) -> Check:
    """Generate greedily; each token must be the reference's, or a near-tie."""
    name = "free-running"
    if trial.oracle is None:
        return skipped(name, NOBODY_KNOWS)
    problem, first, tokens, equal, judged, furthest = "", None, 0, 0, 0, 0.0
    for i, case in enumerate(trial.cases):
        text, logits_nv = trial.driver.greedy(case, trial.steps(case))
        generated = text.generated_n.tolist()
        expected = trial.oracle.expected(text.with_tokens(generated[:-1]))
        known = min(len(expected), len(generated))
        tokens, judged = tokens + len(generated), judged + known
        if not np.isfinite(logits_nv).all():
            problem = problem or f"input {i}: the model's logits are not finite"
            continue
        for n, token in enumerate(generated[:known]):
            best = expected.best(n)
            equal += token == best
            if token == best:
                continue
            found = _described(trial, expected, n, token, text.first)
            first = first or {"input": i, **found}
            furthest = max(furthest, found["margin"] / expected.deviation)
            if not found["near_tie"]:
                problem = problem or (
                    f"input {i}: the token after position {found['position']} is {token} instead "
                    f"of {best}, whose logit is higher by {found['margin']:.2g}: no near-tie, "
                    f"which is up to {found['near_tie_below']:.2g}"
                )
                break
    measured = {
        "tokens": tokens,
        "tokens_judged": judged,
        "tokens_equal": equal,
        "largest_margin": furthest,
        "first_divergence": first,
    }
    words = f"{equal} of {judged} tokens are the reference's likeliest"
    if first is not None:
        words += (
            f"; the first other one, after position {first['position']}, is a near-tie: "
            f"{first['token']} for {first['expected']}, {first['margin']:.2g} below"
        )
    outcome: Outcome = "failed" if problem else "passed"
    return Check(name=name, outcome=outcome, detail=problem or words, measured=measured)


def recorded(trial: Trial) -> Check:
    """Compare a bundle with its results at its export."""
    name, known = "recorded", trial.recorded
    if known is None:
        return skipped(name, "no logits were recorded by an export")
    comparison = trial.comparison()
    for row, text in enumerate(known.texts):
        logits_nv, _ = trial.driver.stepped(text, prompt=True)
        comparison.add(known.exported(row), logits_nv, f"input {row}", text.first)
    return comparison.check(name, "logits are those that the export recorded of itself")


def alignment(trial: Trial) -> Check:
    name, driver = "alignment", trial.driver
    family = family_with(trial.dimensions)
    if ALIGNMENT_QUERIES not in family.programs(trial.dimensions)["decode"].outputs:
        return skipped(name, "the model has no alignment heads")
    largest, allowed = 0.0, trial.tolerance.reference.largest
    for case in trial.cases:
        known = None if trial.oracle is None else trial.oracle.align(case)
        if known is None:
            return skipped(name, NOBODY_KNOWS)
        expected_hst = known.scores_hst.copy()
        cache = driver.cache([case], len(case.prompt_s))
        scores_hst = driver.runtime.align(case.prompt_s, cache, 0).scores_hst
        deviation = float(expected_hst.std())
        ours, wanted = (part.reshape(len(part), -1) for part in (scores_hst, expected_hst))
        largest = max(largest, errors_of(ours, wanted, deviation).largest)
    words = f"scores of alignment heads are off by up to {largest:.2g} standard deviations"
    return Check(
        name=name,
        outcome="passed" if largest <= allowed else "failed",
        detail=f"{words} (allowed {allowed:g})",
        measured={"largest_error": largest, "allowed_largest": allowed},
    )


def _beside(trial: Trial, text: Text, cache: Any) -> Callable[[], Place | None]:
    """Return a function that finds the first place where a cache differs from the reference's."""

    def place() -> Place | None:
        own = trial.oracle.cache(text) if trial.oracle and trial.layers else None
        if own is None:
            return None
        allowed = trial.tolerance.reference.largest
        return first_difference(trial.layers, (cache, 0), (own, 0), len(text), allowed)

    return place


def _divergence(
    trial: Trial, expected: Expected, logits_nv: Float32, first: int
) -> dict[str, Any] | None:
    other = first_divergence(expected, logits_nv)
    return None if other is None else _described(trial, expected, other[0], other[1], first)


def _described(trial: Trial, expected: Expected, n: int, token: int, first: int) -> dict[str, Any]:
    """Describe a token that differs from the reference's; both logits may be off."""
    margin = expected.margin(n, token)
    bound = trial.tolerance.margin * expected.deviation
    return {
        "position": first + n,
        "token": token,
        "expected": expected.best(n),
        "margin": margin,
        "near_tie_below": bound,
        "near_tie": margin <= bound,
    }


_NO_FILES = "the model was opened from its checkpoint: there is no bundle"
_LAYERS = "layers"


def dimensions(trial: Trial) -> Check:
    if trial.files is None or trial.files.checkpoint is None:
        return skipped(checks.DIMENSIONS, NOBODY_KNOWS if trial.files else _NO_FILES)
    return checks.dimensions(trial.dimensions, trial.files.checkpoint)


def weights(trial: Trial) -> Check:
    if trial.files is None:
        return skipped(checks.WEIGHTS, _NO_FILES)
    return checks.weights(
        trial.files.stored, trial.files.expected, calibrated=trial.files.calibrated
    )


def programs(trial: Trial) -> Check:
    if trial.files is None:
        return skipped(checks.PROGRAMS, _NO_FILES)
    return checks.programs(trial.files.stored, trial.files.programs)


def layers(trial: Trial) -> Check:
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
