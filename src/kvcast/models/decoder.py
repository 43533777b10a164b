"""Decoder-only models: Mistral, Llama, Qwen, Gemma 3 and Mixtral, which differ in their dimensions.

Parameters have kvcast's canonical names, which every checkpoint reader produces. Knows nothing of
text, caches or the layout of new positions, which are all behind the `attend` that it is given.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from kvcast.families.decoder import DecoderDimensions
from kvcast.models.nn.attention import Attend, GroupedQueryAttention, NormedGroupedQueryAttention
from kvcast.models.nn.feed_forward import ExpertsFeedForward, GatedFeedForward


class DecoderLayer(nn.Module):
    """Pre-norm attention and feed-forward, with post-norms in models that have them."""

    def __init__(self, dimensions: DecoderDimensions, layer: int) -> None:
        super().__init__()

        def norm() -> nn.RMSNorm:
            return nn.RMSNorm(dimensions.width, dimensions.norm_eps)

        def post_norm() -> nn.Module:
            return norm() if dimensions.post_norms else nn.Identity()

        self.attention_norm = norm()
        self.attention = _attention(dimensions, layer)
        self.attention_post_norm = post_norm()
        self.feed_forward_norm = norm()
        self.feed_forward = _feed_forward(dimensions)
        self.feed_forward_post_norm = post_norm()

    def forward(self, hidden: Tensor, attend: Attend) -> Tensor:
        """[..., width] to the same shape."""
        mixed = self.attention(self.attention_norm(hidden), attend)
        hidden = hidden + self.attention_post_norm(mixed)
        fed = self.feed_forward(self.feed_forward_norm(hidden))
        return hidden + self.feed_forward_post_norm(fed)


class Decoder(nn.Module):
    """Maps new tokens to hidden states, and hidden states to logits."""

    def __init__(self, dimensions: DecoderDimensions) -> None:
        super().__init__()
        self.embedding_scale = dimensions.embedding_scale
        self.logit_softcap = dimensions.logit_softcap
        self.embedding = nn.Embedding(dimensions.vocab_size, dimensions.width)
        self.layers = nn.ModuleList(
            DecoderLayer(dimensions, layer) for layer in range(dimensions.layers)
        )
        self.norm = nn.RMSNorm(dimensions.width, dimensions.norm_eps)
        self.head = (
            None
            if dimensions.tied
            else nn.Linear(dimensions.width, dimensions.vocab_size, bias=False)
        )

    def forward(self, tokens: Tensor, attend: Attend) -> Tensor:
        """Tokens of any shape [...] to hidden states [..., width]."""
        hidden = self.embedding(tokens)
        if self.embedding_scale != 1:
            hidden = hidden * self.embedding_scale
        for layer in self.layers:
            hidden = layer(hidden, attend)
        return hidden

    def logits(self, hidden_nx: Tensor) -> Tensor:
        """[n, width] to [n, vocab]."""
        normed_nx = self.norm(hidden_nx)
        logits_nv = (
            linear(normed_nx, self.embedding.weight) if self.head is None else self.head(normed_nx)
        )
        if self.logit_softcap:
            logits_nv = self.logit_softcap * torch.tanh(logits_nv / self.logit_softcap)
        return logits_nv


class DecoderModel(nn.Module):
    """Holds the decoder under the name that canonical parameter names start with."""

    def __init__(self, dimensions: DecoderDimensions) -> None:
        super().__init__()
        self.decoder = Decoder(dimensions)


def _attention(dimensions: DecoderDimensions, layer: int) -> nn.Module:
    sizes = (
        layer,
        dimensions.width,
        dimensions.heads,
        dimensions.kv_heads,
        dimensions.head_dim,
    )
    biases = {"qkv_bias": dimensions.qkv_bias, "out_bias": dimensions.out_bias}
    if dimensions.query_key_norm:
        return NormedGroupedQueryAttention(*sizes, norm_eps=dimensions.norm_eps, **biases)
    return GroupedQueryAttention(*sizes, **biases)


def _feed_forward(dimensions: DecoderDimensions) -> nn.Module:
    if dimensions.experts:
        return ExpertsFeedForward(
            dimensions.width, dimensions.inner, dimensions.experts, dimensions.experts_per_token
        )
    return GatedFeedForward(dimensions.width, dimensions.inner, dimensions.activation)
