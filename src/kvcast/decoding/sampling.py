"""Chooses one token from a row of logits: temperature, truncation, a draw.

Definitions and order are those of Hugging Face transformers (generation/logits_process.py), so
that results can be compared: temperature, top-k, top-p, min-p, after the penalties of
`kvcast.text.preferences`. Each truncation drops tokens from those before it,
so that later parts work on fewer numbers. Knows neither runtimes nor the meaning of tokens.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.decoding.numerics import top_k
from kvcast.decoding.params import SamplingParams
from kvcast.errors import KvcastError
from kvcast.runtimes.base import Float32

_NO_NUMBERS = "the model's logits are NaN or infinite: its weights are damaged"
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
        least = logits_c[top_k(logits_c[None], min(self.k, logits_c.size))[0, -1]]
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
        best_first = likely[np.argsort(-weights_c[likely], kind="stable")]
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


class Sampler:
    """Chooses the tokens of one sequence, from numbers that no other sequence draws."""

    def __init__(self, params: SamplingParams, stream: int = 0) -> None:
        """Begin a sequence; sequences of different streams draw different numbers."""
        self._temperature = params.temperature
        self._truncations = truncations(params)
        self._rng = np.random.default_rng((params.seed, stream))

    def __call__(self, logits_v: Float32) -> int:
        """Choose from logits [vocab], which are not changed.

        Raises KvcastError for logits that are NaN or infinite.
        """
        likeliest = likeliest_token(logits_v)
        if self._temperature == 0:
            return likeliest
        # The peak is taken off first, so that it stays finite however cold it is.
        temperature = np.clip(self._temperature, _COLDEST, _HOTTEST)
        logits_c = (logits_v - logits_v[likeliest]) / np.float32(temperature)
        tokens_c = np.arange(logits_c.size)
        for truncation in self._truncations:
            kept_c = truncation.keeps(logits_c)
            logits_c, tokens_c = logits_c[kept_c], tokens_c[kept_c]
        return int(tokens_c[draw(logits_c, self._rng.random())])


def likeliest_token(logits_v: Float32) -> int:
    """Return the likeliest token; raises KvcastError for logits that are NaN or infinite."""
    token = int(logits_v.argmax())
    if not math.isfinite(logits_v[token]):  # what argmax finds is NaN if anything is
        raise KvcastError(_NO_NUMBERS)
    return token


def check_numbers(logprobs: Float32) -> None:
    """Raise KvcastError if any of these log-probabilities, of any shape, is NaN."""
    if np.isnan(logprobs).any():
        raise KvcastError(_NO_NUMBERS)


def truncations(params: SamplingParams) -> list[Truncation]:
    """Return the truncations that have an effect, in the order in which they apply."""
    rules: list[Truncation] = [] if params.top_k is None else [TopK(params.top_k)]
    if params.top_p != 1:
        rules.append(TopP(params.top_p))
    if params.min_p != 0:
        rules.append(MinP(params.min_p))
    return rules


def draw(logits_c: Float32, number: float) -> int:
    """Draw an index with the probabilities of these logits, by inverting their cumulation.

    `number` is random, 0 or more and below 1.
    """
    cumulative = np.exp(logits_c - logits_c.max()).cumsum(dtype=np.float64)
    # Rounding must not carry a draw to the very end, past the last token that has any weight.
    point = min(number * cumulative[-1], np.nextafter(cumulative[-1], 0))
    return int(cumulative.searchsorted(point, side="right"))
