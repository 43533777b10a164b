"""Whisper (Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision").

Parameters have kvcast's canonical names, which every checkpoint reader produces. Knows nothing of
audio, text or runtimes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, gelu, linear

from kvcast.nn.attention import CachedSelfAttention, CrossAttention, EncoderAttention, Heads
from kvcast.nn.feed_forward import FeedForward
from kvcast.spec.whisper import WhisperDimensions

# One layer's key and value.
LayerCache = tuple[Tensor, Tensor]


class EncoderLayer(nn.Module):
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


class Encoder(nn.Module):
    """Maps log-mel features to a sequence of encoded positions."""

    def __init__(self, dimensions: WhisperDimensions) -> None:
        super().__init__()
        width = dimensions.d_model
        self.conv1 = nn.Conv1d(dimensions.n_mels, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)
        self.positions = nn.Parameter(torch.empty(dimensions.source_positions, width))
        self.layers = nn.ModuleList(
            EncoderLayer(dimensions) for _ in range(dimensions.encoder_layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, features_bmt: Tensor) -> Tensor:
        """[batch, n_mels, 2 * t] to [batch, t, width]."""
        hidden = gelu(self.conv2(gelu(self.conv1(features_bmt))))
        hidden = hidden.transpose(1, 2) + self.positions
        for layer in self.layers:
            hidden = layer(hidden)
        return self.norm(hidden)


class DecoderLayer(nn.Module):
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
    ) -> Tensor:
        """[rows, s, width] to the same shape; `self_cache` is written in place."""
        hidden = hidden + self.self_attention(
            self.self_attention_norm(hidden), lengths, *self_cache
        )
        hidden = hidden + self.cross_attention(self.cross_attention_norm(hidden), *cross_cache)
        return hidden + self.feed_forward(self.feed_forward_norm(hidden))


class Decoder(nn.Module):
    """Maps new tokens to logits, over caches."""

    def __init__(self, dimensions: WhisperDimensions) -> None:
        super().__init__()
        width = dimensions.d_model
        self.embedding = nn.Embedding(dimensions.vocab_size, width)
        self.positions = nn.Parameter(torch.empty(dimensions.target_positions, width))
        self.layers = nn.ModuleList(
            DecoderLayer(dimensions) for _ in range(dimensions.decoder_layers)
        )
        self.norm = nn.LayerNorm(width)

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
    ) -> Tensor:
        """Return logits [rows, len(offsets), vocab] at `offsets` in the new tokens [rows, s]."""
        positions_rs = lengths[:, None] + torch.arange(tokens_rs.shape[1], device=tokens_rs.device)
        hidden = self.embedding(tokens_rs) + embedding(positions_rs, self.positions)
        for layer, self_cache, cross_cache in zip(
            self.layers, self_caches, cross_caches, strict=True
        ):
            hidden = layer(hidden, lengths, self_cache, cross_cache)
        # Only the requested positions go through the head, which is as large as all layers of a
        # small model.
        chosen = self.norm(hidden.index_select(1, offsets))
        logits = linear(chosen.flatten(0, 1), self.embedding.weight)
        return logits.unflatten(0, chosen.shape[:2])


class Whisper(nn.Module):
    """Encoder and decoder, as in checkpoints."""

    def __init__(self, dimensions: WhisperDimensions) -> None:
        super().__init__()
        self.encoder = Encoder(dimensions)
        self.decoder = Decoder(dimensions)
