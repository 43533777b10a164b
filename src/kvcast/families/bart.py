"""BART and its relatives, which read texts and write others, as data: Marian, mBART, NLLB, ...

Canonical tensors are [out, in], as in torch's Linear. Positions are rows of a table for each stack,
whether they were learned or are waves. A Marian's decoder may have SSRUs (`stacks`), as the models
of Firefox have: its cache is a state of each layer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from kvcast.errors import KvcastError
from kvcast.families.base import Family, PrecisionRoles
from kvcast.families.blocks import project_cross_caches
from kvcast.families.programs import CacheLayers, self_and_cross_caches
from kvcast.families.stacks import (
    PROBED,
    SOURCE,
    SOURCE_LENGTHS,
    Block,
    decode,
    source_probe,
    source_programs,
)
from kvcast.spec.program import Program, ProgramWriter
from kvcast.spec.sizes import (
    ACTIVATIONS,
    require_heads,
    require_layers,
    require_one_of,
    require_positions,
    require_positive,
    require_token,
)

_SIZES = (
    "vocab_size",
    "width",
    "encoder_inner",
    "decoder_inner",
    "encoder_heads",
    "decoder_heads",
    "encoder_layers",
    "decoder_layers",
    "source_positions",
    "target_positions",
)


@dataclass(frozen=True, kw_only=True)
class BartDimensions:
    architecture: str  # the checkpoint's name for it, for people only: "bart", "marian", ...
    vocab_size: int  # rows of the embedding; the target's if the source has its own
    width: int
    encoder_inner: int
    decoder_inner: int
    encoder_heads: int
    decoder_heads: int  # number of heads of each attention in the decoder
    encoder_layers: int
    decoder_layers: int
    source_positions: int
    target_positions: int  # length of the longest target, including the start token
    start_token: int
    source_vocab_size: int | None = None  # rows of the source's embedding; None if shared
    activation: str = "gelu"  # of the feed-forward; one of ACTIVATIONS
    norm_first: bool = False  # pre-norm, or post-norm after residuals
    embedding_norm: bool = False
    late_positions: bool = False  # whether positions are added to normed embeddings
    final_norm: bool = False
    embedding_scale: float = 1.0
    tied: bool = True
    head_bias: bool = False
    zero_start: bool = False  # whether a target's first token has an embedding of zeros
    recurrent: bool = False  # whether the decoder has SSRUs in place of self-attention
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        require_positive(**{name: getattr(self, name) for name in _SIZES})
        if self.source_vocab_size is not None:
            require_positive(source_vocab_size=self.source_vocab_size)
        require_layers(self.encoder_layers, self.decoder_layers)
        require_one_of("activation", self.activation, ACTIVATIONS)
        require_heads(self.width, self.encoder_heads, self.decoder_heads)
        require_positions(
            source_positions=self.source_positions, target_positions=self.target_positions
        )
        require_token("start_token", self.start_token, self.vocab_size)
        if not 0 < self.norm_eps < math.inf:
            raise KvcastError("norm_eps must be a finite number above 0")

    @property
    def head_dim(self) -> int:
        return self.width // self.decoder_heads

    @property
    def head(self) -> str:
        return "embedding" if self.tied else "head"

    @property
    def source_tokens(self) -> int:
        return self.source_vocab_size or self.vocab_size

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        try:
            return cls(**fields)
        except TypeError as error:
            raise KvcastError(f"not the dimensions of a BART: {error}") from None


def _caches(dimensions: BartDimensions) -> tuple[CacheLayers, ...]:
    own, cross = self_and_cross_caches(dimensions)
    if dimensions.recurrent:
        own = CacheLayers(
            kind="state", layers=own.layers, heads=1, capacity=1, head_dim=dimensions.width
        )
    return own, cross


def _encode(write: ProgramWriter, dimensions: BartDimensions) -> Program:
    block, width = Block(write, dimensions, dimensions.encoder_inner), dimensions.width
    positions = write.step("arange", write.size(SOURCE, 1), dtype="int64")
    own = dimensions.source_vocab_size is not None
    table = "source_embedding.weight" if own else "embedding.weight"
    places = dimensions.source_positions, write.step("unsqueeze", positions, 0)
    x = block.embed(table, dimensions.source_tokens, SOURCE, *places, "encoder")
    heads = dimensions.encoder_heads
    scale = (width // heads) ** -0.5
    for i in range(dimensions.encoder_layers):
        layer = f"encoder.layers.{i}"
        name = f"{layer}.self_attention"
        qkv = block.qkv(x, name)
        mixed = write.step("encoder_attention", *qkv, heads, scale, SOURCE_LENGTHS)
        x = block.add_feed_forward(block.add_attention(x, mixed, name), layer)
    encoded = block.final_norm(x, "encoder")
    layers, heads = dimensions.decoder_layers, dimensions.decoder_heads
    shape = 2 * width, width
    return write.program(**project_cross_caches(write, encoded, layers, shape, heads, bias=True))


BART = Family(
    name="bart",
    title="BART",
    task="generate",
    interface="encoder-decoder",
    dimensions=BartDimensions,
    positions=lambda dimensions: dimensions.target_positions,
    caches=_caches,
    programs=lambda dimensions: source_programs(_caches(dimensions)),
    writers={"encode": _encode, "decode": decode},
    constants=lambda _, __: {},
    precision=PrecisionRoles(fused=False),
    probe=lambda dimensions: source_probe(
        dimensions, dimensions.source_tokens, min(PROBED, dimensions.source_positions)
    ),
    model_class="kvcast.text.text2text:BartModel",
    usual_prompt=lambda _: 1,  # the token that targets begin with
    facts=lambda dimensions: {"start_tokens": [dimensions.start_token]},
)
