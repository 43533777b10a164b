"""T5's two programs, `encode` and `decode`, and their weights.

Both are pure: caches are arguments and results, nothing else remembers. `decode` writes its self
caches in place and returns them, so an exported graph has a past and a present for each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kvcast.models.t5 import T5, LayerCache
from kvcast.programs.weights import load_weights
from kvcast.spec.t5 import T5Dimensions


class Encode(nn.Module):
    """Source tokens to the cross keys and values of every decoder layer."""

    def __init__(self, model: T5) -> None:
        super().__init__()
        self.model = model

    def forward(self, source_bt: Tensor, source_lengths: Tensor) -> list[LayerCache]:
        """Encode sources once.

        Args:
            source_bt: int64 [batch, t]; what follows a source may be any token.
            source_lengths: int32 [batch], tokens of each source, 1 or more.

        Returns:
            One (key, value) [batch, heads, t, d] a layer.

        """
        hidden_btx = self.model.encoder(self.model.embedding(source_bt), source_lengths)
        return self.model.decoder.project_cross(hidden_btx)


class Decode(nn.Module):
    """New target tokens over caches to logits and caches."""

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
        """Prefill and step in one: s new tokens a row, s chosen by the caller.

        Args:
            tokens_rs: int64 [rows, s].
            lengths: int32 [rows], positions held before this call.
            offsets: int64 [p], which of the s new positions get logits.
            self_caches: (key, value) [rows, heads, capacity, d] a layer, written in place.
            cross_caches: (key, value) [batch, heads, t, d] a layer; rows a multiple of batch.
            source_lengths: int32 [batch], as `encode` was given them.

        Returns:
            Logits fp32 [rows, p, vocab] and the self caches.

        """
        hidden_rsx = self.model.decoder(
            self.model.embedding(tokens_rs), lengths, self_caches, cross_caches, source_lengths
        )
        # Only the asked-for positions meet the head: it is as large as many layers.
        chosen = hidden_rsx.index_select(1, offsets)
        logits = self.model.logits(chosen.flatten(0, 1))
        return logits.unflatten(0, chosen.shape[:2]), self_caches


@dataclass(frozen=True, kw_only=True)
class T5Programs:
    """Both programs over one set of weights."""

    dimensions: T5Dimensions
    encode: Encode
    decode: Decode

    @classmethod
    def from_tensors(
        cls, dimensions: T5Dimensions, tensors: Mapping[str, NDArray[np.generic]]
    ) -> "T5Programs":
        """Build in fp32 from canonical names; raises KvcastError where names or shapes differ."""
        with torch.device("meta"):
            model = T5(dimensions)
        load_weights(model, tensors)
        return cls(dimensions=dimensions, encode=Encode(model), decode=Decode(model))
