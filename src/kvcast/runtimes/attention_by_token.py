"""How much each token of a window stands out at each frame, from scores of cross-attention heads.

The normalisation of `find_alignment` in openai/whisper's timing.py, in NumPy: for runtimes without
kernels for it, and the reference of such kernels. Knows no runtime.
"""

import numpy as np

from kvcast.runtimes.base import Float32

_MEDIAN_WIDTH = 7
_ROWS_AT_ONCE = 16
"""Rows that medians take at once: intermediate results then stay in the core's cache."""


def attention_by_token(scores_hst: Float32, frames: int) -> Float32:
    """Return how much each token stands out at each frame, [s, frames].

    Args:
        scores_hst: scaled products of queries and keys, before the softmax, of the heads that
            follow the sound, for all tokens of a call and all of the encoder's frames (20 ms).
        frames: how many of the frames are of the recording; the rest is padding. At least 1.

    """
    heads, tokens, available = scores_hst.shape
    frames = max(1, min(frames, available))
    smoothing = _Smoothing(frames)
    total_2sw = np.zeros((2, tokens, (frames + 1) // 2), np.float32)  # even and odd frames
    for scores_st in scores_hst:
        weights_st = _standing_out(scores_st[:, :frames])
        for first in range(0, tokens, _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            smoothing.add(weights_st[rows], total_2sw[:, rows])
    total_2sw /= np.float32(heads)
    mean_st: Float32 = np.stack(tuple(total_2sw), axis=2).reshape(tokens, -1)[:, :frames]
    return mean_st


def _standing_out(scores_st: Float32) -> Float32:
    """Return the softmax over frames; of each frame then the standard score among the tokens."""
    weights_st: Float32 = np.exp(scores_st - scores_st.max(axis=1, keepdims=True))
    weights_st /= weights_st.sum(axis=1, keepdims=True)
    weights_st -= weights_st.mean(axis=0)
    deviations_t = np.sqrt(np.square(weights_st).mean(axis=0))
    # No token stands out in a frame to which all attend alike.
    weights_st /= np.where(deviations_t == 0, np.float32(1), deviations_t)
    return weights_st


class _Smoothing:
    """Medians of each frame and its three neighbours on both sides; the ends are mirrored.

    Two neighbouring windows share six frames. Their medians are those of the third and fourth
    smallest of the six with the one frame that each has alone. The six are three pairs, each of
    which is sorted once for three windows; the least of the lower and the greatest of the higher
    ones are neither third nor fourth, and of the other four, two by two in order, the inner two are
    a maximum and a minimum. So even and odd frames lie apart. All is computed in memory that is
    kept: fresh memory would cost as much as the medians.
    """

    def __init__(self, frames: int) -> None:
        self._frames = frames
        windows = (frames + 1) // 2
        # The frames, with their mirrored ends, at even and at odd places.
        self._halves_2rp = np.zeros((2, _ROWS_AT_ONCE, windows + 3), np.float32)
        self._room_nrp = np.empty((8, _ROWS_AT_ONCE, windows + 2), np.float32)

    def add(self, weights_rt: Float32, total_2rw: Float32) -> None:
        """Add the medians to totals of even and of odd frames.

        Rows too short for medians are added as they are.
        """
        beside = _MEDIAN_WIDTH // 2
        frames, rows = self._frames, len(weights_rt)
        if frames <= beside:
            for half in range(2):
                total_2rw[half, :, : (frames + 1 - half) // 2] += weights_rt[:, half::2]
            return
        even_rp, odd_rp = halves = self._halves_2rp[:, :rows]
        # Frame i lies at place i + 3.
        odd_rp[:, 1 : 1 + (frames + 1) // 2] = weights_rt[:, ::2]
        even_rp[:, 2 : 2 + frames // 2] = weights_rt[:, 1::2]
        for place in (*range(beside), *range(frames + beside, frames + 2 * beside)):
            mirrored = min(abs(place - beside), 2 * (frames - 1) - (place - beside))
            halves[place % 2, :, place // 2] = weights_rt[:, mirrored]
        for total_rw, medians_rw in zip(total_2rw, self._medians(even_rp, odd_rp), strict=True):
            total_rw += medians_rw

    def _medians(self, even_rp: Float32, odd_rp: Float32) -> tuple[Float32, Float32]:
        """Return the medians of windows that begin at even places, and at odd places."""
        low, high, *room = self._room_nrp[:, : len(even_rp)]
        a, b, c, d, e, f = (part[:, :-2] for part in room)
        np.minimum(odd_rp[:, :-1], even_rp[:, 1:], out=low)
        np.maximum(odd_rp[:, :-1], even_rp[:, 1:], out=high)
        np.minimum(low[:, :-2], low[:, 1:-1], out=a)
        np.maximum(low[:, :-2], low[:, 1:-1], out=b)
        np.maximum(b, low[:, 2:], out=c)  # the greatest of the three lower ones
        np.minimum(b, low[:, 2:], out=b)
        np.maximum(a, b, out=a)  # the second
        np.minimum(high[:, :-2], high[:, 1:-1], out=d)
        np.maximum(high[:, :-2], high[:, 1:-1], out=e)
        np.minimum(d, high[:, 2:], out=f)  # the least of the three higher ones
        np.maximum(d, high[:, 2:], out=d)
        np.minimum(d, e, out=d)  # the second
        np.maximum(a, f, out=a)
        np.minimum(c, d, out=c)
        np.minimum(a, c, out=b)  # the third of the six
        np.maximum(a, c, out=d)  # the fourth
        for alone, medians in ((even_rp[:, :-3], e), (odd_rp[:, 3:], f)):
            np.minimum(alone, d, out=medians)
            np.maximum(medians, b, out=medians)
        return e, f
