"""The dimensions of a UniLM generator (Dong et al. 2019, arXiv:1905.03197): RoFormer, SimBERT.

A BERT with a mask by which source positions see the whole source, and target positions everything
up to themselves. Knows nothing of weights, text or runtimes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from kvcast.errors import KvcastError
from kvcast.spec.rotary import Rotary
from kvcast.spec.sizes import MOST_POSITIONS, require_layers, require_one_of, require_positive

ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
_SIZES = (
    "vocab_size",
    "segments",
    "width",
    "embedding_width",
    "inner",
    "heads",
    "layers",
    "max_positions",
)


@dataclass(frozen=True, kw_only=True)
class UnilmDimensions:
    """Everything that determines a UniLM's tensor shapes and computation.

    Attributes:
        architecture: the checkpoint's name for it, for people only: "roformer", "bert", ...
        vocab_size: rows of the embedding.
        segments: number of segments, 2 or more: 0 is the source, 1 the target.
        width: size of a hidden state.
        embedding_width: size of an embedding; if it is not the width, it is projected.
        inner: inner width of the feed-forward.
        heads: number of heads of every attention.
        layers: number of layers.
        max_positions: length of the longest sequence, source and target together.
        rotary: for queries and keys (RoFormer); None: learned positions (BERT, SimBERT).
        activation: of the feed-forward and the head, one of ACTIVATIONS.
        norm_eps: of every layer norm.
        pooled: whether there is a pooler, a matrix over the first token's hidden state.

    """

    architecture: str
    vocab_size: int
    segments: int
    width: int
    embedding_width: int
    inner: int
    heads: int
    layers: int
    max_positions: int
    rotary: Rotary | None
    activation: str = "gelu"
    norm_eps: float = 1e-12
    pooled: bool = False

    def __post_init__(self) -> None:
        require_positive(**{name: getattr(self, name) for name in _SIZES})
        require_layers(self.layers)
        require_one_of("activation", self.activation, ACTIVATIONS)
        if self.width % self.heads:
            raise KvcastError(f"width {self.width} is not a multiple of {self.heads} heads")
        if self.rotary is not None and self.head_dim % 2:
            raise KvcastError(f"rotary positions need an even head_dim, not {self.head_dim}")
        if self.segments < 2:
            raise KvcastError("a UniLM has 2 segments, source and target: this model has 1")
        if self.max_positions > MOST_POSITIONS:
            raise KvcastError(f"max_positions {self.max_positions} is more than any model has")

    @property
    def head_dim(self) -> int:
        """Size of a head."""
        return self.width // self.heads

    @property
    def kv_heads(self) -> int:
        """Number of heads in the caches."""
        return self.heads

    @property
    def windows(self) -> tuple[None, ...]:
        """One None per layer: every layer sees all positions."""
        return (None,) * self.layers

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuild from `asdict`'s output; raises KvcastError for missing or unknown fields."""
        try:
            rotary = fields["rotary"]
            return cls(**{**fields, "rotary": None if rotary is None else Rotary(**rotary)})
        except (TypeError, KeyError) as error:
            raise KvcastError(f"not the dimensions of a UniLM: {error}") from None
