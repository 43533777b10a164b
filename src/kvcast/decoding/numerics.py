"""The few pieces of arithmetic that every step needs, over rows of fp32 logits.

They run once per token over the whole vocabulary, so each makes as few passes as it can. Knows
no meaning of tokens.
"""

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.base import Float32

_BLOCKS = 64


def softmax(logits_rv: Float32) -> Float32:
    """Return probabilities [rows, vocab]; -inf becomes 0."""
    weights_rv: Float32 = np.exp(logits_rv - logits_rv.max(axis=1, keepdims=True))
    weights_rv /= weights_rv.sum(axis=1, keepdims=True)
    return weights_rv


def log_softmax(logits_rv: Float32) -> Float32:
    """Return the logits [rows, vocab] as log-probabilities; they are overwritten."""
    np.subtract(logits_rv, log_sum_exp(logits_rv)[:, None], out=logits_rv)
    return logits_rv


def log_probabilities(logits_rv: Float32, tokens_rk: NDArray[np.intp]) -> Float32:
    """Return the log-softmax of each row at its tokens, [rows, k].

    Every row needs a finite logit. The logits are overwritten: fresh memory of that size would
    cost as much as the exponentials.
    """
    chosen_rk: Float32 = logits_rv[np.arange(len(logits_rv))[:, None], tokens_rk]
    peaks_r1 = logits_rv.max(axis=1, keepdims=True)
    np.subtract(logits_rv, peaks_r1, out=logits_rv)
    np.exp(logits_rv, out=logits_rv)
    totals_r1 = logits_rv.sum(axis=1, keepdims=True)
    chosen_rk -= peaks_r1 + np.log(totals_r1)
    return chosen_rk


def log_sum_exp(logits_rv: Float32) -> Float32:
    """Return log(sum(exp(row))) of each row, [rows]; -inf for a row of nothing but -inf."""
    peaks_r = logits_rv.max(axis=1)
    peaks_r[np.isneginf(peaks_r)] = 0
    with np.errstate(divide="ignore"):
        sums_r: Float32 = np.log(np.exp(logits_rv - peaks_r[:, None]).sum(axis=1)) + peaks_r
    return sums_r


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


def likeliest(logits_rv: Float32, k: int) -> NDArray[np.intp]:
    """Return the indices of each row's k largest values, or of all, as `top_k` does; k may be 0."""
    rows, vocab = logits_rv.shape
    return top_k(logits_rv, min(k, vocab)) if k else np.empty((rows, 0), np.intp)


def best_first(
    scores_rk: Float32, tokens_rk: NDArray[np.intp], count: int
) -> tuple[list[float], list[int], list[int]]:
    """Return scores, rows and tokens of the best `count` continuations of all rows, best first.

    Of equal scores the one that comes first, row by row, is the better.
    """
    best = (-scores_rk).argsort(axis=None, kind="stable")[:count]
    scores, tokens = scores_rk.ravel()[best], tokens_rk.ravel()[best]
    rows = best // scores_rk.shape[1]
    return scores.tolist(), rows.tolist(), tokens.tolist()
