"""Alignment of tokens and audio: cross-attention scores, normalized weights and DTW.

Only a few heads of a decoder follow the speech. Its program returns their queries with the logits,
and their keys are in the cache, so the rest is a small GEMM that needs no graph.

Normalisation and dynamic time warping follow openai/whisper's timing.py, in NumPy: for runtimes
without kernels for them, and as the kernels' reference. Sums of the warping are fp64, with
openai-whisper's choice among ties; its own fp32 sums chose the same frames on all recordings tried.
"""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.runtimes.base import Alignment, EncoderDecoderOf, Float32, Int64, TokenProbabilityQuery
from kvcast.runtimes.cache import CacheHandle

_NONE = np.empty(0, np.float32)

_SHARED = 1 << 18
"""Products of more multiplications than this are shared by OpenBLAS's threads."""


class AligningRuntime(EncoderDecoderOf[CacheHandle]):
    """Alignment over `CacheHandle`; subclasses run the program and know the layout of the keys."""

    alignment_heads: Sequence[Sequence[int]] = ()  # (layer, head), ordered as the program's queries

    @abstractmethod
    def read(
        self, tokens_s: Int64, cache: CacheHandle, row: int, scored: TokenProbabilityQuery | None
    ) -> tuple[Float32, Float32]:
        """Run `decode` on one row; return probabilities [p] and queries fp32 [s, heads * d]."""

    @override
    def align(
        self,
        tokens_s: Int64,
        cache: CacheHandle,
        row: int,
        scored: TokenProbabilityQuery | None = None,
    ) -> Alignment:
        if not self.alignment_heads:
            raise ValueError("the model has no alignment heads")
        cache.append([row], [tokens_s])  # raises if it does not fit
        probabilities_p, queries_sx = self.read(tokens_s, cache, row, scored)
        return Alignment(self.scores(queries_sx, cache, row), probabilities_p)

    @abstractmethod
    def scores(self, queries_sx: Float32, cache: CacheHandle, row: int) -> Float32:
        """Return scaled products of queries [s, heads * d] and a row's keys, [heads, s, t]."""


class NumpyAligningRuntime(AligningRuntime):
    @abstractmethod
    def query(
        self, tokens_s: Int64, cache: CacheHandle, row: int, positions: Sequence[int]
    ) -> tuple[Float32, Float32]:
        """Run `decode` on one row; return fp32 logits [positions, vocab] and queries [s, h * d]."""

    @override
    def read(
        self, tokens_s: Int64, cache: CacheHandle, row: int, scored: TokenProbabilityQuery | None
    ) -> tuple[Float32, Float32]:
        positions = [-1] if scored is None else scored.positions
        logits_pv, queries_sx = self.query(tokens_s, cache, row, positions)
        probabilities_p = _NONE if scored is None else _probabilities(logits_pv, scored)
        return probabilities_p, queries_sx

    @abstractmethod
    def cross_keys(self, cache: CacheHandle, row: int, layer: int, heads: Sequence[int]) -> Float32:
        """Return a layer's keys of heads for the input that a row reads, fp32 [heads, t, d]."""

    @override
    def scores(self, queries_sx: Float32, cache: CacheHandle, row: int) -> Float32:
        queries_hsd = queries_sx.reshape(len(queries_sx), len(self.alignment_heads), -1)
        queries_hsd = queries_hsd.transpose(1, 0, 2)
        queries_hsd = queries_hsd * np.float32(queries_hsd.shape[-1] ** -0.5)
        members: dict[int, list[int]] = {}
        for member, (layer, _) in enumerate(self.alignment_heads):
            members.setdefault(layer, []).append(member)
        by_layer: dict[int, Float32] = {}
        for layer, of_layer in members.items():
            heads = [self.alignment_heads[member][1] for member in of_layer]
            keys_htd = self.cross_keys(cache, row, layer, heads)
            scores = _products(queries_hsd[of_layer], keys_htd)
            by_layer |= zip(of_layer, scores, strict=True)
        return np.stack([by_layer[member] for member in sorted(by_layer)])

    @override
    def attention_by_token(self, scores_hst: Float32, frames: int) -> Float32:
        return attention_by_token(scores_hst, frames)

    @override
    def dtw(self, weights_nt: Float32) -> Int64:
        return dtw(weights_nt)


def _probabilities(logits_pv: Float32, scored: TokenProbabilityQuery) -> Float32:
    logits_pv += scored.among_v
    logits_pv -= logits_pv.max(axis=1, keepdims=True)
    np.exp(logits_pv, out=logits_pv)
    chosen_p = logits_pv[np.arange(len(logits_pv)), scored.tokens_p]
    probabilities_p: Float32 = chosen_p / logits_pv.sum(axis=1)
    return probabilities_p


def _products(queries_hsd: Float32, keys_htd: Float32) -> Float32:
    """Return queries times keys, [heads, s, t], of a few keys at a time.

    Threads that share a GEMM wait for each other. With a runtime's threads still spinning that took
    90 ms; on the caller's thread alone it takes 3 ms.
    """
    heads, tokens, size = queries_hsd.shape
    scores_hst = np.empty((heads, tokens, keys_htd.shape[1]), np.float32)
    keys = max(1, _SHARED // (tokens * size))
    for first in range(0, keys_htd.shape[1], keys):
        part = slice(first, first + keys)
        np.matmul(queries_hsd, keys_htd[:, part].swapaxes(1, 2), out=scores_hst[..., part])
    return scores_hst


_MEDIAN_WIDTH = 7
_ROWS_AT_ONCE = 16
"""Rows that medians take at once: intermediate results then stay in the core's cache."""


def attention_by_token(scores_hst: Float32, frames: int) -> Float32:
    """Return a weight of each token at each frame of recording (20 ms), [s, frames].

    Scores are products of queries and keys before the softmax, of the alignment heads.
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
    """Return the softmax over frames, standardized over the tokens of each frame."""
    weights_st: Float32 = np.exp(scores_st - scores_st.max(axis=1, keepdims=True))
    weights_st /= weights_st.sum(axis=1, keepdims=True)
    weights_st -= weights_st.mean(axis=0)
    deviations_t = np.sqrt(np.square(weights_st).mean(axis=0))
    # No token stands out in a frame to which all attend alike.
    weights_st /= np.where(deviations_t == 0, np.float32(1), deviations_t)
    return weights_st


class _Smoothing:
    """Medians of each frame and its three neighbours on both sides; the ends are mirrored.

    Two adjacent windows share six frames; their medians are those of the six's third and fourth
    smallest and the frame that each has alone. The six are three pairs, each sorted once for three
    windows. The least of the lower and the greatest of the higher values are neither third nor
    fourth; of the other four, paired by order, the inner two are a maximum and a minimum. So even
    and odd frames are stored apart. Memory is reused: allocating it costs as much as the medians.
    """

    def __init__(self, frames: int) -> None:
        self._frames = frames
        windows = (frames + 1) // 2
        # The frames, with their mirrored ends, at even and at odd places.
        self._halves_2rp = np.zeros((2, _ROWS_AT_ONCE, windows + 3), np.float32)
        self._room_nrp = np.empty((8, _ROWS_AT_ONCE, windows + 2), np.float32)

    def add(self, weights_rt: Float32, total_2rw: Float32) -> None:
        """Add the medians to totals of even and odd frames; rows too short are added unchanged."""
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


def dtw(weights_nt: Float32) -> Int64:
    """Compute `kvcast.runtimes.base.EncoderDecoderOf.dtw`.

    A path that enters row n at frame i and continues to j costs its cost on entry, less the row's
    sum before i, plus the sum up to j. So the best entry for each j is a running minimum, and a row
    is computed at once. fp64 sums of fp32 weights are (nearly) exact; `dtw_cpu` rounds each sum to
    fp32 and may prefer another of two otherwise equal paths.
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
    begins_n = np.zeros(len(entries_nt), np.int64)
    frame = entries_nt.shape[1] - 1
    for row in reversed(range(len(entries_nt))):
        best = entries_nt[row, frame]
        begins_n[row] = frame = int((entries_nt[row] <= best).argmax())
        frame -= int(costs_np[row, frame] < costs_np[row, frame + 1])
        if frame < 0:
            break
    return begins_n
