"""A decoder-only model's program `decode`, for new positions in rows or packed.

Pure: caches are arguments and results, and there is no other state. Both forms run the same model
and differ in how they call attention. The form in rows is exported. The eager runtime uses the
packed one: rows may have different numbers of new positions, and linear layers see no padding.
Knows nothing of files or tokens' meaning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kvcast.families.decoder import DecoderDimensions
from kvcast.models.decoder import Decoder, DecoderModel
from kvcast.models.ops.attention import packed_self_attention, self_attention
from kvcast.models.programs.weights import load_weights

LayerCache = tuple[Tensor, Tensor]


class AttentionConstants(nn.Module):
    """Attention's constants in each layer: scale, window, soft cap and rotary tables."""

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
        """Return a layer's scale, window, soft cap, cosines and sines [positions, d / 2]."""
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
    """Takes the same number of new positions for every row."""

    def forward(
        self, tokens_rs: Tensor, lengths: Tensor, offsets: Tensor, caches: Sequence[LayerCache]
    ) -> tuple[Tensor, Sequence[LayerCache]]:
        """Process s new tokens per row: many for prefill, one for a step.

        Args:
            tokens_rs: int64 [rows, s].
            lengths: int32 [rows], positions in the cache before this call.
            offsets: int64 [p], which of the s new positions get logits.
            caches: (key, value) [rows, kv_heads, capacity, d] per layer, written in place.

        Returns:
            Logits fp32 [rows, p, vocab] and the caches.

        """

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return self_attention(
                query, key, value, *caches[layer], lengths, *self.constants.of(layer)
            )

        hidden = self.decoder(tokens_rs, attend)
        # Only the requested positions go through the head, which costs as much as many layers.
        chosen = hidden.index_select(1, offsets)
        logits = self.decoder.logits(chosen.flatten(0, 1))
        return logits.unflatten(0, chosen.shape[:2]), caches


class DecodePacked(_Program):
    """Takes any number of new positions for each row, concatenated."""

    def forward(
        self,
        tokens_n: Tensor,
        rows: list[int],
        counts: list[int],
        lengths: Tensor,
        logits_at: Tensor,
        caches: Sequence[LayerCache],
    ) -> tuple[Tensor, Sequence[LayerCache]]:
        """Process new tokens of some rows: many for prefill, one for a step.

        Args:
            tokens_n: int64 [n], the new tokens of these rows, concatenated.
            rows: the rows of the caches that take part.
            counts: the number of new tokens of each.
            lengths: int32 [rows of the caches], positions in the cache before this call.
            logits_at: int64 [m], which of the n positions get logits.
            caches: (key, value) [rows, kv_heads, capacity, d] per layer, written in place.

        Returns:
            Logits fp32 [m, vocab] and the caches.

        """

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return packed_self_attention(
                query, key, value, *caches[layer], rows, counts, lengths, *self.constants.of(layer)
            )

        hidden = self.decoder(tokens_n, attend)
        return self.decoder.logits(hidden[logits_at]), caches


@dataclass(frozen=True, kw_only=True)
class DecoderPrograms:
    """Both forms of the program, with shared weights."""

    dimensions: DecoderDimensions
    decode: Decode
    decode_packed: DecodePacked

    @classmethod
    def from_tensors(
        cls, dimensions: DecoderDimensions, tensors: Mapping[str, NDArray[np.generic]]
    ) -> "DecoderPrograms":
        """Build in fp32 from tensors by canonical name; KvcastError if names or shapes differ."""
        with torch.device("meta"):
            model = DecoderModel(dimensions)
        load_weights(model, tensors)
        constants = AttentionConstants(dimensions)
        return cls(
            dimensions=dimensions,
            decode=Decode(model.decoder, constants),
            decode_packed=DecodePacked(model.decoder, constants),
        )
