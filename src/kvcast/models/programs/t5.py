"""T5's two programs, `encode` and `decode`, and their weights.

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

from kvcast.families.t5 import T5Dimensions
from kvcast.models.programs.weights import load_weights
from kvcast.models.t5 import T5, LayerCache


class T5Encode(nn.Module):
    """Maps source tokens to the cross keys and values of every decoder layer."""

    def __init__(self, model: T5) -> None:
        super().__init__()
        self.model = model

    def forward(self, source_bt: Tensor, source_lengths: Tensor) -> list[LayerCache]:
        """Encode sources.

        Args:
            source_bt: int64 [batch, t]; the padding after a source may be any token.
            source_lengths: int32 [batch], number of tokens of each source, 1 or more.

        Returns:
            One (key, value) [batch, heads, t, d] per layer.

        """
        hidden_btx = self.model.encoder(self.model.embedding(source_bt), source_lengths)
        return self.model.decoder.project_cross(hidden_btx)


class T5Decode(nn.Module):
    """Maps new target tokens to logits, over caches."""

    def __init__(self, model: T5) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens_rs: Tensor,
        lengths: Tensor,
        offsets: Tensor,
        self_caches: Sequence[LayerCache],
        cross_caches: Sequence[LayerCache],
        source_lengths: Tensor,
    ) -> tuple[Tensor, Sequence[LayerCache]]:
        """Process s new tokens per row: many for prefill, one for a step.

        Args:
            tokens_rs: int64 [rows, s].
            lengths: int32 [rows], positions in the cache before this call.
            offsets: int64 [p], which of the s new positions get logits.
            self_caches: (key, value) [rows, heads, capacity, d] per layer, written in place.
            cross_caches: (key, value) [batch, heads, t, d] per layer; rows is a multiple of batch.
            source_lengths: int32 [batch], the same as for `encode`.

        Returns:
            Logits fp32 [rows, p, vocab] and the self caches.

        """
        hidden_rsx = self.model.decoder(
            self.model.embedding(tokens_rs), lengths, self_caches, cross_caches, source_lengths
        )
        # Only the requested positions go through the head, which costs as much as many layers.
        chosen = hidden_rsx.index_select(1, offsets)
        logits = self.model.logits(chosen.flatten(0, 1))
        return logits.unflatten(0, chosen.shape[:2]), self_caches


@dataclass(frozen=True, kw_only=True)
class T5Programs:
    """Both programs, with shared weights."""

    dimensions: T5Dimensions
    encode: T5Encode
    decode: T5Decode

    @classmethod
    def from_tensors(
        cls, dimensions: T5Dimensions, tensors: Mapping[str, NDArray[np.generic]]
    ) -> "T5Programs":
        """Build in fp32 from tensors by canonical name; KvcastError if names or shapes differ."""
        with torch.device("meta"):
            model = T5(dimensions)
        load_weights(model, tensors)
        return cls(dimensions=dimensions, encode=T5Encode(model), decode=T5Decode(model))
