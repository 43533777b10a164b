"""Attention layers: projections around the operators of `kvcast.models.ops`.

Self-attention has one matrix for query, key and value, and cross-attention one for key and value:
a single wide product is cheaper than several. The layers know nothing of masks or slots, which the
operators derive from lengths.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from kvcast.models.ops.attention import cross_attention, encoder_attention, self_attention

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Layer, query [..., heads * d], key and value [..., kv_heads * d] to mixed [..., heads * d]."""


def split_heads(flat_btx: Tensor, heads: int) -> Tensor:
    """[batch, t, heads * d] to [batch, heads, t, d], contiguous so that it can be a cache."""
    return flat_btx.unflatten(-1, (heads, -1)).transpose(1, 2).contiguous()


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The sizes that determine an attention layer's matrices.

    Attributes:
        width: size of a hidden state.
        count: number of heads, the same for queries, keys and values.
        dim: size of a head; count * dim may differ from the width.
        scale: factor on the products of queries and keys.
        bias: whether matrices have biases.

    """

    width: int
    count: int
    dim: int
    scale: float
    bias: bool

    @classmethod
    def scaled(cls, width: int, count: int) -> Self:
        """Return heads that divide the width, with biases and the scale 1 / sqrt(dim)."""
        dim = width // count
        return cls(width=width, count=count, dim=dim, scale=dim**-0.5, bias=True)

    def in_matrix(self, parts: int) -> nn.Linear:
        """Return a projection to `parts` of query, key and value."""
        return nn.Linear(self.width, parts * self.count * self.dim, bias=self.bias)

    def out_matrix(self) -> nn.Linear:
        """Return the output projection."""
        return nn.Linear(self.count * self.dim, self.width, bias=self.bias)


class EncoderAttention(nn.Module):
    """Self-attention in which every position sees every other; nothing is cached."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = heads.in_matrix(3)
        self.out = heads.out_matrix()

    def forward(
        self, hidden_btx: Tensor, lengths: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """[batch, t, width] to the same shape; see `encoder_attention`."""
        query, key, value = self.qkv(hidden_btx).chunk(3, dim=-1)
        heads = self.heads
        return self.out(
            encoder_attention(query, key, value, heads.count, heads.scale, lengths, bias)
        )


class CachedSelfAttention(nn.Module):
    """Causal self-attention over a linear cache."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.scale = heads.scale
        self.qkv = heads.in_matrix(3)
        self.out = heads.out_matrix()

    def forward(
        self,
        hidden_rsx: Tensor,
        lengths: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        bias: Tensor | None = None,
    ) -> Tensor:
        """[rows, s, width] to the same shape; writes the caches [rows, heads, capacity, d]."""
        query, key, value = self.qkv(hidden_rsx).chunk(3, dim=-1)
        mixed = self_attention(
            query, key, value, key_cache, value_cache, lengths, self.scale, bias=bias
        )
        return self.out(mixed)


class GroupedQueryAttention(nn.Module):
    """Causal self-attention with fewer key and value heads than query heads.

    Only `attend` knows where the cache is and how new positions are laid out, in rows or packed.
    """

    def __init__(
        self,
        layer: int,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        qkv_bias: bool,
        out_bias: bool,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = head_dim
        self.widths = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
        self.qkv = nn.Linear(width, sum(self.widths), bias=qkv_bias)
        self.out = nn.Linear(heads * head_dim, width, bias=out_bias)

    def forward(self, hidden: Tensor, attend: Attend) -> Tensor:
        """[..., width] to the same shape."""
        query, key, value = self.qkv(hidden).split(self.widths, dim=-1)
        return self.out(attend(self.layer, *self.prepared(query, key), value))

    def prepared(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return query and key as they are."""
        return query, key


class NormedGroupedQueryAttention(GroupedQueryAttention):
    """With an RMS norm on each head of queries and keys (arXiv:2302.05442, section 3)."""

    def __init__(self, *sizes: int, norm_eps: float, qkv_bias: bool, out_bias: bool) -> None:
        super().__init__(*sizes, qkv_bias=qkv_bias, out_bias=out_bias)
        self.query_norm = nn.RMSNorm(self.head_dim, norm_eps)
        self.key_norm = nn.RMSNorm(self.head_dim, norm_eps)

    def prepared(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return query and key with every head normed."""
        query = self.query_norm(query.unflatten(-1, (-1, self.head_dim))).flatten(-2)
        key = self.key_norm(key.unflatten(-1, (-1, self.head_dim))).flatten(-2)
        return query, key


class CrossAttention(nn.Module):
    """Attention over an encoder's output, whose keys and values are projected once."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.heads = heads
        self.query = heads.in_matrix(1)
        self.key_value = heads.in_matrix(2)
        self.out = heads.out_matrix()

    def project(self, source_btx: Tensor) -> tuple[Tensor, Tensor]:
        """[batch, t, width] to cached key and value [batch, heads, t, d]."""
        key, value = self.key_value(source_btx).chunk(2, dim=-1)
        return split_heads(key, self.heads.count), split_heads(value, self.heads.count)

    def forward(
        self,
        hidden_rsx: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """[rows, s, width] to the same shape, from `project`'s key and value.

        Beside it the queries of all heads, [rows, s, heads * d].
        """
        query = self.query(hidden_rsx)
        mixed = cross_attention(query, key, value, self.heads.scale, lengths, bias)
        return self.out(mixed), query
