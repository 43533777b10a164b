"""Whisper's two programs, `encode` and `decode`, and their weights.

Both are pure: caches are arguments and results, and there is no other state. `decode` writes its
self caches in place and returns them, so an exported graph has a past and a present for each.
Knows nothing of files, runtimes or tokens' meaning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kvcast.families.whisper import WhisperDimensions
from kvcast.models.programs.weights import load_weights
from kvcast.models.whisper import LayerCache, Whisper


class WhisperEncode(nn.Module):
    """Maps features to the cross keys and values of every decoder layer."""

    def __init__(self, model: Whisper) -> None:
        super().__init__()
        self.encoder = model.encoder
        self.decoder = model.decoder

    def forward(self, features_bmt: Tensor) -> list[LayerCache]:
        """[batch, n_mels, frames] to one (key, value) [batch, heads, frames // 2, d] per layer."""
        return self.decoder.project_cross(self.encoder(features_bmt))


class WhisperDecode(nn.Module):
    """Maps new tokens to logits, over caches."""

    def __init__(self, model: Whisper) -> None:
        super().__init__()
        self.decoder = model.decoder

    def forward(
        self,
        tokens_rs: Tensor,
        lengths: Tensor,
        offsets: Tensor,
        self_caches: Sequence[LayerCache],
        cross_caches: Sequence[LayerCache],
    ) -> tuple[Tensor, Tensor, Sequence[LayerCache]]:
        """Process s new tokens per row: many for prefill, one for a step.

        Args:
            tokens_rs: int64 [rows, s].
            lengths: int32 [rows], positions in the cache before this call.
            offsets: int64 [p], which of the s new positions get logits.
            self_caches: (key, value) [rows, heads, capacity, d] per layer, written in place.
            cross_caches: (key, value) [batch, heads, t, d] per layer; rows is a multiple of batch.

        Returns:
            Logits fp32 [rows, p, vocab]; the alignment heads' queries fp32 [rows, s, heads * d],
            which only words' times need; and the self caches.

        """
        logits, queries = self.decoder(tokens_rs, lengths, offsets, self_caches, cross_caches)
        return logits, queries, self_caches


@dataclass(frozen=True, kw_only=True)
class WhisperPrograms:
    """Both programs, with shared weights."""

    dimensions: WhisperDimensions
    encode: WhisperEncode
    decode: WhisperDecode

    @classmethod
    def from_tensors(
        cls, dimensions: WhisperDimensions, tensors: Mapping[str, NDArray[np.generic]]
    ) -> "WhisperPrograms":
        """Build in fp32 from tensors by canonical name; KvcastError if names or shapes differ."""
        with torch.device("meta"):
            model = Whisper(dimensions)
        load_weights(model, tensors)
        return cls(dimensions=dimensions, encode=WhisperEncode(model), decode=WhisperDecode(model))
