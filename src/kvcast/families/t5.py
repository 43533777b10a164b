"""The dimensions of a T5: 1.0, 1.1, FLAN-T5, mT5, ByT5 and T5-PEGASUS as data.

Knows nothing of weights, text or runtimes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from kvcast.errors import KvcastError
from kvcast.spec.sizes import MOST_POSITIONS, require_layers, require_one_of, require_positive

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
# Relative positions have no limit, but caches and biases need one.
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
    """Everything that determines a T5's tensor shapes and computation.

    Attributes:
        architecture: the checkpoint's name for it, for people only: "t5", "mt5", ...
        vocab_size: rows of the embedding.
        width: size of a hidden state.
        inner: inner width of the feed-forward.
        heads: number of heads of every attention; heads * head_dim may differ from the width.
        head_dim: size of a head.
        encoder_layers: number of layers of the encoder.
        decoder_layers: number of layers of the decoder.
        buckets: number of buckets of relative positions; the encoder has half per direction.
        max_distance: from this distance on, all share a bucket.
        activation: of the feed-forward, or of its gate; one of ACTIVATIONS.
        gated: whether the feed-forward has a gate (1.1 and later).
        tied: whether the head is the embedding (1.0).
        logit_scale: factor on the head's input (1.0: width ** -0.5).
        norm_eps: of every RMS norm.
        cross_bias: whether cross-attention has the decoder's position bias too (bert4keras).
        start_token: the first token of a target.
        source_positions: length of the longest source.
        target_positions: length of the longest target, including the start token.

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
        require_layers(self.encoder_layers, self.decoder_layers)
        require_one_of("activation", self.activation, ACTIVATIONS)
        if self.buckets % 4 or self.max_distance <= self.buckets // 2:
            raise KvcastError(
                f"{self.buckets} buckets over a distance of {self.max_distance} are not possible"
            )
        if max(self.source_positions, self.target_positions, self.max_distance) > MOST_POSITIONS:
            raise KvcastError("there are more positions than any model has")
        if type(self.start_token) is not int or not 0 <= self.start_token < self.vocab_size:
            raise KvcastError(
                f"start_token {self.start_token} is not one of {self.vocab_size} tokens"
            )

    @property
    def decoder_heads(self) -> int:
        """Number of heads in the decoder's caches."""
        return self.heads

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuild from `asdict`'s output; raises KvcastError for missing or unknown fields."""
        try:
            return cls(**fields)
        except TypeError as error:
            raise KvcastError(f"not the dimensions of a T5: {error}") from None
