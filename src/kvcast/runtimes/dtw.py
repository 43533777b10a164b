"""Where each token of a window begins, from how much it stands out at each frame, in NumPy.

The dynamic time warping of openai/whisper's timing.py, for runtimes without a kernel for it, and
the oracle of that kernel. A token is placed at once: where its row is entered best is a running
minimum over sums. Sums are fp64, with openai-whisper's choice among ties; its own fp32 sums chose
the same frames on all recordings tried. Knows no runtime.
"""

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.base import Float32, Int64


def dtw(weights_nt: Float32) -> Int64:
    """Return the frame at which each row begins on the best monotonic path, [n], ascending.

    `kvcast.runtimes.base.EncoderDecoderOf.dtw` says which that is.

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
