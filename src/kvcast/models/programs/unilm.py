"""A UniLM's programs: `decode`, for new positions in rows or packed, and `pool`.

The attention mask turns a BERT into a decoder (Dong et al. 2019, arXiv:1905.03197, section 2.3):
source positions see the whole source, target positions see the source and all positions up to
themselves. With a cache, the lengths decide which is which: the first call on an empty row is its
whole source, and everything later is target.

Pure: caches are arguments and results, and there is no other state. Knows nothing of files,
runtimes or tokens' meaning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kvcast.families.unilm import UnilmDimensions
from kvcast.models.ops.attention import self_attention
from kvcast.models.programs.weights import load_weights
from kvcast.models.unilm import Unilm
from kvcast.spec.rows import neighbours

LayerCache = tuple[Tensor, Tensor]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]


class PrefixedRows(nn.Module):
    """The model over rows, with a given number of source positions in each."""

    def __init__(self, model: Unilm, dimensions: UnilmDimensions) -> None:
        super().__init__()
        self.model = model
        self._scale = dimensions.head_dim**-0.5
        rotary, sizes = dimensions.rotary, (dimensions.max_positions, dimensions.head_dim)
        tables = () if rotary is None else map(torch.from_numpy, rotary.tables(*sizes))
        for name, table in zip_longest(("cosines", "sines"), tables):
            self.register_buffer(name, table, persistent=False)

    def forward(
        self, tokens_rs: Tensor, lengths: Tensor, sources: Tensor, caches: Sequence[LayerCache]
    ) -> Tensor:
        """Return the hidden states of new tokens, [rows, s, width].

        Args:
            tokens_rs: int64 [rows, s].
            lengths: int32 [rows], positions in the cache before this call.
            sources: int32 [rows], how many of the row's positions, from the first, are its source.
            caches: (key, value) [rows, heads, capacity, d] per layer, written in place.

        """
        positions_rs = lengths[:, None] + torch.arange(tokens_rs.shape[1], dtype=torch.int32)
        # A position sees the whole source, and everything up to itself.
        seen_rs = torch.maximum(sources[:, None], positions_rs + 1)
        slots_c = torch.arange(caches[0][0].shape[2], dtype=torch.int32)
        bias_rsc = torch.where(slots_c < seen_rs[..., None], 0.0, -torch.inf)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return self_attention(
                query,
                key,
                value,
                *caches[layer],
                lengths,
                self._scale,
                cosines=self.cosines,
                sines=self.sines,
                bias=bias_rsc[:, None],
                causal=False,
            )

        segments_rs = (positions_rs >= sources[:, None]).long()
        return self.model(tokens_rs, segments_rs, positions_rs.long(), attend)


class UniLMDecode(nn.Module):
    """Takes the same number of new positions for every row: sources or target tokens."""

    def __init__(self, rows: PrefixedRows) -> None:
        super().__init__()
        self.rows = rows

    def forward(
        self, tokens_rs: Tensor, lengths: Tensor, offsets: Tensor, caches: Sequence[LayerCache]
    ) -> tuple[Tensor, Tensor, Sequence[LayerCache]]:
        """Process s new tokens per row: a source for an empty row, target tokens for others.

        Args:
            tokens_rs: int64 [rows, s].
            lengths: int32 [rows], positions in the cache before this call.
            offsets: int64 [p], which of the s new positions get logits.
            caches: (key, value) [rows, heads, capacity, d] per layer, written in place.

        Returns:
            Logits fp32 [rows, p, vocab], hidden states fp32 [rows, p, width], and the caches.

        """
        hidden = self.rows(tokens_rs, lengths, _sources(tokens_rs, lengths), caches)
        chosen = hidden.index_select(1, offsets)
        return self.rows.model.logits(chosen), chosen, caches


class UniLMDecodePacked(nn.Module):
    """Takes any number of new positions for each row, concatenated."""

    def __init__(self, rows: PrefixedRows) -> None:
        super().__init__()
        self.rows = rows

    def forward(
        self,
        tokens_n: Tensor,
        rows: list[int],
        counts: list[int],
        lengths: Tensor,
        logits_at: Tensor,
        caches: Sequence[LayerCache],
    ) -> tuple[Tensor, Sequence[LayerCache]]:
        """Process new tokens of some rows: a source for an empty row, target tokens for others.

        Args:
            tokens_n: int64 [n], the new tokens of these rows, concatenated.
            rows: the rows of the caches that take part, ascending.
            counts: the number of new tokens of each.
            lengths: int32 [rows of the caches], positions in the cache before this call.
            logits_at: int64 [m], which of the n positions get logits.
            caches: (key, value) [rows, heads, capacity, d] per layer, written in place.

        Returns:
            Logits fp32 [m, vocab] and the caches.

        """
        hidden, first = [], 0
        for part, count in neighbours(rows, counts):
            stop = first + count * (part.stop - part.start)
            tokens_rs = tokens_n[first:stop].view(-1, count)
            views = [(key[part], value[part]) for key, value in caches]
            sources = _sources(tokens_rs, lengths[part])
            hidden.append(self.rows(tokens_rs, lengths[part], sources, views).flatten(0, 1))
            first = stop
        return self.rows.model.logits(torch.cat(hidden)[logits_at]), caches


class Pool(nn.Module):
    """Maps the hidden states of first tokens to vectors of their sources."""

    def __init__(self, model: Unilm) -> None:
        super().__init__()
        self.model = model

    def forward(self, hidden_nx: Tensor) -> Tensor:
        """[n, width] to the same shape."""
        return self.model.pool(hidden_nx)


def _sources(tokens_rs: Tensor, lengths: Tensor) -> Tensor:
    """Return the length of each row's source [rows]: an empty row's source is what comes now.

    The cached positions of other rows all count as source, since a target position sees them all.
    """
    return torch.where(lengths == 0, tokens_rs.shape[1], lengths)


@dataclass(frozen=True, kw_only=True)
class UnilmPrograms:
    """All programs, with shared weights."""

    dimensions: UnilmDimensions
    decode: UniLMDecode
    decode_packed: UniLMDecodePacked
    pool: Pool

    @classmethod
    def from_tensors(
        cls, dimensions: UnilmDimensions, tensors: Mapping[str, NDArray[np.generic]]
    ) -> "UnilmPrograms":
        """Build in fp32 from tensors by canonical name; KvcastError if names or shapes differ."""
        with torch.device("meta"):
            model = Unilm(dimensions)
        load_weights(model, tensors)
        rows = PrefixedRows(model, dimensions)
        return cls(
            dimensions=dimensions,
            decode=UniLMDecode(rows),
            decode_packed=UniLMDecodePacked(rows),
            pool=Pool(model),
        )

    @torch.inference_mode()
    def whole(self, source: Int64, target: Int64) -> Float32:
        """Return logits fp32 [len(source) + len(target), vocab], computed in one call.

        The source is given explicitly, not derived from lengths: steps must equal this.
        """
        tokens_rs = torch.from_numpy(np.concatenate([source, target]))[None]
        shape = (1, self.dimensions.kv_heads, tokens_rs.shape[1], self.dimensions.head_dim)
        caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in self.dimensions.windows]
        lengths, sources = torch.tensor([[0], [len(source)]], dtype=torch.int32)
        rows = self.decode.rows
        logits: Float32 = rows.model.logits(rows(tokens_rs, lengths, sources, caches))[0].numpy()
        return logits
