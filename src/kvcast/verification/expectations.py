"""What a model should compute: logits of a reference, whole or the largest of them.

Errors are in units of the logits' standard deviation, so that they mean the same for all models.
Knows no runtime.

Letters in shapes: n positions, v logits, k logits that are known.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from kvcast.loading.proof import log_sum_exp
from kvcast.runtimes.base import Float32, Int64

_LEAST_DEVIATION = 1e-6


@dataclass(frozen=True)
class Errors:
    """Errors of logits by position, in standard deviations of the expected ones."""

    largest_n: Float32
    mean_n: Float32

    @property
    def largest(self) -> float:
        """The largest; NaN where a logit is none."""
        return float(self.largest_n.max(initial=0))

    @property
    def mean(self) -> float:
        """The mean over all positions."""
        return float(self.mean_n.mean()) if len(self.mean_n) else 0.0


class Expected(ABC):
    """The expected logits of consecutive positions."""

    deviation: float

    @abstractmethod
    def __len__(self) -> int:
        """Return how many positions are known."""

    @abstractmethod
    def errors(self, logits_nv: Float32) -> Errors:
        """Compare the logits of as many positions, or of more, whose rest is not looked at."""

    @abstractmethod
    def best(self, position: int) -> int:
        """Return the likeliest token."""

    @abstractmethod
    def margin(self, position: int, token: int) -> float:
        """Return by how much the likeliest token's logit is above that of another, at least."""


class WholeLogits(Expected):
    """All logits [n, v], or the same columns of all of them as what they are compared with."""

    def __init__(self, logits_nv: Float32) -> None:
        """Take logits, which are finite."""
        self.logits_nv = logits_nv
        self.deviation = max(float(logits_nv.std(axis=-1).mean()), _LEAST_DEVIATION)

    def part(self, start: int, stop: int) -> "WholeLogits":
        """Return the logits of some positions, whose deviation is that of all."""
        return self.like(self.logits_nv[start:stop])

    def like(self, logits_nv: Float32) -> "WholeLogits":
        """Return other logits of the same model, whose errors are in the same unit."""
        other = WholeLogits(logits_nv)
        other.deviation = self.deviation
        return other

    @override
    def __len__(self) -> int:
        return len(self.logits_nv)

    @override
    def errors(self, logits_nv: Float32) -> Errors:
        return errors_of(logits_nv[: len(self)], self.logits_nv, self.deviation)

    @override
    def best(self, position: int) -> int:
        return int(self.logits_nv[position].argmax())

    @override
    def margin(self, position: int, token: int) -> float:
        logits_v = self.logits_nv[position]
        return float(logits_v.max() - logits_v[token])


@dataclass(frozen=True)
class TopLogits(Expected):
    """The largest logits [n, k] of tokens [n, k], descending, and log-sum-exps [n] of all."""

    tokens_nk: Int64
    logits_nk: Float32
    sums_n: Float32
    deviation: float

    @override
    def __len__(self) -> int:
        return len(self.sums_n)

    @override
    def errors(self, logits_nv: Float32) -> Errors:
        logits_nv = logits_nv[: len(self)]
        known_nk = np.take_along_axis(logits_nv, self.tokens_nk, axis=-1)
        got = np.concatenate([known_nk, log_sum_exp(logits_nv)[:, None]], axis=-1)
        want = np.concatenate([self.logits_nk, self.sums_n[:, None]], axis=-1)
        return errors_of(got, want, self.deviation)

    @override
    def best(self, position: int) -> int:
        return int(self.tokens_nk[position, 0])

    @override
    def margin(self, position: int, token: int) -> float:
        logits_k = self.logits_nk[position]
        known = logits_k[self.tokens_nk[position] == token]
        return float(logits_k[0] - (known[0] if len(known) else logits_k[-1]))


def errors_of(got_nv: Float32, want_nv: Float32, deviation: float) -> Errors:
    """Return the errors of logits; what is not finite is infinitely wrong."""
    with np.errstate(invalid="ignore", over="ignore"):
        off_nv = np.abs(got_nv - want_nv) / deviation
    off_nv = np.where(np.isnan(off_nv), np.inf, off_nv)
    return Errors(off_nv.max(axis=-1), off_nv.mean(axis=-1))
