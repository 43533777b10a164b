"""The arithmetic that every step needs, over rows of fp32 logits, and its definition in NumPy.

NumPy computes it where there is no native library; `kvcast.decoding.kernels` has the same in
C++. Knows no meaning of tokens.
"""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.decoding.truncation import Distribution
from kvcast.runtimes.base import Float32, Int64

_BLOCKS = 64


class Survey(NamedTuple):
    """The likeliest tokens of some rows.

    Attributes:
        tokens_rk: best first, of equals the first.
        logits_rk: of these tokens.
        log_sums_r: log(sum(exp(row))); -inf for a row of nothing but -inf. All numbers of a row
            with NaN or infinity are NaN, its tokens any.

    """

    tokens_rk: NDArray[np.signedinteger]
    logits_rk: Float32
    log_sums_r: Float32


class Penalties(NamedTuple):
    """Penalties on tokens that a row has seen.

    Attributes:
        repetition: divides positive logits, and multiplies negative ones, of all tokens seen.
        presence: taken off once for each token written.
        frequency: taken off as often as the token was written.

    """

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0


class TimestampTokens(NamedTuple):
    """Whisper's timestamps: the tokens from `begin` to before `end`.

    Attributes:
        begin: text is below `eot`,
        end: and, where a fine-tune has added some, from `end` on.
        eot: ends a text.
        no_timestamps: never comes.

    """

    begin: int
    end: int
    eot: int
    no_timestamps: int


class Arithmetic(Protocol):
    """Arithmetic over rows of logits. A row's results depend on that row alone."""

    def survey(self, logits_rv: Float32, k: int, *, sums: bool = True) -> Survey:
        """Survey rows of 1 logit or more; 0 <= k <= vocab. Without `sums` there are none."""

    def draw(self, logits_v: Float32, distribution: Distribution, number: float) -> int | None:
        """Draw a token by inverting the cumulated probabilities; None for a row without numbers.

        `number` is random, 0 or more and below 1.
        """

    def penalise(self, logits_rv: Float32, tokens_rn: Int64, penalties: Penalties) -> None:
        """Apply penalties in place, for the tokens [rows, n] that each row has seen."""

    def apply_timestamp_rules(
        self, logits_rv: Float32, written_rn: Int64, timestamps: TimestampTokens
    ) -> None:
        """Apply the rules of Whisper's timestamps to rows that have written n >= 1 tokens.

        They come in pairs and never go back, and one is due where all of them together outweigh the
        likeliest token of text.
        """


class NumpyArithmetic(Arithmetic):
    """The definitions. Each makes as few passes over the vocabulary as it can."""

    @override
    def survey(self, logits_rv: Float32, k: int, *, sums: bool = True) -> Survey:
        tokens_rk = top_k(logits_rv, k) if k else np.empty((len(logits_rv), 0), np.intp)
        logits_rk: Float32 = np.take_along_axis(logits_rv, tokens_rk, axis=1)
        peaks_r = logits_rv.max(axis=1)
        odd_r = np.isnan(peaks_r) | np.isposinf(peaks_r)
        logits_rk[odd_r] = np.nan
        if not sums:
            return Survey(tokens_rk, logits_rk, np.empty(0, np.float32))
        bases_r = np.where(np.isfinite(peaks_r), peaks_r, np.float32(0))
        with np.errstate(divide="ignore", over="ignore"):
            log_sums_r: Float32 = np.log(np.exp(logits_rv - bases_r[:, None]).sum(axis=1)) + bases_r
        log_sums_r[odd_r] = np.nan
        return Survey(tokens_rk, logits_rk, log_sums_r)

    @override
    def draw(self, logits_v: Float32, distribution: Distribution, number: float) -> int | None:
        return distribution.draw(logits_v, number) if np.isfinite(logits_v.max()) else None

    @override
    def penalise(self, logits_rv: Float32, tokens_rn: Int64, penalties: Penalties) -> None:
        if penalties.repetition != 1:
            scores_rn = np.take_along_axis(logits_rv, tokens_rn, axis=1)
            # One that was seen twice is changed twice, to the same value.
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
        self, logits_rv: Float32, written_rn: Int64, timestamps: TimestampTokens
    ) -> None:
        begin, end, eot, no_timestamps = timestamps
        logits_rv[:, no_timestamps] = -np.inf
        is_timestamp_rn = (written_rn >= begin) & (written_rn < end)
        last = written_rn.shape[1] - 1
        latest_r = last - is_timestamp_rn[:, ::-1].argmax(axis=1)
        for row, at in enumerate(latest_r.tolist()):
            row_v, latest = logits_rv[row], int(written_rn[row, at])
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
            [total] = self.survey(row_v[None, begin:end], 0).log_sums_r
            if total > np.maximum(row_v[:begin].max(), row_v[end:].max(initial=-np.inf)):
                row_v[:begin] = -np.inf
                row_v[end:] = -np.inf


def top_k(logits_rv: Float32, k: int) -> NDArray[np.intp]:
    """Return the indices of each row's k largest values, [rows, k], largest first.

    Of equal values the lower index comes first; of a row with NaN they are any. The k-th largest
    of the maxima of disjoint blocks bounds the k-th largest value from below, so one pass leaves a
    handful of candidates to sort.
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
