"""UniLM generators: RoFormer, SimBERT and other BERTs (Dong et al. 2019, arXiv:1905.03197).

Parameters have kvcast's canonical names, which every checkpoint reader produces. Knows nothing of
text, caches or masks, which are all behind the `attend` that it is given.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from kvcast.families.unilm import UnilmDimensions
from kvcast.models.nn.attention import Attend, GroupedQueryAttention
from kvcast.models.nn.feed_forward import ACTIVATIONS, FeedForward


class UnilmLayer(nn.Module):
    """Post-norm attention and feed-forward: each is added to its input, and the sum is normed."""

    def __init__(self, dimensions: UnilmDimensions, layer: int) -> None:
        super().__init__()
        width = dimensions.width
        self.attention = GroupedQueryAttention(
            layer,
            width,
            dimensions.heads,
            dimensions.kv_heads,
            dimensions.head_dim,
            qkv_bias=True,
            out_bias=True,
        )
        self.attention_norm = nn.LayerNorm(width, dimensions.norm_eps)
        self.feed_forward = FeedForward(width, dimensions.inner, dimensions.activation)
        self.feed_forward_norm = nn.LayerNorm(width, dimensions.norm_eps)

    def forward(self, hidden: Tensor, attend: Attend) -> Tensor:
        """[..., width] to the same shape."""
        hidden = self.attention_norm(hidden + self.attention(hidden, attend))
        return self.feed_forward_norm(hidden + self.feed_forward(hidden))


class Head(nn.Module):
    """The masked-LM head: a transform, the tied embedding and a bias."""

    def __init__(self, dimensions: UnilmDimensions) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[dimensions.activation]
        self.transform = nn.Linear(dimensions.width, dimensions.embedding_width)
        self.norm = nn.LayerNorm(dimensions.embedding_width, dimensions.norm_eps)
        self.bias = nn.Parameter(torch.empty(dimensions.vocab_size))

    def forward(self, hidden: Tensor, embedding_vx: Tensor) -> Tensor:
        """[..., width] to logits [..., vocab]."""
        transformed = self.norm(self.activation(self.transform(hidden)))
        logits_nv = linear(transformed.flatten(0, -2), embedding_vx) + self.bias
        return logits_nv.unflatten(0, hidden.shape[:-1])


class Unilm(nn.Module):
    """Maps tokens to hidden states, and hidden states to logits and sentence vectors."""

    def __init__(self, dimensions: UnilmDimensions) -> None:
        super().__init__()
        width, embedded = dimensions.width, dimensions.embedding_width
        self.embedding = nn.Embedding(dimensions.vocab_size, embedded)
        self.segments = nn.Embedding(dimensions.segments, embedded)
        self.positions = (
            nn.Embedding(dimensions.max_positions, embedded) if dimensions.rotary is None else None
        )
        self.embedding_norm = nn.LayerNorm(embedded, dimensions.norm_eps)
        self.projection = nn.Linear(embedded, width) if embedded != width else None
        self.layers = nn.ModuleList(
            UnilmLayer(dimensions, layer) for layer in range(dimensions.layers)
        )
        self.head = Head(dimensions)
        self.pooler = nn.Linear(width, width) if dimensions.pooled else None

    def forward(
        self, tokens: Tensor, segments: Tensor, positions: Tensor, attend: Attend
    ) -> Tensor:
        """Tokens, their segments and their positions, all [...], to hidden states [..., width]."""
        hidden = self.embedding(tokens) + self.segments(segments)
        if self.positions is not None:
            hidden = hidden + self.positions(positions)
        hidden = self.embedding_norm(hidden)
        if self.projection is not None:
            hidden = self.projection(hidden)
        for layer in self.layers:
            hidden = layer(hidden, attend)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., width] to [..., vocab]."""
        return self.head(hidden, self.embedding.weight)

    def pool(self, hidden: Tensor) -> Tensor:
        """First tokens' hidden states [..., width] to sentence vectors of the same shape.

        Without BERT's tanh, as bert4keras uses SimBERT and RoFormer-Sim (a linear pooler).
        """
        return hidden if self.pooler is None else self.pooler(hidden)
