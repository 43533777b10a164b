"""Alignment of tokens and speech: products of a decoder's queries and the keys in a cross cache.

Only a few heads of a decoder follow the speech. Its program gives their queries beside the logits,
and their keys lie in the cache, so the rest is a small product, for which no graph is needed. Knows
no runtime, and no use of scores.
"""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from kvcast.runtimes.attention_by_token import attention_by_token
from kvcast.runtimes.base import Alignment, EncoderDecoderOf, Float32, Int64, TokenProbabilityQuery
from kvcast.runtimes.cache import CacheHandle
from kvcast.runtimes.dtw import dtw

_NONE = np.empty(0, np.float32)

_SHARED = 1 << 18
"""Products of more multiplications than this are shared by OpenBLAS's threads."""


class AligningRuntime(EncoderDecoderOf[CacheHandle]):
    """Alignment for runtimes over `CacheHandle`; each runs its program and knows its keys' layout.

    Attributes:
        alignment_heads: (layer, head) in the order of the program's queries; none if it gives none.

    """

    alignment_heads: Sequence[Sequence[int]] = ()

    @abstractmethod
    def read(
        self, tokens_s: Int64, cache: CacheHandle, row: int, scored: TokenProbabilityQuery | None
    ) -> tuple[Float32, Float32]:
        """Run the program as `decode` does, on one row.

        Returns the requested probabilities [p], and of the alignment heads the queries
        fp32 [s, heads * d].
        """

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
        cache.append([row], [tokens_s])  # refuses what does not fit
        probabilities_p, queries_sx = self.read(tokens_s, cache, row, scored)
        return Alignment(self.scores(queries_sx, cache, row), probabilities_p)

    @abstractmethod
    def scores(self, queries_sx: Float32, cache: CacheHandle, row: int) -> Float32:
        """Return scaled products of queries [s, heads * d] and a row's keys, [heads, s, t]."""


class NumpyAligningRuntime(AligningRuntime):
    """All but the program in NumPy: for runtimes without kernels for the rest."""

    @abstractmethod
    def query(
        self, tokens_s: Int64, cache: CacheHandle, row: int, positions: Sequence[int]
    ) -> tuple[Float32, Float32]:
        """Run the program as `decode` does, on one row.

        Returns the logits fp32 [len(positions), vocab], which the caller may overwrite, and of the
        alignment heads the queries fp32 [s, heads * d].
        """

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
    """Return the softmax of the logits, which are overwritten, at the requested tokens, [p]."""
    logits_pv += scored.among_v
    logits_pv -= logits_pv.max(axis=1, keepdims=True)
    np.exp(logits_pv, out=logits_pv)
    chosen_p = logits_pv[np.arange(len(logits_pv)), scored.tokens_p]
    probabilities_p: Float32 = chosen_p / logits_pv.sum(axis=1)
    return probabilities_p


def _products(queries_hsd: Float32, keys_htd: Float32) -> Float32:
    """Return queries times keys, [heads, s, t], of a few keys at a time.

    Threads that share a product wait for each other. Beside those of a runtime, which are still
    about, that took 90 ms; on the caller's thread alone it takes 3 ms.
    """
    heads, tokens, size = queries_hsd.shape
    scores_hst = np.empty((heads, tokens, keys_htd.shape[1]), np.float32)
    keys = max(1, _SHARED // (tokens * size))
    for first in range(0, keys_htd.shape[1], keys):
        part = slice(first, first + keys)
        np.matmul(queries_hsd, keys_htd[:, part].swapaxes(1, 2), out=scores_hst[..., part])
    return scores_hst
