"""Granite Speech's encoder as data: a Conformer whose positions attend within blocks, a Q-Former.

Frames are two of log-mel side by side. A position sees those of its own block of some seconds, with
scores that depend on distances as well (Shaw et al., 2018). Halfway, probabilities of characters
are brought back into the hidden states. Then some queries attend to each window of positions, and
become its embeddings. Canonical tensors are [out, in], as in torch's Linear; query, key and value
are one tensor, and so are key and value; of a convolution's first projection, gates are the first
half. Norms of batches are part of kernels, and the half of each feed-forward that counts is part of
its last matrix. Knows no decoder, file format or weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.families import query_former
from kvcast.families.blocks import with_biases
from kvcast.families.conformer_modules import (
    EPSILON,
    convolved,
    fed,
    module_shapes,
    require_kernel,
)
from kvcast.families.programs import LENGTHS_OF_SOURCES, Argument
from kvcast.families.query_former import QueryFormer
from kvcast.families.sound_encoder import FEATURES, SoundEncoder
from kvcast.spec.program import Constant, Node, ProgramWriter
from kvcast.spec.sizes import MOST_POSITIONS, require_layers, require_positive

MOST_FRAMES = 1500
"""Frames of 20 ms in the longest excerpt."""

_ACTIVATION = "silu"  # of feed-forwards and convolutions
_BLOCKS, _BLOCK_LENGTHS, _WINDOWS = Node("blocks"), Node("block_lengths"), Node("windows")
_NOTHING = "encoder.nothing"


@dataclass(frozen=True, kw_only=True)
class BlockConformer(SoundEncoder):
    """Everything that determines an encoder's tensor shapes and computation.

    Attributes:
        n_mels: bands of a frame, which are those of two frames of 10 ms.
        width: size of a hidden state.
        inner: inner width of a feed-forward.
        heads: number of heads.
        head_dim: size of each.
        layers: number of layers.
        kernel: length of a layer's convolution, an odd number.
        channels: of a layer's convolution.
        block: positions that see each other.
        characters: of which probabilities are brought back, after half of the layers.
        window: positions that become `queries` embeddings.
        queries: not more than positions of a window.
        projector: what they become them by.
        output: size of an embedding.

    """

    n_mels: int
    width: int
    inner: int
    heads: int
    head_dim: int
    layers: int
    kernel: int
    channels: int
    block: int
    characters: int
    window: int
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
    def encoded(self, frames: int) -> int:
        return -(-frames // self.window) * self.queries

    @override
    def arguments(self) -> tuple[Argument, ...]:
        """Frames, and of each block and window of an input which positions of all it has.

        The places of a block that hold nothing come last; a window's are the number of positions.
        """
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
            np.full(batch, self.encoded(count), np.int32),
        )

    @override
    def shapes(self) -> dict[str, tuple[int, ...]]:
        width, mixed = self.width, self.heads * self.head_dim
        linears: dict[str, tuple[int, ...]] = {
            "encoder.in": (width, self.n_mels),
            "encoder.projector.out": (self.output, self.projector.width),
        }
        if self._halfway:
            linears["encoder.characters"] = (self.characters, width)
            linears["encoder.of_characters"] = (width, self.characters)
        shapes: dict[str, tuple[int, ...]] = {}
        for i in range(self.layers):
            layer = f"encoder.layers.{i}"
            linears[f"{layer}.self_attention.out"] = (width, mixed)
            shapes |= {
                **module_shapes(layer, width, self.inner, self.channels, self.kernel),
                f"{layer}.self_attention.qkv.weight": (3 * mixed, width),
                f"{layer}.self_attention.distances": (2, self.block, self.head_dim),
            }
        shapes |= with_biases(linears)
        return shapes | query_former.shapes(self.projector, self.queries, width)

    @override
    def constants(self) -> Mapping[str, NDArray[np.generic]]:
        return {_NOTHING: np.zeros((1, self.width), np.float32)}

    @override
    def written(self, write: ProgramWriter) -> Node:
        x = write.linear(FEATURES, "encoder.in", bias=True)
        for i in range(self.layers):
            layer = f"encoder.layers.{i}"
            x = fed(write, x, f"{layer}.feed_forward", _ACTIVATION)
            x = self._attended(write, x, f"{layer}.self_attention")
            x = convolved(write, x, f"{layer}.convolution", _ACTIVATION)
            x = fed(write, x, f"{layer}.last_feed_forward", _ACTIVATION)
            x = write.layer_norm(x, f"{layer}.norm", EPSILON)
            if i + 1 == self._halfway:
                likely = write.step("softmax", write.linear(x, "encoder.characters", bias=True))
                x = write.linear(likely, "encoder.of_characters", bias=True, residual=x)
        embeddings = self._projected(write, x)
        return write.step("unsqueeze", embeddings, 1)

    @property
    def _halfway(self) -> int:
        """Layers before which probabilities are brought back; 0: they are not."""
        return self.layers // 2

    def _attended(self, write: ProgramWriter, x: Node, name: str) -> Node:
        """Attend within blocks; heads share the keys of distances, so each is an input to them."""
        scale = self.head_dim**-0.5
        normed = write.layer_norm(x, f"{name}_norm", EPSILON)
        blocks = write.step("flatten", _BLOCKS, 0, 1)
        apart = write.step(
            "index_select", write.step("flatten", normed, 0, 1), 0, write.step("flatten", blocks)
        )
        count, span = write.size(blocks, 0), write.size(blocks, 1)
        in_blocks = write.step("unflatten", apart, 0, [count, span])
        query, key, value = write.chunk(write.linear(in_blocks, f"{name}.qkv"), 3)
        by_head = write.step("unflatten", query, -1, [self.heads, self.head_dim])
        by_head = write.step("contiguous", write.step("transpose", by_head, 1, 2))
        positions = write.step("arange", span, dtype="int64")
        distances = write.step("index_select", Constant(f"{name}.distances"), 1, positions)
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
        return write.linear(valid, f"{name}.out", bias=True, residual=x)

    def _projected(self, write: ProgramWriter, x: Node) -> Node:
        """Return the embeddings of all windows, [batch, t, output]; zeros follow the last one."""
        nothing = write.step("index_select", Constant(_NOTHING), 0, _zero(write))
        lines = write.step("cat", [write.step("flatten", x, 0, 1), nothing], 0)
        windows = write.step("flatten", _WINDOWS, 0, 1)
        held = write.step("index_select", lines, 0, write.step("flatten", windows))
        held = write.step("unflatten", held, 0, [write.size(windows, 0), self.window])
        answers = query_former.written(write, held, self.projector, self.queries, self.window)
        embeddings = write.linear(answers, "encoder.projector.out", bias=True)
        flat = write.step("flatten", embeddings, 0, 1)
        return write.step("unflatten", flat, 0, [write.size(FEATURES, 0), -1])


def _zero(write: ProgramWriter) -> Node:
    return write.step("arange", 1, dtype="int64")
