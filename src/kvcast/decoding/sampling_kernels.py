"""Sampling and penalties over rows of fp32 logits, in NumPy: the native kernels' reference.

Definitions and order of truncations (temperature, top-k, top-p, min-p, each on the output of the
previous) are those of Hugging Face transformers (generation/logits_process.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.runtimes.base import Float32, Int64

_BLOCKS = 64


class TopTokens(NamedTuple):
    """The likeliest tokens of rows; `log_sums_r` is log(sum(exp(row))).

    That is -inf for a row of only -inf; a row with NaN or infinity has only NaN, and any tokens.
    """

    tokens_rk: NDArray[np.signedinteger]
    logits_rk: Float32
    log_sums_r: Float32


class Penalties(NamedTuple):
    repetition: float = 1.0  # divides positive and multiplies negative logits
    presence: float = 0.0
    frequency: float = 0.0  # subtracted once per occurrence


class TimestampTokens(NamedTuple):
    """Whisper's timestamps from `begin` to before `end`; text is below `eot` or from `end` on."""

    begin: int
    end: int
    eot: int
    no_timestamps: int


def top_k(logits_rv: Float32, k: int) -> NDArray[np.intp]:
    """Return the indices of each row's k largest values, [rows, k], largest first.

    Ties go to the lower index; a row with NaN gives arbitrary ones. The k-th largest of the maxima
    of disjoint blocks is a lower bound, so one pass leaves few candidates to sort.
    """
    rows, vocab = logits_rv.shape
    width = vocab // _BLOCKS
    blocks = logits_rv[:, : _BLOCKS * width].reshape(rows, _BLOCKS, width)
    peaks_rb = np.concatenate(
        [blocks.max(axis=1, initial=-np.inf), logits_rv[:, _BLOCKS * width :]], axis=1
    )
    left_out = np.zeros(logits_rv.shape, np.bool_)
    if k <= peaks_rb.shape[1]:
        peaks_rb.partition(-k, axis=1)
        np.less(logits_rv, peaks_rb[:, -k, None], out=left_out)
    row_c, index_c = np.divmod(np.flatnonzero(~left_out), vocab)
    order = np.lexsort((-logits_rv[row_c, index_c], row_c))
    firsts_r = np.searchsorted(row_c, np.arange(rows))
    best_rk: NDArray[np.intp] = index_c[order[firsts_r[:, None] + np.arange(k)]]
    return best_rk


class Truncation(Protocol):
    """A rule that drops unlikely tokens, but never all."""

    def keeps(self, logits_c: Float32) -> NDArray[np.bool_]:
        """Return a mask of the remaining logits [candidates] that may be drawn."""


@dataclass(frozen=True)
class Distribution:
    """The distribution from which a token is drawn, with temperature above 0."""

    temperature: float
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0

    @cached_property
    def divisor(self) -> float:
        return min(max(self.temperature, _COLDEST), _HOTTEST)

    @cached_property
    def truncations(self) -> Sequence[Truncation]:
        rules: list[Truncation] = [] if self.top_k is None else [TopK(self.top_k)]
        if self.top_p != 1:
            rules.append(TopP(self.top_p))
        if self.min_p != 0:
            rules.append(MinP(self.min_p))
        return rules

    def draw(self, logits_v: Float32, uniform: float) -> int:
        """Draw a token; the greatest logit is finite, and none is NaN."""
        # The peak is taken off first, so that it stays finite however cold it is.
        logits_c = (logits_v - logits_v.max()) / np.float32(self.divisor)
        tokens_c = np.arange(logits_c.size)
        for truncation in self.truncations:
            kept_c = truncation.keeps(logits_c)
            logits_c, tokens_c = logits_c[kept_c], tokens_c[kept_c]
        return int(tokens_c[draw(logits_c, uniform)])


class SamplingKernels(Protocol):
    """Functions over rows of logits. A row's results depend on that row alone."""

    def top_tokens(self, logits_rv: Float32, k: int, *, sums: bool = True) -> TopTokens:
        """Return each row's k most likely tokens, 0 <= k <= vocab, and log-sum-exps if `sums`."""

    def draw(self, logits_v: Float32, distribution: Distribution, uniform: float) -> int | None:
        """Draw a token by inverse CDF with `uniform` in [0, 1); None for a row with NaN."""

    def penalise(self, logits_rv: Float32, tokens_rn: Int64, penalties: Penalties) -> None:
        """Apply penalties in place, for the tokens [rows, n] that each row has seen."""

    def apply_timestamp_rules(
        self, logits_rv: Float32, generated_rn: Int64, timestamps: TimestampTokens
    ) -> None:
        """Apply Whisper's timestamp rules to rows with n >= 1 generated tokens.

        Timestamps come in pairs and never decrease, and one is forced where their total probability
        exceeds that of the likeliest text token.
        """


class NumpyKernels(SamplingKernels):
    """The reference, in as few passes over the vocabulary as possible."""

    @override
    def top_tokens(self, logits_rv: Float32, k: int, *, sums: bool = True) -> TopTokens:
        tokens_rk = top_k(logits_rv, k) if k else np.empty((len(logits_rv), 0), np.intp)
        logits_rk: Float32 = np.take_along_axis(logits_rv, tokens_rk, axis=1)
        peaks_r = logits_rv.max(axis=1)
        odd_r = np.isnan(peaks_r) | np.isposinf(peaks_r)
        logits_rk[odd_r] = np.nan
        if not sums:
            return TopTokens(tokens_rk, logits_rk, np.empty(0, np.float32))
        bases_r = np.where(np.isfinite(peaks_r), peaks_r, np.float32(0))
        with np.errstate(divide="ignore", over="ignore"):
            log_sums_r: Float32 = np.log(np.exp(logits_rv - bases_r[:, None]).sum(axis=1)) + bases_r
        log_sums_r[odd_r] = np.nan
        return TopTokens(tokens_rk, logits_rk, log_sums_r)

    @override
    def draw(self, logits_v: Float32, distribution: Distribution, uniform: float) -> int | None:
        return distribution.draw(logits_v, uniform) if np.isfinite(logits_v.max()) else None

    @override
    def penalise(self, logits_rv: Float32, tokens_rn: Int64, penalties: Penalties) -> None:
        if penalties.repetition != 1:
            scores_rn = np.take_along_axis(logits_rv, tokens_rn, axis=1)
            # A token seen twice is assigned twice, to the same value.
            factor = penalties.repetition
            changed_rn = np.where(scores_rn < 0, scores_rn * factor, scores_rn / factor)
            np.put_along_axis(logits_rv, tokens_rn, changed_rn, axis=1)
        if penalties.presence or penalties.frequency:
            rows, vocab = logits_rv.shape
            places, counts = np.unique(
                tokens_rn + vocab * np.arange(rows)[:, None], return_counts=True
            )
            off = (penalties.presence + penalties.frequency * counts).astype(np.float32)
            logits_rv[places // vocab, places % vocab] -= off

    @override
    def apply_timestamp_rules(
        self, logits_rv: Float32, generated_rn: Int64, timestamps: TimestampTokens
    ) -> None:
        begin, end, eot, no_timestamps = timestamps
        logits_rv[:, no_timestamps] = -np.inf
        is_timestamp_rn = (generated_rn >= begin) & (generated_rn < end)
        last = generated_rn.shape[1] - 1
        latest_r = last - is_timestamp_rn[:, ::-1].argmax(axis=1)
        for row, at in enumerate(latest_r.tolist()):
            row_v, latest = logits_rv[row], int(generated_rn[row, at])
            if is_timestamp_rn[row, at]:
                opening = at == last and (last == 0 or is_timestamp_rn[row, last - 1])
                closing = at == last and not opening
                if opening:  # text must follow
                    row_v[begin:end] = -np.inf
                elif closing:  # the next segment's start must follow, or the end
                    row_v[:eot] = -np.inf
                    row_v[end:] = -np.inf
                # A segment may start where the last one ended, but must not end where it starts.
                row_v[begin : latest if closing else latest + 1] = -np.inf
            # A timestamp is due once all of them together outweigh the best single text token.
            [total] = self.top_tokens(row_v[None, begin:end], 0).log_sums_r
            if total > np.maximum(row_v[:begin].max(), row_v[end:].max(initial=-np.inf)):
                row_v[:begin] = -np.inf
                row_v[end:] = -np.inf


_COLDEST = 1e-30
_HOTTEST = 1e30
"""Below this a temperature would be zero, or overflow, in fp32; far above it all is greedy."""


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

    Of equally likely tokens at its border it includes the lower indices.
    """

    p: float

    @override
    def keeps(self, logits_c: Float32) -> NDArray[np.bool_]:
        kept_c = np.ones(logits_c.size, np.bool_)
        if self.p == 1:
            return kept_c
        weights_c = np.exp(logits_c - logits_c.max())
        total = weights_c.sum(dtype=np.float64)
        # Tokens below this sum to at most 1 - p: no need to sort them.
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


def draw(logits_c: Float32, uniform: float) -> int:
    """Draw an index from the softmax of the logits by inverse CDF, with `uniform` in [0, 1)."""
    cumulative = np.exp(logits_c - logits_c.max()).cumsum(dtype=np.float64)
    # Rounding must not carry a draw to the very end, past the last token that has any weight.
    point = min(uniform * cumulative[-1], np.nextafter(cumulative[-1], 0))
    return int(cumulative.searchsorted(point, side="right"))
