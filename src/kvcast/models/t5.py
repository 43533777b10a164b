"""T5 (Raffel et al. 2020, arXiv:1910.10683), T5 1.1 and relatives, which differ in dimensions.

Pre-norm layers without biases or attention scale; all layers of a stack share one relative position
bias. Parameters have kvcast's canonical names, which every checkpoint reader produces. Knows
nothing of text or runtimes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from kvcast.families.t5 import T5Dimensions
from kvcast.models.nn.attention import CachedSelfAttention, CrossAttention, EncoderAttention, Heads
from kvcast.models.nn.feed_forward import FeedForward, GatedFeedForward
from kvcast.models.nn.relative import RelativeBias

# One layer's key and value.
LayerCache = tuple[Tensor, Tensor]


class T5EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, dimensions: T5Dimensions) -> None:
        super().__init__()
        self.self_attention_norm = _norm(dimensions)
        self.self_attention = EncoderAttention(_heads(dimensions))
        self.feed_forward_norm = _norm(dimensions)
        self.feed_forward = _feed_forward(dimensions)

    def forward(self, hidden: Tensor, lengths: Tensor, bias: Tensor) -> Tensor:
        """[batch, t, width] to the same shape."""
        hidden = hidden + self.self_attention(self.self_attention_norm(hidden), lengths, bias)
        return hidden + self.feed_forward(self.feed_forward_norm(hidden))


class T5Encoder(nn.Module):
    """Maps embedded source tokens to encoded source positions."""

    def __init__(self, dimensions: T5Dimensions) -> None:
        super().__init__()
        self.bias = _bias(dimensions, bidirectional=True)
        self.layers = nn.ModuleList(
            T5EncoderLayer(dimensions) for _ in range(dimensions.encoder_layers)
        )
        self.norm = _norm(dimensions)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """[batch, t, width] to the same shape; `lengths` [batch] counts each source's tokens."""
        size = hidden.shape[1]
        bias_1htt = self.bias(torch.arange(size, device=hidden.device)[None], size)
        for layer in self.layers:
            hidden = layer(hidden, lengths, bias_1htt)
        return self.norm(hidden)


class T5DecoderLayer(nn.Module):
    """Self-attention with a cache, cross-attention and feed-forward."""

    def __init__(self, dimensions: T5Dimensions) -> None:
        super().__init__()
        self.self_attention_norm = _norm(dimensions)
        self.self_attention = CachedSelfAttention(_heads(dimensions))
        self.cross_attention_norm = _norm(dimensions)
        self.cross_attention = CrossAttention(_heads(dimensions))
        self.feed_forward_norm = _norm(dimensions)
        self.feed_forward = _feed_forward(dimensions)

    def project_cross(self, source_btx: Tensor) -> LayerCache:
        """Project this layer's cross key and value, [batch, heads, t, d] each."""
        return self.cross_attention.project(source_btx)

    def forward(
        self,
        hidden: Tensor,
        own: tuple[Tensor, Tensor, Tensor, Tensor],
        cross: tuple[Tensor, Tensor, Tensor, Tensor | None],
    ) -> Tensor:
        """[rows, s, width] to the same shape.

        `own`: lengths, key and value cache, bias of self-attention; `cross`: key, value, lengths
        and bias of cross-attention.
        """
        hidden = hidden + self.self_attention(self.self_attention_norm(hidden), *own)
        mixed, _ = self.cross_attention(self.cross_attention_norm(hidden), *cross)
        hidden = hidden + mixed
        return hidden + self.feed_forward(self.feed_forward_norm(hidden))


class T5Decoder(nn.Module):
    """Maps embedded target tokens to hidden states, over caches."""

    def __init__(self, dimensions: T5Dimensions) -> None:
        super().__init__()
        self.has_cross_bias = dimensions.cross_bias
        self.bias = _bias(dimensions, bidirectional=False)
        self.layers = nn.ModuleList(
            T5DecoderLayer(dimensions) for _ in range(dimensions.decoder_layers)
        )
        self.norm = _norm(dimensions)

    def project_cross(self, source_btx: Tensor) -> list[LayerCache]:
        """Return every layer's cross key and value [batch, heads, t, d] for an encoder's output."""
        return [layer.project_cross(source_btx) for layer in self.layers]  # type: ignore[operator]

    def forward(
        self,
        hidden: Tensor,
        lengths: Tensor,
        self_caches: Sequence[LayerCache],
        cross_caches: Sequence[LayerCache],
        source_lengths: Tensor,
    ) -> Tensor:
        """[rows, s, width] to the same shape, before the final norm."""
        positions_rs = lengths[:, None] + torch.arange(hidden.shape[1], device=hidden.device)
        bias_rhsc = self.bias(positions_rs, self_caches[0][0].shape[2])
        cross_bias_rhst = None
        if self.has_cross_bias:
            cross_bias_rhst = self.bias(positions_rs, cross_caches[0][0].shape[2])
        for layer, self_cache, cross_cache in zip(
            self.layers, self_caches, cross_caches, strict=True
        ):
            own = (lengths, *self_cache, bias_rhsc)
            hidden = layer(hidden, own, (*cross_cache, source_lengths, cross_bias_rhst))
        return hidden


class T5(nn.Module):
    """Encoder and decoder with a shared embedding, and the head."""

    def __init__(self, dimensions: T5Dimensions) -> None:
        super().__init__()
        self.logit_scale = dimensions.logit_scale
        self.embedding = nn.Embedding(dimensions.vocab_size, dimensions.width)
        self.encoder = T5Encoder(dimensions)
        self.decoder = T5Decoder(dimensions)
        self.head = (
            None
            if dimensions.tied
            else nn.Linear(dimensions.width, dimensions.vocab_size, bias=False)
        )

    def logits(self, hidden_nx: Tensor) -> Tensor:
        """Hidden states of the decoder [n, width] to logits [n, vocab]."""
        normed_nx = self.decoder.norm(hidden_nx)
        if self.logit_scale != 1:
            normed_nx = normed_nx * self.logit_scale
        if self.head is None:
            return linear(normed_nx, self.embedding.weight)
        return self.head(normed_nx)


def _norm(dimensions: T5Dimensions) -> nn.RMSNorm:
    return nn.RMSNorm(dimensions.width, dimensions.norm_eps)


def _heads(dimensions: T5Dimensions) -> Heads:
    return Heads(
        width=dimensions.width,
        count=dimensions.heads,
        dim=dimensions.head_dim,
        scale=1.0,
        bias=False,
    )


def _bias(dimensions: T5Dimensions, *, bidirectional: bool) -> RelativeBias:
    return RelativeBias(
        dimensions.buckets,
        dimensions.max_distance,
        dimensions.heads,
        bidirectional=bidirectional,
    )


def _feed_forward(dimensions: T5Dimensions) -> nn.Module:
    if dimensions.gated:
        return GatedFeedForward(dimensions.width, dimensions.inner, dimensions.activation)
    return FeedForward(dimensions.width, dimensions.inner, dimensions.activation, bias=False)
