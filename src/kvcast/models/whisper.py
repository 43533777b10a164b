"""Whisper (Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision").

Parameters have kvcast's canonical names, which every checkpoint reader produces. Knows nothing of
audio, text or runtimes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, gelu, linear

from kvcast.families.whisper import WhisperDimensions
from kvcast.models.nn.attention import CachedSelfAttention, CrossAttention, EncoderAttention, Heads
from kvcast.models.nn.feed_forward import FeedForward

# One layer's key and value.
LayerCache = tuple[Tensor, Tensor]


class WhisperEncoderLayer(nn.Module):
    """Pre-norm self-attention and feed-forward."""

    def __init__(self, dimensions: WhisperDimensions) -> None:
        super().__init__()
        width = dimensions.d_model
        self.attention_norm = nn.LayerNorm(width)
        self.attention = EncoderAttention(Heads.scaled(width, dimensions.encoder_heads))
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, 4 * width)

    def forward(self, hidden: Tensor) -> Tensor:
        """[batch, t, width] to the same shape."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.feed_forward(self.feed_forward_norm(hidden))


class WhisperEncoder(nn.Module):
    """Maps log-mel features to a sequence of encoded positions."""

    def __init__(self, dimensions: WhisperDimensions) -> None:
        super().__init__()
        width = dimensions.d_model
        self.conv1 = nn.Conv1d(dimensions.n_mels, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)
        self.positions = nn.Parameter(torch.empty(dimensions.source_positions, width))
        self.layers = nn.ModuleList(
            WhisperEncoderLayer(dimensions) for _ in range(dimensions.encoder_layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, features_bmt: Tensor) -> Tensor:
        """[batch, n_mels, 2 * t] to [batch, t, width]."""
        hidden = gelu(self.conv2(gelu(self.conv1(features_bmt))))
        hidden = hidden.transpose(1, 2) + self.positions
        for layer in self.layers:
            hidden = layer(hidden)
        return self.norm(hidden)


class WhisperDecoderLayer(nn.Module):
    """Pre-norm self-attention with a cache, cross-attention and feed-forward."""

    def __init__(self, dimensions: WhisperDimensions) -> None:
        super().__init__()
        width = dimensions.d_model
        heads = Heads.scaled(width, dimensions.decoder_heads)
        self.self_attention_norm = nn.LayerNorm(width)
        self.self_attention = CachedSelfAttention(heads)
        self.cross_attention_norm = nn.LayerNorm(width)
        self.cross_attention = CrossAttention(heads)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, 4 * width)

    def project_cross(self, source_btx: Tensor) -> LayerCache:
        """Project this layer's cross key and value, [batch, heads, t, d] each."""
        return self.cross_attention.project(source_btx)

    def forward(
        self, hidden: Tensor, lengths: Tensor, self_cache: LayerCache, cross_cache: LayerCache
    ) -> tuple[Tensor, Tensor]:
        """[rows, s, width] to the same shape; `self_cache` is written in place.

        Beside it the queries of cross-attention, [rows, s, width].
        """
        hidden = hidden + self.self_attention(
            self.self_attention_norm(hidden), lengths, *self_cache
        )
        mixed, query = self.cross_attention(self.cross_attention_norm(hidden), *cross_cache)
        hidden = hidden + mixed
        return hidden + self.feed_forward(self.feed_forward_norm(hidden)), query


class WhisperDecoder(nn.Module):
    """Maps new tokens to logits, over caches."""

    aligned_channels: Tensor

    def __init__(self, dimensions: WhisperDimensions) -> None:
        super().__init__()
        width = dimensions.d_model
        self.embedding = nn.Embedding(dimensions.vocab_size, width)
        self.positions = nn.Parameter(torch.empty(dimensions.target_positions, width))
        self.layers = nn.ModuleList(
            WhisperDecoderLayer(dimensions) for _ in range(dimensions.decoder_layers)
        )
        self.norm = nn.LayerNorm(width)
        heads = dimensions.alignment_heads
        self._aligned_layers = sorted({layer for layer, _ in heads})
        size = dimensions.head_dim
        firsts = [self._aligned_layers.index(layer) * width + head * size for layer, head in heads]
        channels = [channel for first in firsts for channel in range(first, first + size)]
        # Of the aligned layers' queries side by side. Real even where the weights are not yet.
        held = torch.tensor(channels, device="cpu")
        self.register_buffer("aligned_channels", held, persistent=False)

    def project_cross(self, source_btx: Tensor) -> list[LayerCache]:
        """Return every layer's cross key and value [batch, heads, t, d] for an encoder's output."""
        return [layer.project_cross(source_btx) for layer in self.layers]  # type: ignore[operator]

    def forward(
        self,
        tokens_rs: Tensor,
        lengths: Tensor,
        offsets: Tensor,
        self_caches: Sequence[LayerCache],
        cross_caches: Sequence[LayerCache],
    ) -> tuple[Tensor, Tensor]:
        """Return logits and queries of the new tokens [rows, s].

        Logits [rows, len(offsets), vocab] are those at `offsets`; queries [rows, s, heads * d] are
        cross-attention's of the alignment heads, in their order.
        """
        positions_rs = lengths[:, None] + torch.arange(tokens_rs.shape[1], device=tokens_rs.device)
        hidden = self.embedding(tokens_rs) + embedding(positions_rs, self.positions)
        queries = []
        for layer, self_cache, cross_cache in zip(
            self.layers, self_caches, cross_caches, strict=True
        ):
            hidden, query = layer(hidden, lengths, self_cache, cross_cache)
            queries.append(query)
        # Only the requested positions go through the head, which is as large as all layers of a
        # small model.
        chosen = self.norm(hidden.index_select(1, offsets))
        logits = linear(chosen.flatten(0, 1), self.embedding.weight)
        # One selection for all heads: a step would notice one for each.
        side_by_side = torch.cat([queries[layer] for layer in self._aligned_layers], dim=-1)
        aligned = side_by_side.index_select(-1, self.aligned_channels)
        return logits.unflatten(0, chosen.shape[:2]), aligned


class Whisper(nn.Module):
    """Encoder and decoder, as in checkpoints."""

    def __init__(self, dimensions: WhisperDimensions) -> None:
        super().__init__()
        self.encoder = WhisperEncoder(dimensions)
        self.decoder = WhisperDecoder(dimensions)
