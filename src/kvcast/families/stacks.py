"""Encoders and decoders over token sources, and BART's layers, with norms before or after.

Query, key and value of self-attention are one tensor in this order, and so are key and value of
cross-attention. Positions are rows of a table for each stack.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvcast.families.base import Probe
from kvcast.families.blocks import (
    TOKENS,
    attend,
    cache_of,
    join_rows,
    new_positions,
    select_asked,
    split_rows,
    with_biases,
)
from kvcast.families.programs import (
    LENGTHS_OF_SOURCES,
    Argument,
    EncoderDecoderSizes,
    ProgramSignature,
    cross_argument,
    decode_program,
    encode_program,
    self_and_cross_caches,
)
from kvcast.families.programs import SOURCE as SOURCE_NAME
from kvcast.spec.program import Node, Program, ProgramWriter

_EPSILON = 1e-5  # of layer norms


class StackSizes(Protocol):
    @property
    def width(self) -> int:
        """Size of a hidden state."""

    @property
    def activation(self) -> str:
        """Of the feed-forward; one of `sizes.ACTIVATIONS`."""

    @property
    def norm_first(self) -> bool:
        """Whether norms precede attention and feed-forward, or follow their residuals."""

    @property
    def embedding_norm(self) -> bool:
        """Whether embeddings with positions are normed."""

    @property
    def late_positions(self) -> bool:
        """Whether a decoder adds positions to embeddings that are normed already."""

    @property
    def final_norm(self) -> bool:
        """Whether the stack ends with a norm."""

    @property
    def embedding_scale(self) -> float:
        """Factor on embeddings."""


class DecoderSizes(StackSizes, Protocol):
    @property
    def decoder_layers(self) -> int:
        """Number of layers."""

    @property
    def head_dim(self) -> int:
        """Size of a head."""

    @property
    def head(self) -> str:
        """Name of the matrix that makes logits."""

    @property
    def head_bias(self) -> bool:
        """Whether it has a bias."""


def stack_shapes(
    stack: str, dimensions: StackSizes, inner: int, layers: int, positions: int
) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a stack, "encoder" or "decoder", by canonical name.

    Args:
        stack: "encoder" or "decoder".
        dimensions: sizes that both may share.
        inner: inner width of its feed-forward.
        layers: number of its layers.
        positions: rows of its table of positions.

    """
    width = dimensions.width
    linears = {
        "self_attention.qkv": (3 * width, width),
        "self_attention.out": (width, width),
        "feed_forward.up": (inner, width),
        "feed_forward.down": (width, inner),
    }
    norms = ["self_attention_norm", "feed_forward_norm"]
    if stack == "decoder":
        linears |= {
            "cross_attention.query": (width, width),
            "cross_attention.key_value": (2 * width, width),
            "cross_attention.out": (width, width),
        }
        norms.append("cross_attention_norm")
    matrices: dict[str, tuple[int, ...]] = linears | dict.fromkeys(norms, (width,))
    named = {
        f"{stack}.layers.{i}.{name}": shape
        for i in range(layers)
        for name, shape in matrices.items()
    }
    if dimensions.embedding_norm:
        named[f"{stack}.embedding_norm"] = (width,)
    if dimensions.final_norm:
        named[f"{stack}.norm"] = (width,)
    return {f"{stack}.positions": (positions, width), **with_biases(named)}


def decode(write: ProgramWriter, dimensions: DecoderSizes) -> Program:
    """Write `decode`: new target tokens to logits."""
    block = Block(write, dimensions)
    x = block.embedded("embedding.weight", TOKENS, new_positions(write), "decoder")
    scale = dimensions.head_dim**-0.5
    for i in range(dimensions.decoder_layers):
        layer = f"decoder.layers.{i}"
        name = f"{layer}.self_attention"
        qkv = write.chunk(write.linear(block.before(x, name), f"{name}.qkv", bias=True), 3)
        mixed = attend(write, i, qkv, scale)
        x = block.after(write.linear(mixed, f"{name}.out", bias=True, residual=x), name)
        name = f"{layer}.cross_attention"
        query = write.linear(block.before(x, name), f"{name}.query", bias=True)
        cross = (*cache_of("cross", i), scale, SOURCE_LENGTHS)
        mixed = write.step("cross_attention", query, *cross)
        x = block.after(write.linear(mixed, f"{name}.out", bias=True, residual=x), name)
        x = block.fed(x, layer)
    ended = block.ended(join_rows(write, select_asked(write, x)), "decoder")
    logits = write.linear(ended, dimensions.head, bias=dimensions.head_bias)
    return write.program(logits=split_rows(write, logits))


@dataclass(frozen=True)
class Block:
    """Writes the parts that differ by where norms are."""

    write: ProgramWriter
    dimensions: StackSizes

    def embedded(self, table: str, tokens: Node, positions: Node, stack: str) -> Node:
        write, x = self.write, self.write.embedding(table, tokens)
        if self.dimensions.embedding_scale != 1:
            x = write.step("mul", x, self.dimensions.embedding_scale)
        late = self.dimensions.late_positions and stack == "decoder"
        if self.dimensions.embedding_norm and late:
            x = write.layer_norm(x, f"{stack}.embedding_norm", _EPSILON)
        x = write.step("add", x, write.embedding(f"{stack}.positions", positions))
        if self.dimensions.embedding_norm and not late:
            x = write.layer_norm(x, f"{stack}.embedding_norm", _EPSILON)
        return x

    def before(self, x: Node, name: str) -> Node:
        """Return the input of a part of a layer."""
        return self._normed(x, name) if self.dimensions.norm_first else x

    def after(self, x: Node, name: str) -> Node:
        """Return the result of a part of a layer, from its residual sum."""
        return x if self.dimensions.norm_first else self._normed(x, name)

    def fed(self, x: Node, layer: str) -> Node:
        name, activation = f"{layer}.feed_forward", self.dimensions.activation
        inner = self.write.linear(
            self.before(x, name), f"{name}.up", bias=True, activation=activation
        )
        return self.after(self.write.linear(inner, f"{name}.down", bias=True, residual=x), name)

    def ended(self, x: Node, stack: str) -> Node:
        if not self.dimensions.final_norm:
            return x
        return self.write.layer_norm(x, f"{stack}.norm", _EPSILON)

    def _normed(self, x: Node, name: str) -> Node:
        return self.write.layer_norm(x, f"{name}_norm", _EPSILON)


SOURCE, SOURCE_LENGTHS = Node(SOURCE_NAME), Node(LENGTHS_OF_SOURCES.name)
"""Inputs of `encode`: tokens [batch, t] and lengths [batch]; `decode` takes the lengths, too."""

PROBED = 40
"""Tokens of a proof's longest source."""


class SourceSizes(EncoderDecoderSizes, Protocol):
    """The dimensions of such a model that determine its programs' arguments and its texts."""

    @property
    def vocab_size(self) -> int:
        """Vocabulary size."""

    @property
    def start_token(self) -> int:
        """The first token of a target."""


def source_programs(dimensions: SourceSizes) -> Mapping[str, ProgramSignature]:
    """Return the signatures of `encode` and `decode`."""
    own, cross = self_and_cross_caches(dimensions)
    source = Argument(name="source", shape=("batch", "source"), dtype="int64")
    read = cross_argument(cross, "source"), LENGTHS_OF_SOURCES
    return {
        "encode": encode_program(cross, source, LENGTHS_OF_SOURCES),
        "decode": decode_program([own], ["logits"], *read),
    }


def source_probe(dimensions: SourceSizes, tokens: int, longest: int) -> Probe:
    """Return two sources of different lengths, of a vocabulary of `tokens` ids."""
    generator = np.random.default_rng(0)
    lengths_b = np.array([longest, max(1, longest // 2)], np.int32)
    source_bt = generator.integers(0, tokens, (len(lengths_b), longest))
    return Probe(
        prompts=[np.array([dimensions.start_token])] * len(lengths_b),
        source=(source_bt, lengths_b),
    )
