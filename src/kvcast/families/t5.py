"""T5: 1.0, 1.1, FLAN-T5, mT5, ByT5 and T5-PEGASUS as data.

Canonical tensors are [out, in], as in torch's Linear. Query, key and value of self-attention are
one tensor in this order, and so are key and value of cross-attention, and gate and up. Tables of
relative positions are [buckets, heads]. Knows no file format, weights, text or runtimes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from kvcast.errors import KvcastError
from kvcast.families.base import Family, PrecisionRoles, Probe
from kvcast.families.caches import self_and_cross_caches
from kvcast.families.programs import (
    Argument,
    ProgramSignature,
    cross_argument,
    decode_program,
    encode_program,
)
from kvcast.spec.sizes import MOST_POSITIONS, require_layers, require_one_of, require_positive

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
# Relative positions have no limit, but caches and biases need one.
POSITIONS = 4096
_PROBED_SOURCE = 40
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


def tensor_shapes(dimensions: T5Dimensions) -> dict[str, tuple[int, ...]]:
    """Return every canonical name with its shape."""
    width, vocab = dimensions.width, dimensions.vocab_size
    mixed = dimensions.heads * dimensions.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (vocab, width)}
    if not dimensions.tied:
        shapes["head.weight"] = (vocab, width)
    for stack, layers in (
        ("encoder", dimensions.encoder_layers),
        ("decoder", dimensions.decoder_layers),
    ):
        shapes[f"{stack}.bias.weight"] = (dimensions.buckets, dimensions.heads)
        shapes[f"{stack}.norm.weight"] = (width,)
        attention = {
            "self_attention_norm.weight": (width,),
            "self_attention.qkv.weight": (3 * mixed, width),
            "self_attention.out.weight": (width, mixed),
        }
        layer = attention | _feed_forward_shapes(dimensions)
        if stack == "decoder":
            layer |= {
                "cross_attention_norm.weight": (width,),
                "cross_attention.query.weight": (mixed, width),
                "cross_attention.key_value.weight": (2 * mixed, width),
                "cross_attention.out.weight": (width, mixed),
            }
        for i in range(layers):
            shapes |= {f"{stack}.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def _feed_forward_shapes(dimensions: T5Dimensions) -> dict[str, tuple[int, ...]]:
    width, inner = dimensions.width, dimensions.inner
    up = {"gate_up": 2 * inner} if dimensions.gated else {"up": inner}
    return {
        "feed_forward_norm.weight": (width,),
        **{f"feed_forward.{name}.weight": (size, width) for name, size in up.items()},
        "feed_forward.down.weight": (width, inner),
    }


def _programs(dimensions: T5Dimensions) -> Mapping[str, ProgramSignature]:
    own, cross = self_and_cross_caches(dimensions)
    source = Argument(name="source", shape=("batch", "source"), dtype="int64")
    lengths = Argument(name="source_lengths", shape=("batch",), dtype="int32", example=(5, 3))
    return {
        "encode": encode_program(cross, source, lengths),
        "decode": decode_program([own], ["logits"], cross_argument(cross, "source"), lengths),
    }


def _probe(dimensions: T5Dimensions) -> Probe:
    """Return two sources of different lengths."""
    generator = np.random.default_rng(0)
    lengths_b = np.array([_PROBED_SOURCE, _PROBED_SOURCE // 2], np.int32)
    source_bt = generator.integers(0, dimensions.vocab_size, (len(lengths_b), _PROBED_SOURCE))
    return Probe(
        prompts=[np.array([dimensions.start_token])] * len(lengths_b),
        source=(source_bt, lengths_b),
    )


T5 = Family(
    name="t5",
    title="T5",
    task="generate",
    interface="encoder-decoder",
    dimensions=T5Dimensions,
    positions=lambda dimensions: dimensions.target_positions,
    caches=self_and_cross_caches,
    programs=_programs,
    tensor_shapes=tensor_shapes,
    precision=PrecisionRoles(
        tables=("model.embedding.weight", "model.head.weight"), outliers=("gate", "activation")
    ),
    probe=_probe,
    program_class="kvcast.models.programs.t5:T5Programs",
    model_class="kvcast.text.t5:T5Model",
    work_class="kvcast.inspect.work.t5:T5Work",
    biased=True,
    facts=lambda dimensions: {"start_tokens": [dimensions.start_token]},
)
