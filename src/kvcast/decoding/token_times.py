"""Which frames a window's tokens were spoken in, from how much each stands out at each frame.

Follows `find_alignment` in openai/whisper's timing.py: a monotonic path of least cost, found by
dynamic time warping, says where each token begins. Knows no text, no model and no seconds.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.base import Float32, Int64

FRAMES_PER_SECOND = 50
"""Frames of the encoder."""


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


def token_times(attention_st: Float32, probabilities_n: Float32, *, before: int) -> TokenTimes:
    """Return where text tokens were spoken.

    Args:
        attention_st: how much each token stands out at each frame of the recording, as
            `attention_by_token` of a runtime gives it; of the `before` tokens that precede the
            text, the text, and the end of text.
        probabilities_n: of the text's tokens.
        before: at least 1. The last of these, and not the first token of the text, is what a
            model hears the first token with.

    """
    return TokenTimes(first_frames(attention_st[before - 1 : -1]), probabilities_n)


def first_frames(weights_nt: Float32) -> Int64:
    """Return the frame at which each row begins on the best monotonic path, [n], ascending.

    The path leads from the first frame of the first row to the last frame of the last, in steps
    of one row, one frame or both, over the greatest sum of weights. As in openai-whisper's
    `dtw_cpu`, where a step of one row is as good as one of both, neither is taken.

    The cost of a path that enters row n at frame i and goes on to frame j is what it cost until it
    entered, less the row's sum before i, plus its sum up to j. So the best entry for each j is a
    running minimum, and a row is computed at once. Sums are in fp64, in which weights of fp32 add
    up exactly or nearly so; `dtw_cpu` rounds each sum to fp32 and may prefer another of two paths
    that are equal but for that.
    """
    rows, frames = weights_nt.shape
    costs_np = np.full((rows + 1, frames + 1), np.inf)
    costs_np[0, 0] = 0
    sums_np = np.zeros((rows, frames + 1))
    np.cumsum(weights_nt, axis=1, dtype=np.float64, out=sums_np[:, 1:])
    entries_nt = np.empty((rows, frames))
    tied_t = np.empty(frames, np.bool_)
    for before_p, cost_p, sums_p, entry_t in zip(
        costs_np[:-1], costs_np[1:], sums_np, entries_nt, strict=True
    ):
        np.minimum(before_p[:-1], before_p[1:], out=entry_t)
        np.equal(before_p[:-1], before_p[1:], out=tied_t)
        np.copyto(entry_t, np.inf, where=tied_t)
        np.add(entry_t, sums_p[:-1], out=entry_t)
        np.minimum.accumulate(entry_t, out=entry_t)
        np.subtract(entry_t, sums_p[1:], out=cost_p[1:])
    return _begins(costs_np, entries_nt)


def _begins(costs_np: NDArray[np.float64], entries_nt: NDArray[np.float64]) -> Int64:
    """Follow the path from its end; return the first frame of each row."""
    begins_n = np.zeros(len(entries_nt), np.int64)
    frame = entries_nt.shape[1] - 1
    for row in reversed(range(len(entries_nt))):
        best = entries_nt[row, frame]
        begins_n[row] = frame = int((entries_nt[row] <= best).argmax())
        frame -= int(costs_np[row, frame] < costs_np[row, frame + 1])
        if frame < 0:
            break
    return begins_n
