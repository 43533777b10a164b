"""Encoders of sound whose layers attend, and convolve each channel: FastConformer, as data.

Log-mel features are first made fewer by convolutions. Attention adds what depends on distances
alone, as in Transformer-XL. Canonical tensors are [out, in], as in torch's Linear, kernels
[positions, bands, channels]; query, key and value are one tensor; of the convolution's first
projection, gates are the first half. Norms of batches are part of kernels, and the half of each
feed-forward that counts is part of its last matrix. Knows no decoder, file format or weights.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.families.programs import Argument
from kvcast.families.stacks import ACTIVATIONS
from kvcast.spec.program import Constant, Node
from kvcast.spec.sizes import MOST_POSITIONS, require_layers, require_one_of, require_positive
from kvcast.spec.writer import ProgramWriter

FEATURES = Node("features")
"""The input of `encode`: log-mel features [batch, frames, mels]."""

_DISTANCES = "encoder.distances"
_EPSILON = 1e-5  # of layer norms
_KERNEL = 3  # of the convolutions that make positions fewer
_LONGEST_KERNEL, _MOST_HALVINGS = 1023, 6


@dataclass(frozen=True, kw_only=True)
class Conformer:
    """Sizes of such an encoder.

    Attributes:
        n_mels: bands of features.
        width: size of a hidden state.
        inner: inner width of a feed-forward.
        heads: number of heads.
        layers: number of layers.
        kernel: length of a layer's convolution, an odd number.
        channels: of the convolutions that make positions fewer.
        halvings: how often they halve positions and bands.
        positions: most of them, after that.
        activation: of feed-forwards and convolutions; one of `stacks.ACTIVATIONS`.
        scaled: whether the first layer's input is multiplied by the square root of its width.

    """

    n_mels: int
    width: int
    inner: int
    heads: int
    layers: int
    kernel: int
    channels: int
    halvings: int
    positions: int
    activation: str = "silu"
    scaled: bool = False

    def __post_init__(self) -> None:
        require_positive(
            **{name: vars(self)[name] for name in vars(self).keys() - {"activation", "scaled"}}
        )
        require_layers(self.layers)
        require_one_of("activation", self.activation, ACTIVATIONS)
        if self.width % self.heads or self.width % 2:
            raise KvcastError(f"width {self.width} is not a multiple of {self.heads} heads and 2")
        if self.kernel % 2 == 0 or self.kernel > _LONGEST_KERNEL:
            raise KvcastError(f"a kernel of {self.kernel} positions is not possible: odd ones are")
        if self.halvings > _MOST_HALVINGS or self.n_mels % (1 << self.halvings):
            raise KvcastError(f"{self.n_mels} bands cannot be halved {self.halvings} times")
        if self.positions << self.halvings > MOST_POSITIONS:
            raise KvcastError("there are more positions than any model has")

    @property
    def most_frames(self) -> int:
        """Frames of the longest input."""
        return self.positions << self.halvings

    def encoded(self, frames: int) -> int:
        """Return how many positions so many frames become."""
        return -(-frames // (1 << self.halvings))

    @property
    def features(self) -> Argument:
        """The argument of `encode`."""
        return Argument(name="features", shape=("batch", "frames", self.n_mels), dtype="float32")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return every canonical name with its shape."""
        width, inner, channels = self.width, self.inner, self.channels
        bands = self.n_mels >> self.halvings
        kernels = {
            f"encoder.subsampling.{i}": (_KERNEL, _KERNEL, channels) for i in range(self.halvings)
        }
        linears: dict[str, tuple[int, ...]] = {
            f"encoder.subsampling.{i}.mixed": (channels, channels) for i in range(1, self.halvings)
        }
        linears["encoder.subsampling.out"] = (width, bands * channels)
        shapes: dict[str, tuple[int, ...]] = {}
        for i in range(self.layers):
            layer = f"encoder.layers.{i}"
            linears |= {
                f"{layer}.feed_forward.up": (inner, width),
                f"{layer}.feed_forward.down": (width, inner),
                f"{layer}.self_attention.qkv": (3 * width, width),
                f"{layer}.self_attention.out": (width, width),
                f"{layer}.convolution.in": (2 * width, width),
                f"{layer}.convolution.out": (width, width),
                f"{layer}.last_feed_forward.up": (inner, width),
                f"{layer}.last_feed_forward.down": (width, inner),
            }
            kernels[f"{layer}.convolution"] = (self.kernel, 1, width)
            shapes |= {
                f"{layer}.self_attention.distance.weight": (width, width),
                f"{layer}.self_attention.content_shift": (width,),
                f"{layer}.self_attention.distance_shift": (width,),
            }
            for norm in _NORMS:
                shapes |= {f"{layer}.{norm}.{leaf}": (width,) for leaf in ("weight", "bias")}
        for name, shape in linears.items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        for name, shape in kernels.items():
            shapes |= {f"{name}.kernel": shape, f"{name}.shift": shape[-1:]}
        return shapes

    def constants(self) -> dict[str, NDArray[np.generic]]:
        """Return waves [2, positions, width] of distances behind a position, and ahead of it."""
        exponents = np.arange(0, self.width, 2, dtype=np.float32) / np.float32(self.width)
        frequencies = 1 / np.float32(10000) ** exponents
        angles = np.arange(self.positions, dtype=np.float32)[:, None] * frequencies
        sines, cosines = np.sin(angles), np.cos(angles)
        both = [np.stack([sign * sines, cosines], axis=-1) for sign in (1, -1)]
        return {_DISTANCES: np.stack(both).reshape(2, self.positions, self.width)}

    def written(self, write: ProgramWriter) -> Node:
        """Write the encoder: FEATURES to hidden states [batch, t, width]."""
        x = self._fewer(write)
        if self.scaled:
            x = write.step("mul", x, self.width**0.5)
        positions = write.step("arange", write.size(x, 1), dtype="int64")
        waves = write.step("index_select", Constant(_DISTANCES), 1, positions)
        for i in range(self.layers):
            layer = f"encoder.layers.{i}"
            x = self._fed(write, x, f"{layer}.feed_forward")
            x = self._attended(write, x, f"{layer}.self_attention", waves)
            x = self._convolved(write, x, f"{layer}.convolution")
            x = self._fed(write, x, f"{layer}.last_feed_forward")
            x = write.layer_norm(x, f"{layer}.norm", _EPSILON)
        return x

    def _fewer(self, write: ProgramWriter) -> Node:
        """Write the convolutions that make positions and bands fewer."""
        x = write.step("unsqueeze", FEATURES, 3)
        for i in range(self.halvings):
            name = f"encoder.subsampling.{i}"
            first = {"activation": "relu"} if i == 0 else {}
            x = write.channel_convolution(x, name, stride=2, **first)
            if i:
                x = write.linear(x, f"{name}.mixed", bias=True, activation="relu")
        return write.linear(write.step("flatten", x, 2, 3), "encoder.subsampling.out", bias=True)

    def _fed(self, write: ProgramWriter, x: Node, name: str) -> Node:
        normed = write.layer_norm(x, f"{name}_norm", _EPSILON)
        inner = write.linear(normed, f"{name}.up", bias=True, activation=self.activation)
        return write.linear(inner, f"{name}.down", bias=True, residual=x)

    def _attended(self, write: ProgramWriter, x: Node, name: str, waves: Node) -> Node:
        scale = (self.width // self.heads) ** -0.5
        normed = write.layer_norm(x, f"{name}_norm", _EPSILON)
        query, key, value = write.chunk(write.linear(normed, f"{name}.qkv", bias=True), 3)
        of_distances = write.step("add", query, Constant(f"{name}.distance_shift"))
        keys = write.linear(waves, f"{name}.distance")
        bias = write.step("relative_scores", of_distances, keys, self.heads, scale)
        of_contents = write.step("add", query, Constant(f"{name}.content_shift"))
        mixed = write.step(
            "encoder_attention", of_contents, key, value, self.heads, scale, None, bias
        )
        return write.linear(mixed, f"{name}.out", bias=True, residual=x)

    def _convolved(self, write: ProgramWriter, x: Node, name: str) -> Node:
        normed = write.layer_norm(x, f"{name}_norm", _EPSILON)
        gated = write.linear(normed, f"{name}.in", bias=True, gate="sigmoid")
        apart = write.step("unsqueeze", gated, 2)
        mixed = write.channel_convolution(apart, name, stride=1, activation=self.activation)
        flat = write.step("flatten", mixed, 2, 3)
        return write.linear(flat, f"{name}.out", bias=True, residual=x)


_NORMS = (
    "feed_forward_norm",
    "self_attention_norm",
    "convolution_norm",
    "last_feed_forward_norm",
    "norm",
)
