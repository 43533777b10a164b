"""Distributions over tokens: temperature, truncations, and a draw, as NumPy computes them.

Definitions and order are those of Hugging Face transformers (generation/logits_process.py), so
that results can be compared: temperature, top-k, top-p, min-p. Each truncation drops tokens from
those before it, so that later parts work on fewer numbers. Knows no random numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.runtimes.base import Float32

_COLDEST = 1e-30
_HOTTEST = 1e30
"""Below this a temperature would be zero, or overflow, in fp32; far above it all is greedy."""


class Truncation(Protocol):
    """A rule that leaves out unlikely tokens, and never all of them."""

    def keeps(self, logits_c: Float32) -> NDArray[np.bool_]:
        """Tell for each of the remaining logits [candidates] whether it may be drawn."""


@dataclass(frozen=True)
class TopK(Truncation):
    """The k likeliest tokens, and tokens as likely as the last of them."""

    k: int

    @override
    def keeps(self, logits_c: Float32) -> NDArray[np.bool_]:
        k = min(self.k, logits_c.size)
        least = np.partition(logits_c, -k)[-k]
        kept_c: NDArray[np.bool_] = logits_c >= least
        return kept_c


@dataclass(frozen=True)
class TopP(Truncation):
    """The smallest set of likeliest tokens that reaches a probability (arXiv:1904.09751).

    Of equally likely ones at its border the lower indices belong to it.
    """

    p: float

    @override
    def keeps(self, logits_c: Float32) -> NDArray[np.bool_]:
        kept_c = np.ones(logits_c.size, np.bool_)
        if self.p == 1:
            return kept_c
        weights_c = np.exp(logits_c - logits_c.max())
        total = weights_c.sum(dtype=np.float64)
        # All that lies below this reaches 1 - p at most, together: no need to sort it.
        likely = np.flatnonzero(weights_c >= (1 - self.p) / logits_c.size * total)
        best_first = likely[np.argsort(-logits_c[likely], kind="stable")]
        reached = weights_c[best_first].cumsum(dtype=np.float64)
        before = np.concatenate([[0.0], reached[:-1]])
        kept_c[:] = False
        kept_c[best_first[before < self.p * total]] = True
        return kept_c


@dataclass(frozen=True)
class MinP(Truncation):
    """Tokens with at least this share of the likeliest token's probability (arXiv:2407.01082)."""

    share: float

    @override
    def keeps(self, logits_c: Float32) -> NDArray[np.bool_]:
        with np.errstate(divide="ignore"):
            least = logits_c.max() + np.log(np.float32(self.share))
        kept_c: NDArray[np.bool_] = logits_c >= least
        return kept_c


@dataclass(frozen=True)
class Distribution:
    """The distribution from which a token is drawn.

    Attributes:
        temperature: above 0.
        top_k: None is all tokens.
        top_p: 1 is all tokens.
        min_p: 0 is all tokens.

    """

    temperature: float
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0

    @cached_property
    def divisor(self) -> float:
        """The temperature, in the range of fp32."""
        return min(max(self.temperature, _COLDEST), _HOTTEST)

    @cached_property
    def truncations(self) -> Sequence[Truncation]:
        """The truncations that have an effect, in the order in which they apply."""
        rules: list[Truncation] = [] if self.top_k is None else [TopK(self.top_k)]
        if self.top_p != 1:
            rules.append(TopP(self.top_p))
        if self.min_p != 0:
            rules.append(MinP(self.min_p))
        return rules

    def draw(self, logits_v: Float32, number: float) -> int:
        """Draw a token; the greatest logit is finite, and none is NaN."""
        # The peak is taken off first, so that it stays finite however cold it is.
        logits_c = (logits_v - logits_v.max()) / np.float32(self.divisor)
        tokens_c = np.arange(logits_c.size)
        for truncation in self.truncations:
            kept_c = truncation.keeps(logits_c)
            logits_c, tokens_c = logits_c[kept_c], tokens_c[kept_c]
        return int(tokens_c[draw(logits_c, number)])


def draw(logits_c: Float32, number: float) -> int:
    """Draw an index with the probabilities of these logits, by inverting their cumulation.

    `number` is random, 0 or more and below 1.
    """
    cumulative = np.exp(logits_c - logits_c.max()).cumsum(dtype=np.float64)
    # Rounding must not carry a draw to the very end, past the last token that has any weight.
    point = min(number * cumulative[-1], np.nextafter(cumulative[-1], 0))
    return int(cumulative.searchsorted(point, side="right"))
