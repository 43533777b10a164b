"""Which frames a window's tokens were spoken in, from the scores of cross-attention heads.

Follows `find_alignment` in openai/whisper's timing.py: attention is normalised so that each token
stands out where it attends more than others, smoothed by a median, and a monotonic path of least
cost through it, found by dynamic time warping, says where each token begins. Knows no text, no
model and no seconds.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.lib.stride_tricks import as_strided

from kvcast.runtimes.base import Float32, Int64

FRAMES_PER_SECOND = 50
"""Frames of the encoder."""

_MEDIAN_WIDTH = 7
_ROWS_AT_ONCE = 16
"""Rows that the median takes at once: its intermediate results then stay in the core's cache."""


@dataclass(frozen=True, eq=False)
class TokenTimes:
    """Where the n text tokens of a window were spoken, and how likely each was.

    Attributes:
        begins_n: frame at which each token begins, and the one at which the last ends, [n + 1].
        probabilities_n: of each token after those before it, [n].

    """

    begins_n: Int64
    probabilities_n: Float32

    def padded(self, count: int) -> Self:
        """Return the times of `count` tokens; those without any have none left at the end."""
        rest = count - len(self.probabilities_n)
        return replace(
            self,
            begins_n=np.pad(self.begins_n, (0, rest), mode="edge"),
            probabilities_n=np.pad(self.probabilities_n, (0, rest)),
        )


def token_times(
    scores_hst: Float32, probabilities_n: Float32, *, before: int, frames: int
) -> TokenTimes:
    """Return where text tokens were spoken.

    Args:
        scores_hst: see `attention_by_token`; of the `before` tokens that precede the text, the
            text, and the end of text.
        probabilities_n: of the text's tokens.
        before: at least 1. The last of these, and not the first token of the text, is what a
            model hears the first token with.
        frames: how many of the frames are of the recording.

    """
    weights_st = attention_by_token(scores_hst, frames)
    return TokenTimes(first_frames(weights_st[before - 1 : -1]), probabilities_n)


def attention_by_token(scores_hst: Float32, frames: int) -> Float32:
    """Return how much each token stands out at each frame, [s, frames].

    Args:
        scores_hst: scaled products of queries and keys, before the softmax, of the heads that
            follow the sound, for all tokens of a call and all of the encoder's frames (20 ms).
        frames: how many of the frames are of the recording; the rest is padding. At least 1.

    """
    heads, tokens, available = scores_hst.shape
    frames = max(1, min(frames, available))
    total_st = np.zeros((tokens, frames), np.float32)
    for scores_st in scores_hst:
        total_st += _smoothed(_standing_out(scores_st[:, :frames]))
    total_st /= np.float32(heads)
    return total_st


def _standing_out(scores_st: Float32) -> Float32:
    """Return the softmax over frames; of each frame then the standard score among the tokens."""
    weights_st: Float32 = np.exp(scores_st - scores_st.max(axis=1, keepdims=True))
    weights_st /= weights_st.sum(axis=1, keepdims=True)
    weights_st -= weights_st.mean(axis=0)
    deviations_t = np.sqrt(np.square(weights_st).mean(axis=0))
    # No token stands out in a frame to which all attend alike.
    weights_st /= np.where(deviations_t == 0, np.float32(1), deviations_t)
    return weights_st


def _smoothed(weights_st: Float32) -> Float32:
    """Return the median of each frame and its three neighbours on both sides.

    The ends are mirrored. Rows too short for that are returned as they are.
    """
    beside = _MEDIAN_WIDTH // 2
    if weights_st.shape[1] <= beside:
        return weights_st
    padded_sp = np.pad(weights_st, ((0, 0), (beside, beside)), mode="reflect")
    smooth_st = np.empty_like(weights_st)
    for first in range(0, len(padded_sp), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        smooth_st[rows] = _medians_of_7(padded_sp[rows])
    return smooth_st


def _medians_of_7(values_rp: Float32) -> Float32:
    """Return the median of every 7 neighbours, [rows, p - 6].

    Three of them and the four after these are sorted by minima and maxima. The median, the fourth
    smallest, is then the least of the maxima that k of the three and 4 - k of the four can have.
    Sorted pairs are shared by all windows that hold them.
    """
    low, high = _sorted(values_rp[:, :-1], values_rp[:, 1:])
    count = values_rp.shape[1] - 6
    third = values_rp[:, 2 : 2 + count]
    least, rest = _sorted(low[:, :count], third)
    middle, most = _sorted(rest, high[:, :count])
    first, a = _sorted(low[:, 3 : 3 + count], low[:, 5 : 5 + count])
    b, fourth = _sorted(high[:, 3 : 3 + count], high[:, 5 : 5 + count])
    second, after_second = _sorted(a, b)
    best = np.minimum(fourth, np.maximum(least, after_second))
    np.minimum(best, np.maximum(middle, second), out=best)
    np.minimum(best, np.maximum(most, first), out=best)
    return best


def _sorted(a: Float32, b: Float32) -> tuple[Float32, Float32]:
    return np.minimum(a, b), np.maximum(a, b)


def first_frames(weights_nt: Float32) -> Int64:
    """Return the frame at which each row begins on the best monotonic path, [n], ascending.

    The path leads from the first frame of the first row to the last frame of the last, in steps
    of one row, one frame or both, over the greatest sum of weights in fp32. As in openai-whisper's
    `dtw_cpu`, where a step of one row is as good as one of both, neither is taken.

    Cells whose row and frame have the same sum do not depend on each other, so each such diagonal
    is computed at once: row d of `costs` holds diagonal d, by the cell's row.
    """
    rows, frames = weights_nt.shape
    own = np.full((rows + frames + 1, rows + 1), np.inf, np.float32)
    # Cell [row, frame], counted from 1, lies at [row + frame, row].
    one = own.itemsize
    strides = (one * (rows + 2), one * (rows + 1))
    as_strided(own.ravel()[2 * rows + 3 :], weights_nt.shape, strides)[:] = -weights_nt
    costs = np.full_like(own, np.inf)
    costs[0, 0] = 0
    here, before = costs[:, 1:], costs[:, :-1]
    tied = np.empty(rows, np.bool_)
    for cost, left, up, across, extra in zip(
        here[2:], here[1:], before[1:], before, own[2:, 1:], strict=False
    ):
        np.minimum(up, across, out=cost)
        np.minimum(cost, left, out=cost)
        np.equal(up, across, out=tied)
        np.copyto(cost, left, where=tied)
        np.add(cost, extra, out=cost)
    return _begins(costs, rows, frames)


def _begins(costs: Float32, rows: int, frames: int) -> Int64:
    """Follow the path from its end; return the first frame of each row."""
    begins = np.zeros(rows, np.int64)
    row, frame = rows, frames
    while row > 0 and frame > 0:  # NaN leads anywhere
        begins[row - 1] = frame - 1
        across = costs[row + frame - 2, row - 1]
        up = costs[row + frame - 1, row - 1]
        left = costs[row + frame - 1, row]
        if across < up and across < left:
            row, frame = row - 1, frame - 1
        elif up < across and up < left:
            row -= 1
        else:
            frame -= 1
    return begins
