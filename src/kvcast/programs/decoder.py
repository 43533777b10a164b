"""A decoder-only model's program `decode`, for new positions that lie as rows or packed.

Pure: caches are arguments and results, nothing else remembers. Both forms run the same model and
differ in how they call attention. As rows is what is exported; packed is what eager runs, where
rows have different numbers of new positions and linear layers see no padding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kvcast.models.decoder import Decoder, DecoderModel
from kvcast.ops.attention import packed_self_attention, self_attention
from kvcast.programs.weights import load_weights
from kvcast.spec.decoder import DecoderDimensions

LayerCache = tuple[Tensor, Tensor]


class AttentionConstants(nn.Module):
    """What attention takes beside caches and lengths: scale, window, soft cap, rotary tables."""

    def __init__(self, dimensions: DecoderDimensions) -> None:
        super().__init__()
        self._scale = dimensions.attention_scale
        self._windows = [window or 0 for window in dimensions.windows]
        self._softcap = dimensions.attention_softcap
        rotaries = [dimensions.rotary_of(layer) for layer in range(dimensions.layers)]
        kinds = list(dict.fromkeys(rotaries))
        self._table_of = [kinds.index(rotary) for rotary in rotaries]
        for i, rotary in enumerate(kinds):
            tables = rotary.tables(dimensions.max_positions, dimensions.head_dim)
            for name, table in zip(("cosines", "sines"), tables, strict=True):
                self.register_buffer(f"{name}_{i}", torch.from_numpy(table), persistent=False)

    def of(self, layer: int) -> tuple[float, int, float, Tensor, Tensor]:
        """Scale, window, soft cap, cosines and sines [positions, d / 2] of a layer."""
        table = self._table_of[layer]
        return (
            self._scale,
            self._windows[layer],
            self._softcap,
            getattr(self, f"cosines_{table}"),
            getattr(self, f"sines_{table}"),
        )


class _Program(nn.Module):
    def __init__(self, decoder: Decoder, constants: AttentionConstants) -> None:
        super().__init__()
        self.decoder = decoder
        self.constants = constants


class Decode(_Program):
    """As many new positions for every row."""

    def forward(
        self, tokens_rs: Tensor, lengths: Tensor, offsets: Tensor, caches: Sequence[LayerCache]
    ) -> tuple[Tensor, Sequence[LayerCache]]:
        """Prefill and step in one: s new tokens a row, s chosen by the caller.

        Args:
            tokens_rs: int64 [rows, s].
            lengths: int32 [rows], positions held before this call.
            offsets: int64 [p], which of the s new positions get logits.
            caches: (key, value) [rows, kv_heads, capacity, d] a layer, written in place.

        Returns:
            Logits fp32 [rows, p, vocab] and the caches.

        """

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return self_attention(
                query, key, value, *caches[layer], lengths, *self.constants.of(layer)
            )

        hidden = self.decoder(tokens_rs, attend)
        # Only the asked-for positions meet the head: it is as large as many layers.
        chosen = hidden.index_select(1, offsets)
        logits = self.decoder.logits(chosen.flatten(0, 1))
        return logits.unflatten(0, chosen.shape[:2]), caches


class DecodePacked(_Program):
    """For each row that takes part its own number of new positions, one after the other."""

    def forward(
        self,
        tokens_n: Tensor,
        rows: list[int],
        counts: list[int],
        lengths: Tensor,
        asked: Tensor,
        caches: Sequence[LayerCache],
    ) -> tuple[Tensor, Sequence[LayerCache]]:
        """Prefill and step in one.

        Args:
            tokens_n: int64 [n], new tokens of all rows that take part.
            rows: which rows of the caches these are.
            counts: how many tokens each of them has.
            lengths: int32 [rows of the caches], positions held before this call.
            asked: int64 [m], which of the n positions get logits.
            caches: (key, value) [rows, kv_heads, capacity, d] a layer, written in place.

        Returns:
            Logits fp32 [m, vocab] and the caches.

        """

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return packed_self_attention(
                query, key, value, *caches[layer], rows, counts, lengths, *self.constants.of(layer)
            )

        hidden = self.decoder(tokens_n, attend)
        return self.decoder.logits(hidden[asked]), caches


@dataclass(frozen=True, kw_only=True)
class DecoderPrograms:
    """Both forms over one set of weights."""

    dimensions: DecoderDimensions
    decode: Decode
    decode_packed: DecodePacked

    @classmethod
    def from_tensors(
        cls, dimensions: DecoderDimensions, tensors: Mapping[str, NDArray[np.generic]]
    ) -> "DecoderPrograms":
        """Build in fp32 from canonical names; raises KvcastError where names or shapes differ."""
        with torch.device("meta"):
            model = DecoderModel(dimensions)
        load_weights(model, tensors)
        constants = AttentionConstants(dimensions)
        return cls(
            dimensions=dimensions,
            decode=Decode(model.decoder, constants),
            decode_packed=DecodePacked(model.decoder, constants),
        )
