"""The dimensions of a T5: 1.0, 1.1, FLAN-T5, mT5, ByT5 and T5-PEGASUS as data.

Knows nothing of weights, tokens' text or runtimes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from kvcast.errors import KvcastError
from kvcast.spec.sizes import MOST_POSITIONS, require_one_of, require_positive

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
# Relative positions have no end; caches and biases want one.
POSITIONS = 4096
_SIZES = (
    "vocab_size",
    "width",
    "inner",
    "heads",
    "head_dim",
    "encoder_layers",
    "decoder_layers",
    "buckets",
    "max_distance",
    "source_positions",
    "target_positions",
)


@dataclass(frozen=True, kw_only=True)
class T5Dimensions:
    """What fixes every tensor shape of a T5 and all that it computes.

    Attributes:
        architecture: what the checkpoint calls itself, for people only: "t5", "mt5", ...
        vocab_size: rows of the embedding.
        width: numbers of a hidden state.
        inner: width of the feed-forward.
        heads: of every attention; heads * head_dim need not be the width.
        head_dim: numbers of a head.
        encoder_layers: how many.
        decoder_layers: how many.
        buckets: of relative positions; the encoder has half of them for each direction.
        max_distance: from here on all distances share a bucket.
        activation: of the feed-forward, or of its gate; one of ACTIVATIONS.
        gated: whether the feed-forward has a gate (1.1 and later).
        tied: whether the head is the embedding (1.0).
        logit_scale: factor on what meets the head (1.0: width ** -0.5).
        norm_eps: of every RMS norm.
        cross_bias: whether cross-attention has the decoder's position bias too (bert4keras).
        start_token: what a target begins with.
        source_positions: longest source.
        target_positions: longest target, start token included.

    """

    architecture: str
    vocab_size: int
    width: int
    inner: int
    heads: int
    head_dim: int
    encoder_layers: int
    decoder_layers: int
    buckets: int = 32
    max_distance: int = 128
    activation: str = "relu"
    gated: bool = False
    tied: bool = True
    logit_scale: float = 1.0
    norm_eps: float = 1e-6
    cross_bias: bool = False
    start_token: int = 0
    source_positions: int = POSITIONS
    target_positions: int = POSITIONS

    def __post_init__(self) -> None:
        require_positive(**{name: getattr(self, name) for name in _SIZES})
        require_one_of("activation", self.activation, ACTIVATIONS)
        if self.buckets % 4 or self.max_distance <= self.buckets // 2:
            raise KvcastError(
                f"{self.buckets} buckets over a distance of {self.max_distance} are not possible"
            )
        if max(self.source_positions, self.target_positions, self.max_distance) > MOST_POSITIONS:
            raise KvcastError("there are more positions than any model has")
        if not 0 <= self.start_token < self.vocab_size:
            raise KvcastError(f"start_token {self.start_token} is none of {self.vocab_size} tokens")

    @property
    def decoder_heads(self) -> int:
        """Heads of the decoder's caches."""
        return self.heads

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuild from `asdict`'s output; raises KvcastError on missing or foreign fields."""
        try:
            return cls(**fields)
        except TypeError as error:
            raise KvcastError(f"not the dimensions of a T5: {error}") from None
