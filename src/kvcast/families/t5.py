"""T5: 1.0, 1.1, FLAN-T5, mT5, UMT5, ByT5 and T5-PEGASUS as data.

Canonical tensors are [out, in], as in torch's Linear. Query, key and value of self-attention are
one tensor in this order, and so are key and value of cross-attention, and gate and up. Tables of
relative positions are [buckets, heads].
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.families.base import Family, PrecisionRoles
from kvcast.families.blocks import (
    LENGTHS,
    TOKENS,
    attend,
    bias_by_distance,
    cache_of,
    join_rows,
    new_positions,
    project_cross_caches,
    select_asked,
    split_rows,
)
from kvcast.families.programs import self_and_cross_caches
from kvcast.families.stacks import (
    PROBED,
    SOURCE,
    SOURCE_LENGTHS,
    source_probe,
    source_programs,
)
from kvcast.spec.position_encodings import biases_by_distance, farthest_of
from kvcast.spec.program import Node, Program, ProgramWriter
from kvcast.spec.sizes import (
    ACTIVATIONS,
    require_layers,
    require_one_of,
    require_positions,
    require_positive,
    require_token,
)

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
    architecture: str  # the checkpoint's name for it, for people only: "t5", "mt5", ...
    vocab_size: int
    width: int
    inner: int
    heads: int  # number of heads of every attention; heads * head_dim may differ from the width
    head_dim: int
    encoder_layers: int
    decoder_layers: int
    buckets: int = 32  # number of buckets of relative positions; the encoder has half per direction
    max_distance: int = 128  # from this distance on, all share a bucket
    activation: str = "relu"  # of the feed-forward, or of its gate; one of ACTIVATIONS
    gated: bool = False  # whether the feed-forward has a gate (1.1 and later)
    tied: bool = True  # whether the head is the embedding (1.0)
    logit_scale: float = 1.0  # factor on the head's input (1.0: width ** -0.5)
    norm_eps: float = 1e-6
    layer_bias: bool = False  # whether each layer has its own table of relative positions (UMT5)
    cross_bias: bool = False  # cross-attention has the decoder's position bias, too (bert4keras)
    start_token: int = 0
    source_positions: int = POSITIONS
    target_positions: int = POSITIONS  # length of the longest target, including the start token

    def __post_init__(self) -> None:
        require_positive(**{name: getattr(self, name) for name in _SIZES})
        require_layers(self.encoder_layers, self.decoder_layers)
        require_one_of("activation", self.activation, ACTIVATIONS)
        if self.buckets % 4 or self.max_distance <= self.buckets // 2:
            raise KvcastError(
                f"{self.buckets} buckets over a distance of {self.max_distance} are not possible"
            )
        if self.layer_bias and self.cross_bias:
            raise KvcastError("cross_bias needs one table of relative positions for all layers")
        require_positions(
            source_positions=self.source_positions,
            target_positions=self.target_positions,
            max_distance=self.max_distance,
        )
        require_token("start_token", self.start_token, self.vocab_size)

    @property
    def mixed(self) -> int:
        return self.heads * self.head_dim

    @property
    def decoder_heads(self) -> int:
        return self.heads

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        try:
            return cls(**fields)
        except TypeError as error:
            raise KvcastError(f"not the dimensions of a T5: {error}") from None


def _tables(dimensions: T5Dimensions, stack: str) -> list[str]:
    """Parts of a stack that have a table of relative positions."""
    decodes = stack == "decoder"
    layers = dimensions.decoder_layers if decodes else dimensions.encoder_layers
    if not dimensions.layer_bias:
        return [stack]
    return [f"{stack}.layers.{i}" for i in range(layers)]


def _encode(write: ProgramWriter, dimensions: T5Dimensions) -> Program:
    count = write.size(SOURCE, 1)
    positions = write.step("unsqueeze", write.step("arange", count, dtype="int64"), 0)
    biases = _biases(write, "encoder", positions, [1, count, count], dimensions)
    width, mixed_width = dimensions.width, dimensions.mixed
    x = write.embedding("embedding.weight", SOURCE, (dimensions.vocab_size, width))
    for i in range(dimensions.encoder_layers):
        layer = f"encoder.layers.{i}"
        qkv, bias = _qkv(write, x, layer, dimensions), next(biases)
        mixed = write.step("encoder_attention", *qkv, dimensions.heads, 1.0, SOURCE_LENGTHS, bias)
        out = f"{layer}.self_attention.out"
        x = write.linear(mixed, out, (width, mixed_width), residual=x)
        x = _feed_forward(write, x, layer, dimensions)
    encoded = write.rms_norm(x, "encoder.norm", width, dimensions.norm_eps)
    sizes = dimensions.decoder_layers, (2 * mixed_width, width), dimensions.heads
    return write.program(**project_cross_caches(write, encoded, *sizes, bias=False))


def _decode(write: ProgramWriter, dimensions: T5Dimensions) -> Program:
    positions = new_positions(write)
    sizes = [write.size(LENGTHS, 0), write.size(TOKENS, 1)]
    capacity, source = (write.size(cache_of(kind, 0)[0], 2) for kind in ("past", "cross"))
    biases = _biases(write, "decoder", positions, [*sizes, capacity], dimensions)
    cross_bias = (
        [_bias(write, "decoder", positions, [*sizes, source], dimensions)]
        if dimensions.cross_bias
        else []
    )
    width, epsilon = dimensions.width, dimensions.norm_eps
    vocab, out = (dimensions.vocab_size, width), (width, dimensions.mixed)
    x = write.embedding("embedding.weight", TOKENS, vocab)
    for i in range(dimensions.decoder_layers):
        layer = f"decoder.layers.{i}"
        qkv = _qkv(write, x, layer, dimensions)
        mixed = attend(write, i, qkv, 1.0, bias=next(biases))
        x = write.linear(mixed, f"{layer}.self_attention.out", out, residual=x)
        normed = write.rms_norm(x, f"{layer}.cross_attention_norm", width, epsilon)
        query = write.linear(normed, f"{layer}.cross_attention.query", out[::-1])
        cross = (*cache_of("cross", i), 1.0, SOURCE_LENGTHS, *cross_bias)
        mixed = write.step("cross_attention", query, *cross)
        x = write.linear(mixed, f"{layer}.cross_attention.out", out, residual=x)
        x = _feed_forward(write, x, layer, dimensions)
    asked = join_rows(write, select_asked(write, x))
    normed = write.rms_norm(asked, "decoder.norm", width, epsilon)
    if dimensions.logit_scale != 1:
        normed = write.step("mul", normed, dimensions.logit_scale)
    logits = write.linear(normed, "embedding" if dimensions.tied else "head", vocab)
    return write.program(logits=split_rows(write, logits))


def _qkv(write: ProgramWriter, x: Node, layer: str, dimensions: T5Dimensions) -> list[Node]:
    width, name = dimensions.width, f"{layer}.self_attention"
    normed = write.rms_norm(x, f"{name}_norm", width, dimensions.norm_eps)
    return write.chunk(write.linear(normed, f"{name}.qkv", (3 * dimensions.mixed, width)), 3)


def _feed_forward(write: ProgramWriter, x: Node, layer: str, dimensions: T5Dimensions) -> Node:
    width, inner = dimensions.width, dimensions.inner
    block, activation = f"{layer}.feed_forward", dimensions.activation
    normed = write.rms_norm(x, f"{block}_norm", width, dimensions.norm_eps)
    if dimensions.gated:
        fed = write.linear(normed, f"{block}.gate_up", (2 * inner, width), gate=activation)
    else:
        fed = write.linear(normed, f"{block}.up", (inner, width), activation=activation)
    return write.linear(fed, f"{block}.down", (width, inner), residual=x)


def _biases(
    write: ProgramWriter,
    stack: str,
    positions: Node,
    sizes: Sequence[int | Node],
    dimensions: T5Dimensions,
) -> Iterator[Node]:
    tables = _tables(dimensions, stack)
    own = [_bias(write, table, positions, sizes, dimensions) for table in tables]
    return cycle(own)


def _bias(
    write: ProgramWriter,
    stack: str,
    positions: Node,
    sizes: Sequence[int | Node],
    dimensions: T5Dimensions,
) -> Node:
    # The constant comes from this tensor.
    write.tensor(f"{stack}.bias.weight", dimensions.buckets, dimensions.heads)
    table, farthest = f"{stack}.bias_by_distance", farthest_of(dimensions.max_distance)
    return bias_by_distance(write, table, farthest, positions, sizes)


def _constants(
    dimensions: T5Dimensions, tensors: Mapping[str, NDArray[np.generic]]
) -> dict[str, NDArray[np.generic]]:
    tables = {}
    for stack in ("encoder", "decoder"):
        sizes, two_ways = (dimensions.buckets, dimensions.max_distance), stack == "encoder"
        for name in _tables(dimensions, stack):
            biases = tensors[f"{name}.bias.weight"]
            table = biases_by_distance(biases, *sizes, bidirectional=two_ways)
            tables[f"{name}.bias_by_distance"] = table
    return tables


T5 = Family(
    name="t5",
    title="T5",
    task="generate",
    interface="encoder-decoder",
    dimensions=T5Dimensions,
    positions=lambda dimensions: dimensions.target_positions,
    caches=self_and_cross_caches,
    programs=lambda dimensions: source_programs(self_and_cross_caches(dimensions)),
    writers={"encode": _encode, "decode": _decode},
    constants=_constants,
    precision=PrecisionRoles(outliers=("gate", "activation")),
    probe=lambda dimensions: source_probe(dimensions, dimensions.vocab_size, PROBED),
    model_class="kvcast.text.text2text:T5Model",
    usual_prompt=lambda _: 1,
    biased=True,
    facts=lambda dimensions: {"start_tokens": [dimensions.start_token]},
)
