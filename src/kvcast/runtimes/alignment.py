"""Alignment of tokens and speech: products of a decoder's queries and the keys in a cross cache.

Only a few heads of a decoder follow the speech. Its program gives their queries beside the logits,
and their keys lie in the cache, so the rest is a small product, for which no graph is needed. Knows
no runtime, and not what scores are for.
"""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from kvcast.runtimes.base import Alignment, EncoderDecoderOf, Float32, Int64
from kvcast.runtimes.cache import Cache


class AligningRuntime(EncoderDecoderOf[Cache]):
    """What runtimes over `Cache` share; each runs its program and knows how its keys are stored.

    Attributes:
        alignment_heads: (layer, head) in the order of the program's queries; none if it gives none.

    """

    alignment_heads: Sequence[Sequence[int]] = ()

    @abstractmethod
    def query(
        self, tokens_s: Int64, cache: Cache, row: int, positions: Sequence[int]
    ) -> tuple[Float32, Float32]:
        """Run the program as `decode` does, on one row.

        Returns the logits fp32 [len(positions), vocab], and of the alignment heads the queries fp32
        [s, heads * d].
        """

    @abstractmethod
    def cross_keys(self, cache: Cache, row: int, layer: int, heads: Sequence[int]) -> Float32:
        """Return a layer's keys of heads for the input that a row reads, fp32 [heads, t, d]."""

    @override
    def align(
        self, tokens_s: Int64, cache: Cache, row: int, positions: Sequence[int] = (-1,)
    ) -> Alignment:
        if not self.alignment_heads:
            raise ValueError("the model has no alignment heads")
        cache.append([row], [tokens_s])  # refuses what does not fit
        logits_pv, queries_sx = self.query(tokens_s, cache, row, positions)
        queries_hsd = queries_sx.reshape(len(tokens_s), len(self.alignment_heads), -1)
        queries_hsd = queries_hsd.transpose(1, 0, 2)
        queries_hsd = queries_hsd * np.float32(queries_hsd.shape[-1] ** -0.5)
        members: dict[int, list[int]] = {}
        for member, (layer, _) in enumerate(self.alignment_heads):
            members.setdefault(layer, []).append(member)
        scores = [np.empty(0, np.float32)] * len(queries_hsd)
        for layer, of_layer in members.items():
            heads = [self.alignment_heads[member][1] for member in of_layer]
            keys_htd = self.cross_keys(cache, row, layer, heads)
            for member, key_td in zip(of_layer, keys_htd, strict=True):
                scores[member] = queries_hsd[member] @ key_td.T
        return Alignment(np.stack(scores), logits_pv)
