"""Audio encoders whose layers attend and convolve each channel: FastConformer, as data.

Log-mel features are first subsampled by convolutions. Attention adds a term for relative distances,
as in Transformer-XL. Canonical tensors are [out, in], as in torch's Linear, kernels [positions,
bands, channels]; query, key and value are one tensor; of the convolution's first projection, gates
are the first half. BatchNorms are folded into kernels, and the half-step factor of each
feed-forward into its last matrix.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.families.audio_encoder import FEATURES
from kvcast.families.programs import Argument
from kvcast.spec.program import Constant, Node, ProgramWriter
from kvcast.spec.sizes import (
    ACTIVATIONS,
    require_layers,
    require_one_of,
    require_positions,
    require_positive,
)

_DISTANCES = "encoder.distances"
_KERNEL = 3  # of the convolutions that make positions fewer
_MOST_HALVINGS = 6
_PROBED = 100  # frames


@dataclass(frozen=True, kw_only=True)
class Conformer:
    n_mels: int
    width: int
    inner: int
    heads: int
    layers: int
    kernel: int  # length of a layer's convolution, odd
    channels: int
    halvings: int
    positions: int
    activation: str = "silu"  # of feed-forwards and convolutions; one of `sizes.ACTIVATIONS`
    scaled: bool = False  # whether the first layer's input is times the root of its width

    def __post_init__(self) -> None:
        require_positive(
            **{name: vars(self)[name] for name in vars(self).keys() - {"activation", "scaled"}}
        )
        require_layers(self.layers)
        require_one_of("activation", self.activation, ACTIVATIONS)
        if self.width % self.heads or self.width % 2:
            raise KvcastError(f"width {self.width} is not a multiple of {self.heads} heads and 2")
        require_kernel(self.kernel)
        if self.halvings > _MOST_HALVINGS or self.n_mels % (1 << self.halvings):
            raise KvcastError(f"{self.n_mels} bands cannot be halved {self.halvings} times")
        require_positions(frames=self.most_frames)

    @property
    def most_frames(self) -> int:
        return self.positions << self.halvings

    def embedding_count(self, frames: int) -> int:
        return -(-frames // (1 << self.halvings))

    @property
    def features(self) -> Argument:
        return Argument(name=FEATURES.name, shape=("batch", "frames", self.n_mels), dtype="float32")

    def constants(self) -> dict[str, NDArray[np.generic]]:
        """Waves [2, positions, width] of distances behind a position, and ahead of it."""
        exponents = np.arange(0, self.width, 2, dtype=np.float32) / np.float32(self.width)
        frequencies = 1 / np.float32(10000) ** exponents
        angles = np.arange(self.positions, dtype=np.float32)[:, None] * frequencies
        sines, cosines = np.sin(angles), np.cos(angles)
        both = [np.stack([sign * sines, cosines], axis=-1) for sign in (1, -1)]
        return {_DISTANCES: np.stack(both).reshape(2, self.positions, self.width)}

    def noise(
        self, count: int, generator: "np.random.Generator"
    ) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Features, and lengths in positions, for a proof."""
        frames = min(_PROBED, self.most_frames)
        features_btm = generator.normal(size=(count, frames, self.n_mels)).astype(np.float32)
        return features_btm, np.full(count, self.embedding_count(frames), np.int32)

    def write_encoder(self, write: ProgramWriter) -> Node:
        """FEATURES to hidden states [batch, t, width]."""
        x, width = self._fewer(write), self.width
        fed_shape, kernel = (self.inner, width), (self.kernel, 1, width)
        if self.scaled:
            x = write.step("mul", x, width**0.5)
        positions = write.step("arange", write.size(x, 1), dtype="int64")
        waves = write.step("index_select", Constant(_DISTANCES), 1, positions)
        for i in range(self.layers):
            layer = f"encoder.layers.{i}"
            x = add_feed_forward(write, x, f"{layer}.feed_forward", fed_shape, self.activation)
            x = self._attend(write, x, f"{layer}.self_attention", waves)
            x = add_convolution(write, x, f"{layer}.convolution", kernel, width, self.activation)
            x = add_feed_forward(write, x, f"{layer}.last_feed_forward", fed_shape, self.activation)
            x = write.layer_norm(x, f"{layer}.norm", width, EPSILON)
        return x

    def _fewer(self, write: ProgramWriter) -> Node:
        x, channels = write.step("unsqueeze", FEATURES, 3), self.channels
        for i in range(self.halvings):
            name = f"encoder.subsampling.{i}"
            first = {"activation": "relu"} if i == 0 else {}
            shape = _KERNEL, _KERNEL, channels
            x = write.channel_convolution(x, name, shape, stride=2, **first)
            if i:
                mixed = channels, channels
                x = write.linear(x, f"{name}.mixed", mixed, bias=True, activation="relu")
        flat, out = write.step("flatten", x, 2, 3), (self.width, self._bands * channels)
        return write.linear(flat, "encoder.subsampling.out", out, bias=True)

    @property
    def _bands(self) -> int:
        return self.n_mels >> self.halvings

    def _attend(self, write: ProgramWriter, x: Node, name: str, waves: Node) -> Node:
        width = self.width
        square, scale = (width, width), (width // self.heads) ** -0.5
        normed = write.layer_norm(x, f"{name}_norm", width, EPSILON)
        projected = write.linear(normed, f"{name}.qkv", (3 * width, width), bias=True)
        query, key, value = write.chunk(projected, 3)
        distance_shift = write.tensor(f"{name}.distance_shift", width)
        of_distances = write.step("add", query, distance_shift)
        keys = write.linear(waves, f"{name}.distance", square)
        bias = write.step("relative_scores", of_distances, keys, self.heads, scale)
        of_contents = write.step("add", query, write.tensor(f"{name}.content_shift", width))
        mixed = write.step(
            "encoder_attention", of_contents, key, value, self.heads, scale, None, bias
        )
        return write.linear(mixed, f"{name}.out", square, bias=True, residual=x)


EPSILON = 1e-5
"""Of layer norms."""

_LONGEST_KERNEL = 1023


def require_kernel(length: int) -> None:
    if length % 2 == 0 or length > _LONGEST_KERNEL:
        raise KvcastError(f"a kernel of {length} positions is not possible: odd ones are")


def add_feed_forward(
    write: ProgramWriter, x: Node, name: str, shape: tuple[int, int], activation: str
) -> Node:
    """Add norm, feed-forward and residual to x [batch, t, width]; `shape` is the first matrix's."""
    normed = write.layer_norm(x, f"{name}_norm", shape[1], EPSILON)
    inner = write.linear(normed, f"{name}.up", shape, bias=True, activation=activation)
    return write.linear(inner, f"{name}.down", shape[::-1], bias=True, residual=x)


def add_convolution(
    write: ProgramWriter,
    x: Node,
    name: str,
    kernel: tuple[int, int, int],
    width: int,
    activation: str,
) -> Node:
    """Add a convolution of each channel over positions to a hidden state [batch, t, width]."""
    channels = kernel[-1]
    normed = write.layer_norm(x, f"{name}_norm", width, EPSILON)
    gated = write.linear(normed, f"{name}.in", (2 * channels, width), bias=True, gate="sigmoid")
    apart = write.step("unsqueeze", gated, 2)
    mixed = write.channel_convolution(apart, name, kernel, stride=1, activation=activation)
    flat = write.step("flatten", mixed, 2, 3)
    return write.linear(flat, f"{name}.out", (width, channels), bias=True, residual=x)
