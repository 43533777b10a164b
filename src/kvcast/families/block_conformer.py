"""Granite Speech's encoder as data: a Conformer over blocks, and a Q-Former that pools windows.

The Q-Former (BLIP-2) has learnt queries that attend to each other and to a window of positions;
norms follow residuals, as in BERT. Canonical tensors are [out, in], as in torch's Linear; query,
key and value are one tensor, and so are key and value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.families.audio_encoder import FEATURES, AudioEncoder
from kvcast.families.conformer import EPSILON, add_convolution, add_feed_forward, require_kernel
from kvcast.families.programs import LENGTHS_OF_SOURCES, Argument
from kvcast.spec.program import Constant, Node, ProgramWriter
from kvcast.spec.sizes import (
    ACTIVATIONS,
    MOST_POSITIONS,
    require_heads,
    require_layers,
    require_one_of,
    require_positive,
)

_QUERIES = "encoder.projector.queries"


@dataclass(frozen=True, kw_only=True)
class QueryFormer:
    width: int
    inner: int
    heads: int
    layers: int
    crossing: int  # queries attend to positions in every `crossing`-th layer, from the first on
    epsilon: float
    activation: str = "gelu"  # of feed-forwards; one of `sizes.ACTIVATIONS`

    def __post_init__(self) -> None:
        names = ("width", "inner", "heads", "layers", "crossing")
        require_positive(**{name: vars(self)[name] for name in names})
        require_layers(self.layers)
        require_one_of("activation", self.activation, ACTIVATIONS)
        require_heads(self.width, self.heads)
        if max(self.width, self.inner) > MOST_POSITIONS:
            raise KvcastError("a projector is larger than any model's")


def write_query_former(
    write: ProgramWriter, windows: Node, of: QueryFormer, queries: int, window: int, source: int
) -> Node:
    """[windows, window, source] to [windows, queries, width]."""
    width, inner = of.width, of.inner
    scale = (width // of.heads) ** -0.5
    x = _write_queries(write, windows, of, queries)
    for i in range(of.layers):
        layer = _layer_name(i)
        projected = write.linear(x, f"{layer}.self_attention.qkv", (3 * width, width), bias=True)
        own = write.chunk(projected, 3)
        mixed = write.step("encoder_attention", *own, of.heads, scale)
        x = _add_normed(write, x, mixed, f"{layer}.self_attention.out", width, of)
        if i % of.crossing == 0:
            cross = f"{layer}.cross_attention"
            query = write.linear(x, f"{cross}.query", (width, width), bias=True)
            held = write.linear(windows, f"{cross}.key_value", (2 * width, source), bias=True)
            given = query, *write.chunk(held, 2), of.heads, scale
            # So far that each query sees all positions of its window.
            mixed = write.step("window_attention", *given, window, window)
            x = _add_normed(write, x, mixed, f"{cross}.out", width, of)
        block, activation = f"{layer}.feed_forward", of.activation
        fed_x = write.linear(x, f"{block}.up", (inner, width), bias=True, activation=activation)
        x = _add_normed(write, x, fed_x, f"{block}.down", inner, of)
    return x


def _layer_name(i: int) -> str:
    return f"encoder.projector.layers.{i}"


def _write_queries(write: ProgramWriter, windows: Node, of: QueryFormer, queries: int) -> Node:
    """[windows, queries, width]."""
    own = write.step("arange", queries, dtype="int64")
    count = write.size(windows, 0)
    same = write.step("mul", write.step("arange", count, dtype="int64"), 0)
    index = write.step("add", write.step("unsqueeze", same, 1), own)
    table = write.tensor(_QUERIES, queries, of.width)
    chosen = write.step("index_select", table, 0, own)
    normed = write.layer_norm(chosen, f"{_QUERIES}_norm", of.width, of.epsilon)
    lines = write.step("index_select", normed, 0, write.step("flatten", index))
    return write.step("unflatten", lines, 0, [count, queries])


def _add_normed(
    write: ProgramWriter, x: Node, inner: Node, name: str, size: int, of: QueryFormer
) -> Node:
    whole = write.linear(inner, name, (of.width, size), bias=True, residual=x)
    return write.layer_norm(whole, f"{name.rpartition('.')[0]}_norm", of.width, of.epsilon)


MOST_FRAMES = 1500
"""Frames of 20 ms in the longest excerpt."""

_ACTIVATION = "silu"  # of feed-forwards and convolutions
_BLOCKS, _BLOCK_LENGTHS, _WINDOWS = Node("blocks"), Node("block_lengths"), Node("windows")
_NOTHING = "encoder.nothing"


@dataclass(frozen=True, kw_only=True)
class BlockConformer(AudioEncoder):
    n_mels: int  # bands of a frame, which joins two frames of 10 ms
    width: int
    inner: int
    heads: int
    head_dim: int
    layers: int
    kernel: int  # length of a layer's convolution, odd
    channels: int
    block: int
    characters: int  # CTC characters, whose probabilities are fed back after half of the layers
    window: int  # positions that become `queries` embeddings
    queries: int
    projector: QueryFormer
    output: int

    def __post_init__(self) -> None:
        sizes = {name: size for name, size in vars(self).items() if name != "projector"}
        require_positive(**sizes)
        require_layers(self.layers)
        if max(sizes.values()) > MOST_POSITIONS:
            raise KvcastError("an encoder is larger than any model's")
        require_kernel(self.kernel)
        if self.queries > self.window:
            raise KvcastError(f"{self.queries} queries are more than the window's {self.window}")

    frames = 0

    @classmethod
    @override
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls(**{**fields, "projector": QueryFormer(**fields["projector"])})

    @property
    @override
    def most_frames(self) -> int:
        return MOST_FRAMES

    @override
    def embedding_count(self, frames: int) -> int:
        return -(-frames // self.window) * self.queries

    @override
    def arguments(self) -> tuple[Argument, ...]:
        """Empty places of a block come last; in a window they are the number of positions."""
        shape = ("batch", "frames", self.n_mels)
        return (
            Argument(name=FEATURES.name, shape=shape, dtype="float32"),
            Argument(name=_BLOCKS.name, shape=("batch", "blocks", "span"), dtype="int64"),
            Argument(name=_BLOCK_LENGTHS.name, shape=("batch", "blocks"), dtype="int32"),
            Argument(name=_WINDOWS.name, shape=("batch", "windows", self.window), dtype="int64"),
            LENGTHS_OF_SOURCES,
        )

    @override
    def source(self, features_btm: NDArray[np.float32]) -> tuple[NDArray[Any], ...]:
        batch, count = features_btm.shape[:2]
        span = min(self.block, count)
        places = np.arange(-(-count // span) * span).reshape(-1, span)
        lengths = np.minimum(span, count - places[:, 0]).astype(np.int32)
        firsts = count * np.arange(batch)[:, None, None]
        windows = np.arange(-(-count // self.window) * self.window).reshape(-1, self.window)
        return (
            features_btm,
            firsts + np.minimum(places, count - 1),
            np.tile(lengths, (batch, 1)),
            np.where(windows < count, firsts + windows, batch * count),
            np.full(batch, self.embedding_count(count), np.int32),
        )

    @override
    def constants(self) -> Mapping[str, NDArray[np.generic]]:
        return {_NOTHING: np.zeros((1, self.width), np.float32)}

    @override
    def write_encoder(self, write: ProgramWriter) -> Node:
        width, characters = self.width, self.characters
        fed_shape, kernel = (self.inner, width), (self.kernel, 1, self.channels)
        x = write.linear(FEATURES, "encoder.in", (width, self.n_mels), bias=True)
        for i in range(self.layers):
            layer = f"encoder.layers.{i}"
            x = add_feed_forward(write, x, f"{layer}.feed_forward", fed_shape, _ACTIVATION)
            x = self._attend(write, x, f"{layer}.self_attention")
            x = add_convolution(write, x, f"{layer}.convolution", kernel, width, _ACTIVATION)
            x = add_feed_forward(write, x, f"{layer}.last_feed_forward", fed_shape, _ACTIVATION)
            x = write.layer_norm(x, f"{layer}.norm", width, EPSILON)
            if i + 1 == self._halfway:
                shape = characters, width
                scores = write.linear(x, "encoder.characters", shape, bias=True)
                likely, back = write.step("softmax", scores), "encoder.of_characters"
                x = write.linear(likely, back, shape[::-1], bias=True, residual=x)
        embeddings = self._project(write, x)
        return write.step("unsqueeze", embeddings, 1)

    @property
    def _halfway(self) -> int:
        """Layers before which CTC probabilities are fed back; 0: they are not."""
        return self.layers // 2

    def _attend(self, write: ProgramWriter, x: Node, name: str) -> Node:
        scale, width, mixed_width = self.head_dim**-0.5, self.width, self.heads * self.head_dim
        normed = write.layer_norm(x, f"{name}_norm", width, EPSILON)
        blocks = write.step("flatten", _BLOCKS, 0, 1)
        apart = write.step(
            "index_select", write.step("flatten", normed, 0, 1), 0, write.step("flatten", blocks)
        )
        count, span = write.size(blocks, 0), write.size(blocks, 1)
        in_blocks = write.step("unflatten", apart, 0, [count, span])
        projected = write.linear(in_blocks, f"{name}.qkv", (3 * mixed_width, width))
        query, key, value = write.chunk(projected, 3)
        by_head = write.step("unflatten", query, -1, [self.heads, self.head_dim])
        by_head = write.step("contiguous", write.step("transpose", by_head, 1, 2))
        positions = write.step("arange", span, dtype="int64")
        table = write.tensor(f"{name}.distances", 2, self.block, self.head_dim)
        distances = write.step("index_select", table, 1, positions)
        flat = write.step("flatten", by_head, 0, 1)
        scores = write.step("relative_scores", flat, distances, 1, scale)
        bias = write.step("view", scores, [count, self.heads, span, span])
        lengths = write.step("flatten", _BLOCK_LENGTHS)
        mixed = write.step("encoder_attention", query, key, value, self.heads, scale, lengths, bias)
        # Padding follows the last block's positions.
        batch = write.size(FEATURES, 0)
        inputs = write.step("unflatten", write.step("flatten", mixed, 0, 1), 0, [batch, -1])
        own = write.step("arange", write.size(x, 1), dtype="int64")
        valid = write.step("index_select", inputs, 1, own)
        return write.linear(valid, f"{name}.out", (width, mixed_width), bias=True, residual=x)

    def _project(self, write: ProgramWriter, x: Node) -> Node:
        """[batch, t, output], padded with zeros."""
        nothing = write.step("index_select", Constant(_NOTHING), 0, _zero(write))
        lines = write.step("cat", [write.step("flatten", x, 0, 1), nothing], 0)
        windows = write.step("flatten", _WINDOWS, 0, 1)
        held = write.step("index_select", lines, 0, write.step("flatten", windows))
        held = write.step("unflatten", held, 0, [write.size(windows, 0), self.window])
        of, shape = self.projector, (self.output, self.projector.width)
        answers = write_query_former(write, held, of, self.queries, self.window, self.width)
        embeddings = write.linear(answers, "encoder.projector.out", shape, bias=True)
        flat = write.step("flatten", embeddings, 0, 1)
        return write.step("unflatten", flat, 0, [write.size(FEATURES, 0), -1])


def _zero(write: ProgramWriter) -> Node:
    return write.step("arange", 1, dtype="int64")
