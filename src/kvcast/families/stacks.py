"""Encoders and decoders over token sources, and BART's layers, with norms before or after.

Query, key and value of self-attention are one tensor in this order, and so are key and value of
cross-attention. Positions are rows of a table for each stack. In place of self-attention, layers of
a decoder may have SSRUs (Kim et al., "From Research to Production and Back", WNGT 2019, section
3.1): a gate mixes a state of the layer's width with each position.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvcast.families.base import Probe
from kvcast.families.blocks import (
    LENGTHS,
    TOKENS,
    attend,
    cache_of,
    join_rows,
    new_positions,
    select_asked,
    split_rows,
)
from kvcast.families.programs import (
    LENGTHS_OF_SOURCES,
    Argument,
    CacheLayers,
    EncoderDecoderSizes,
    ProgramSignature,
    cross_argument,
    decode_program,
    encode_program,
)
from kvcast.families.programs import SOURCE as SOURCE_NAME
from kvcast.spec.program import Node, Program, ProgramWriter


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

    @property
    def zero_start(self) -> bool:
        """Whether a target's first token, whichever it is, has an embedding of zeros."""

    @property
    def norm_eps(self) -> float:
        """Epsilon of layer norms."""


class DecoderSizes(StackSizes, Protocol):
    @property
    def vocab_size(self) -> int:
        """Rows of the embedding and of the head."""

    @property
    def decoder_inner(self) -> int:
        """Inner width of a feed-forward."""

    @property
    def target_positions(self) -> int:
        """Rows of the table of positions."""

    @property
    def decoder_layers(self) -> int:
        """Number of layers."""

    @property
    def recurrent(self) -> bool:
        """Whether layers have SSRUs in place of self-attention."""

    @property
    def head_dim(self) -> int:
        """Size of a head."""

    @property
    def head(self) -> str:
        """Name of the matrix that makes logits."""

    @property
    def head_bias(self) -> bool:
        """Whether it has a bias."""


def decode(write: ProgramWriter, dimensions: DecoderSizes) -> Program:
    block, scale = Block(write, dimensions, dimensions.decoder_inner), dimensions.head_dim**-0.5
    width, vocab = dimensions.width, dimensions.vocab_size
    places = dimensions.target_positions, new_positions(write)
    x = block.embed("embedding.weight", vocab, TOKENS, *places, "decoder")
    for i in range(dimensions.decoder_layers):
        layer = f"decoder.layers.{i}"
        if dimensions.recurrent:
            x = block.add_recurrence(x, i)
        else:
            name = f"{layer}.self_attention"
            x = block.add_attention(x, attend(write, i, block.qkv(x, name), scale), name)
        name = f"{layer}.cross_attention"
        query = write.linear(block.before(x, name), f"{name}.query", (width, width), bias=True)
        cross = (*cache_of("cross", i), scale, SOURCE_LENGTHS)
        x = block.add_attention(x, write.step("cross_attention", query, *cross), name)
        x = block.add_feed_forward(x, layer)
    ended = block.final_norm(join_rows(write, select_asked(write, x)), "decoder")
    logits = write.linear(ended, dimensions.head, (vocab, width), bias=dimensions.head_bias)
    return write.program(logits=split_rows(write, logits))


@dataclass(frozen=True)
class Block:
    write: ProgramWriter
    dimensions: StackSizes
    inner: int

    def embed(
        self, table: str, vocab_size: int, tokens: Node, longest: int, positions: Node, stack: str
    ) -> Node:
        write, width = self.write, self.dimensions.width
        x = write.embedding(table, tokens, (vocab_size, width))
        if self.dimensions.zero_start and stack == "decoder":
            is_first = write.step("unsqueeze", write.step("eq", positions, 0), 2)
            x = write.step("where", is_first, 0.0, x)
        if self.dimensions.embedding_scale != 1:
            x = write.step("mul", x, self.dimensions.embedding_scale)
        late = self.dimensions.late_positions and stack == "decoder"
        embedding_norm = self.dimensions.embedding_norm
        if embedding_norm and late:
            x = self._norm(x, f"{stack}.embedding_norm")
        places = write.embedding(f"{stack}.positions", positions, (longest, width))
        x = write.step("add", x, places)
        return self._norm(x, f"{stack}.embedding_norm") if embedding_norm and not late else x

    def qkv(self, x: Node, name: str) -> list[Node]:
        width = self.dimensions.width
        shape = 3 * width, width
        return self.write.chunk(
            self.write.linear(self.before(x, name), f"{name}.qkv", shape, bias=True), 3
        )

    def add_attention(self, x: Node, mixed: Node, name: str) -> Node:
        width = self.dimensions.width
        out = self.write.linear(mixed, f"{name}.out", (width, width), bias=True, residual=x)
        return self.after(out, name)

    def before(self, x: Node, name: str) -> Node:
        """Return the input of a part of a layer."""
        return self._norm(x, f"{name}_norm") if self.dimensions.norm_first else x

    def after(self, x: Node, name: str) -> Node:
        """Return the result of a part of a layer, from its residual sum."""
        return x if self.dimensions.norm_first else self._norm(x, f"{name}_norm")

    def add_recurrence(self, x: Node, i: int) -> Node:
        """Add a decoder's SSRU."""
        write, width, name = self.write, self.dimensions.width, f"decoder.layers.{i}.recurrence"
        before = self.before(x, name)
        candidate = write.linear(before, f"{name}.candidate", (width, width))
        gate = write.linear(before, f"{name}.gate", (width, width), bias=True)
        cells = write.step("gated_recurrence", candidate, gate, Node(f"past_state_{i}"), LENGTHS)
        return self.after(write.step("add", x, write.step("relu", cells)), name)

    def add_feed_forward(self, x: Node, layer: str) -> Node:
        write, name, activation = self.write, f"{layer}.feed_forward", self.dimensions.activation
        up, before = (self.inner, self.dimensions.width), self.before(x, name)
        inner = write.linear(before, f"{name}.up", up, bias=True, activation=activation)
        down = write.linear(inner, f"{name}.down", up[::-1], bias=True, residual=x)
        return self.after(down, name)

    def final_norm(self, x: Node, stack: str) -> Node:
        if not self.dimensions.final_norm:
            return x
        return self._norm(x, f"{stack}.norm")

    def _norm(self, x: Node, name: str) -> Node:
        return self.write.layer_norm(x, name, self.dimensions.width, self.dimensions.norm_eps)


SOURCE, SOURCE_LENGTHS = Node(SOURCE_NAME), Node(LENGTHS_OF_SOURCES.name)
"""Inputs of `encode`: tokens [batch, t] and lengths [batch]; `decode` takes the lengths, too."""

PROBED = 40
"""Tokens of a proof's longest source."""


class SourceSizes(EncoderDecoderSizes, Protocol):
    @property
    def vocab_size(self) -> int:
        """Vocabulary size."""

    @property
    def start_token(self) -> int:
        """The first token of a target."""


def source_programs(caches: Sequence[CacheLayers]) -> Mapping[str, ProgramSignature]:
    own, cross = caches
    source = Argument(name="source", shape=("batch", "source"), dtype="int64")
    read = cross_argument(cross, "source"), LENGTHS_OF_SOURCES
    return {
        "encode": encode_program(cross, source, LENGTHS_OF_SOURCES),
        "decode": decode_program([own], ["logits"], *read),
    }


def source_probe(dimensions: SourceSizes, tokens: int, longest: int) -> Probe:
    """Two sources of different lengths, of a vocabulary of `tokens` ids."""
    generator = np.random.default_rng(0)
    lengths_b = np.array([longest, max(1, longest // 2)], np.int32)
    source_bt = generator.integers(0, tokens, (len(lengths_b), longest))
    return Probe(
        prompts=[np.array([dimensions.start_token])] * len(lengths_b),
        source=(source_bt, lengths_b),
    )
