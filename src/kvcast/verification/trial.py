"""A model under verification: tolerances, the state that checks share, and their outcomes.

Errors are in standard deviations of a position's logits (`kvcast.verification.references`).
Two unrelated positions differ by 1.13 on average, whatever the model.

The bounds come from random models of all families, which exaggerate rounding, over several seeds,
and from the packaged models. kvcast's own kernels give the same bits in any batch. Where weights
are rounded, single logits of a random T5 are off by 3.5 deviations in int8 and the mean of all by
0.26; real models stay below a third of both. So means decide there, and the bounds of single logits
only catch values that are not finite or absurd.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from kvcast.bundle.manifest import Manifest
from kvcast.errors import KvcastError
from kvcast.families.base import PROBE_STEPS
from kvcast.families.programs import CacheLayers
from kvcast.runtimes.base import Float32
from kvcast.spec.recipes import RECIPE
from kvcast.spec.runtimes import BundlePrecision
from kvcast.verification.cases import ALL, Case, Columns, Driver, Text, columns_of
from kvcast.verification.diagnosis import Place, first_difference
from kvcast.verification.references import (
    Errors,
    Expected,
    Files,
    Oracle,
    RecordedOracle,
    WholeLogits,
)
from kvcast.verification.report import Check


@dataclass(frozen=True)
class Allowed:
    largest: float
    mean: float  # of all logits that are compared at a time
    # the mean is over all comparisons of a check: those of single positions are too noisy
    pooled: bool = False


@dataclass(frozen=True)
class Tolerance:
    """Allowed errors.

    Attributes:
        same: against the results of the same calls at another time; shows cache mistakes.
        own: against its results in another batch or chunking.
        reference: against the model in fp32. Mistakes with weights show there.
        layers: of cached tensors against the reference's, relative, and whether more is an error:
            with rounded values, differences grow from layer to layer.
        margin: of two tokens' logits, below which they are a near-tie, against the reference.
        far: as `reference`, for random texts to the end of a cache; None where rounding alone
            makes them as different as two unrelated positions.

    """

    same: Allowed
    own: Allowed
    reference: Allowed
    margin: float
    far: Allowed | None
    layers: tuple[float, bool] = (math.inf, False)


_EXACT = Allowed(1e-3, 1e-4)
"""Sums in another order."""
_IN_COMPANY = Allowed(6.0, 0.25, pooled=True)
"""Products of narrow values are summed in another order.

On ONNX Runtime in int8 single positions of random models are off by up to 0.97 on average, and all
positions of a check by up to 0.19 (T5) over 20 seeds, where an export routes to other experts too.
"""
_BESIDE_FP32 = Allowed(2e-3, 2e-4)
_CACHED = 2e-3
"""Of keys and values, relative to a head's; also sums in another order."""
_EIGHT_BITS, _FOUR_BITS = Allowed(8.0, 0.4), Allowed(8.0, 0.7)
"""Of the reference, by the bits of weights, activations or caches."""


def tolerance_of(runtime: str, precision: BundlePrecision) -> Tolerance:
    if precision.exact:
        margin = 2 * _BESIDE_FP32.largest
        return Tolerance(_EXACT, _EXACT, _BESIDE_FP32, margin, _BESIDE_FP32, (_CACHED, True))
    own = _EXACT if runtime in ("native", "eager") else _IN_COMPANY
    # Whisper tiny.en in int4, or with some matrices in it, parts by 1.3 and 0.6 after an end token.
    four = precision.quantize in ("int4", "8da4w", RECIPE)
    reference = _FOUR_BITS if four else _EIGHT_BITS
    far = None if four else reference
    return Tolerance(_EXACT, own, reference, 10 * reference.mean, far)


ROWS = 3
_EQUAL = 1e-3
"""An error that is rounding for sure."""
_MUCH_NEARER = 0.3
"""Logits are another's if their error against those is at most this share of the error."""


@dataclass(frozen=True, eq=False)
class Baseline:
    text: Text
    at_once: WholeLogits  # of all tokens at once, on an empty cache
    stepped: WholeLogits  # of one token after the other, alone in a fresh cache


@dataclass(kw_only=True, eq=False)
class Trial:
    driver: Driver
    dimensions: Any
    layers: Sequence[CacheLayers]
    cases: Sequence[Case]  # inputs of rows; one or more
    tolerance: Tolerance
    positions: int  # length of texts whose every position is compared, if the model has that many
    seed: int
    oracle: Oracle | None
    recorded: RecordedOracle | None
    files: Files | None = None  # None without a bundle
    # folder and manifest; None for a checkpoint that was opened directly
    bundle: tuple[Path, Manifest] | None = None

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def steps(self, case: Case) -> int:
        """Return how many tokens of a text can follow a prompt."""
        return min(PROBE_STEPS, self.driver.positions - len(case.prompt_s))

    @cached_property
    def baselines(self) -> Sequence[Baseline]:
        """Texts of several rows; the cases take turns."""
        generator, baselines = self.generator(), []
        for case in [self.cases[i % len(self.cases)] for i in range(ROWS)]:
            driver = self.fresh()
            sampled = driver.sampled(case, self.steps(case), generator)
            baselines.append(self.baseline(*sampled, driver=driver))
        return baselines

    @cached_property
    def together(self) -> Sequence[Baseline]:
        return self.baselines

    @cached_property
    def beside(self) -> Driver:
        """The model for results while a check is in the middle of its calls."""
        return self.driver

    def fresh(self) -> Driver:
        """Return the model, with memory that earlier calls have not used."""
        return self.driver

    def baseline(
        self,
        text: Text,
        stepped_nv: Float32 | None = None,
        columns: Columns = ALL,
        driver: Driver | None = None,
    ) -> Baseline:
        """Return a text with the model's own logits; raises KvcastError if not finite."""
        driver = driver or self.beside
        if stepped_nv is None:
            stepped_nv, _ = driver.stepped(text, columns)
        at_once_nv, _ = driver.at_once(text, columns)
        for logits_nv, how in ((at_once_nv, "all at once"), (stepped_nv, "one after the other")):
            if len(bad_n := np.flatnonzero(~np.isfinite(logits_nv).all(axis=-1))):
                raise KvcastError(
                    f"logits at position {text.first + bad_n[0]} are not finite: tokens {how} on "
                    "an empty cache"
                )
        return Baseline(text, WholeLogits(at_once_nv), WholeLogits(stepped_nv))

    @cached_property
    def windows(self) -> Sequence[int]:
        return sorted({layer.capacity for layer in self.layers if layer.kind == "ring"})

    @cached_property
    def columns(self) -> Columns:
        return columns_of(self.driver.vocab)

    @cached_property
    def long(self) -> Baseline:
        """A text that fills a cache to its end, with logits [n + 1, columns]."""
        case = self.cases[0]
        past = [2 * window + 8 for window in self.windows if window <= self.positions]
        least = len(case.prompt_s) + 1
        length = min(max(self.positions, least, *past), self.driver.positions)
        count = length - len(case.prompt_s)
        sampled = self.driver.sampled(case, count, self.generator(), self.columns)
        return self.baseline(*sampled, self.columns)

    def comparison(self, allowed: Allowed | None = None) -> "Comparison":
        return Comparison(allowed or self.tolerance.own)

    def place(self, text: Text, cache: Any, row: int, allowed: Allowed) -> Place | None:
        """Return where a row's cache differs from one computed at once; None if nowhere."""
        if not self.layers:
            return None
        _, own = self.driver.at_once(text)
        return first_difference(self.layers, (cache, row), (own, 0), len(text), allowed.largest)


Others: TypeAlias = Mapping[str, Callable[[], Expected]]
"""Results of possible mistakes, by a description of their source."""

CheckOf: TypeAlias = Callable[[Trial], Check]


@dataclass
class Comparison:
    """Compares logits that should be equal, one pair at a time, and keeps the first difference."""

    allowed: Allowed
    compared: int = 0
    problem: str = ""  # the first difference, in words
    where: str = ""  # its place, if known
    _doubt: str = ""
    _errors: list[Errors] = field(default_factory=list)

    def add(
        self,
        expected: Expected,
        logits_nv: Float32,
        about: str,
        first: int,
        place: Callable[[], Place | None] | None = None,
        others: Others | None = None,
    ) -> None:
        """Compare logits of consecutive positions, from `first` on; `about` describes them.

        Logits that are much nearer to some of `others` are wrong, whatever their error.
        """
        errors = expected.errors(logits_nv)
        self.compared += len(errors.largest_n)
        self._errors.append(errors)
        fits = self._fits(errors)
        if self.problem or (fits and (not others or errors.mean <= _EQUAL)):
            return
        problem = f"{about}: {self._described(errors, expected, logits_nv, first)}"
        cause = _instead(errors, logits_nv, others or {})
        if fits and not cause:
            return
        if self.allowed.pooled and errors.largest <= self.allowed.largest and not cause:
            self._doubt = self._doubt or problem
            return
        self.problem = problem + cause
        if place is not None and (found := place()) is not None:
            self.where = str(found)
            self.problem += f"; the first difference is in {found}"

    @property
    def measured(self) -> dict[str, Any]:
        """Return the errors: the largest and the mean of all, and of the worst comparison."""
        if not self._errors:
            return {}
        worst = max(self._errors, key=lambda errors: errors.largest)
        longest = max(self._errors, key=lambda errors: len(errors.largest_n))
        shown = longest if self._fits(worst) else worst
        return {
            "positions": self.compared,
            "largest_error": worst.largest,
            "mean_error": float(np.concatenate([e.mean_n for e in self._errors]).mean()),
            "allowed_largest": self.allowed.largest,
            "allowed_mean": self.allowed.mean,
            "largest_by_position": _round(shown.largest_n),
            "mean_by_position": _round(shown.mean_n),
            **({"place": self.where} if self.where else {}),
        }

    def check(self, name: str, passed: str, **measured: Any) -> Check:
        """Return the outcome; `passed` describes the comparison."""
        figures = self.measured | measured
        if figures.get("mean_error", 0.0) > self.allowed.mean:
            self.problem = self.problem or self._doubt
        if self.problem:
            return Check(name=name, outcome="failed", detail=self.problem, measured=figures)
        largest = figures.get("largest_error", 0.0)
        errors = f"errors up to {largest:.2g} (allowed {self.allowed.largest:g})"
        detail = f"{passed}; {errors if largest else 'the same bits'}"
        return Check(name=name, outcome="passed", detail=detail, measured=figures)

    def _fits(self, errors: Errors) -> bool:
        return errors.largest <= self.allowed.largest and errors.mean <= self.allowed.mean

    def _described(self, errors: Errors, expected: Expected, logits_nv: Float32, first: int) -> str:
        if not np.isfinite(errors.largest):
            at = first + int(np.flatnonzero(~np.isfinite(errors.largest_n))[0])
            return f"logits at position {at} are not finite"
        bad_n = np.flatnonzero(errors.largest_n > self.allowed.largest)
        # Where only the mean is too large, all positions are suspects.
        start = int(bad_n[0]) if len(bad_n) else int(errors.mean_n.argmax())
        words = (
            f"from position {first + start} on logits differ by up to {errors.largest:.2g} "
            f"standard deviations (allowed {self.allowed.largest:g}), on average by "
            f"{errors.mean:.2g} (allowed {self.allowed.mean:g})"
        )
        other = first_divergence(expected, logits_nv)
        if other is None:
            return words
        position, token, margin = other
        best = expected.best(position)
        return (
            f"{words}; the first other token is that after position {first + position}: {token} "
            f"instead of {best}, whose logit is higher by {margin:.2g}"
        )


def _instead(errors: Errors, logits_nv: Float32, others: Others) -> str:
    """Return whose logits they are, if they match another row or input; else empty."""
    found, least = "", errors.mean * _MUCH_NEARER
    for words, other in others.items():
        mean = other().errors(logits_nv).mean
        if mean <= least:
            found, least = f"; they are those of {words}", mean
    return found


def first_divergence(expected: Expected, logits_nv: Float32) -> tuple[int, int, float] | None:
    """Return the first position whose likeliest token is another one, that token, its margin."""
    for position, token in enumerate(logits_nv[: len(expected)].argmax(axis=-1).tolist()):
        if token != expected.best(position):
            return position, token, expected.margin(position, token)
    return None


def skipped(name: str, why: str) -> Check:
    return Check(name=name, outcome="skipped", detail=why)


def _round(values_n: Float32) -> list[float]:
    return [float(f"{number:.3g}") for number in values_n.tolist()]
