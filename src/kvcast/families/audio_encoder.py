"""Audio encoders whose results are embeddings for a decoder: Qwen3-ASR's and Voxtral's as data.

Layers are Whisper's. Before them, frames are halved once by convolutions over time, or three times
by convolutions over time and frequency in chunks that do not see each other; then attention has
windows. After them, neighbouring positions may be joined, and a projector gives embeddings.
Canonical tensors are [out, in], kernels [out, in, time, frequency].
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.families.programs import SOURCE, Argument
from kvcast.spec.program import Constant, Node, ProgramWriter
from kvcast.spec.sizes import (
    ACTIVATIONS,
    MOST_POSITIONS,
    require_layers,
    require_one_of,
    require_positive,
)

MOST_FRAMES = 3000
"""Frames of 10 ms in the longest excerpt."""

_EPSILON = 1e-5  # of layer norms
_CONVOLUTIONS = 3  # in chunks, each halves time and frequency
_KERNEL = 3
_TIMESCALE = 10_000
_POSITIONS = "encoder.positions"
_SOURCE = Node(SOURCE)
_WINDOWS, _WINDOW_LENGTHS = Node("windows"), Node("window_lengths")


class ChunkLayout(NamedTuple):
    """The layout of one input's positions in chunks and windows, as `encode` takes it."""

    source: NDArray[np.int64]  # [t], the chunks' positions that are audio, without padding
    windows: NDArray[np.int64]  # [windows, span], of the t positions; padded
    window_lengths: NDArray[np.int32]  # [windows]


class AudioEncoder(Protocol):
    output: int
    """Size of an embedding."""

    n_mels: int
    """Bands of a frame."""

    beside: bool = False
    """Whether embeddings lie beside tokens: what a row reads at position p is the sum of both.

    Otherwise numbers from the vocabulary's size on stand for them.
    """

    @property
    def frames(self) -> int:
        """Frames of each input; 0: depends on the audio."""

    @property
    def most_frames(self) -> int:
        """Frames of the longest excerpt."""

    @property
    def positions(self) -> int:
        return self.embedding_count(self.most_frames)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls(**fields)

    def embedding_count(self, frames: int) -> int:
        """Return the number of embeddings of `frames` frames."""

    def arguments(self) -> tuple[Argument, ...]:
        """Return what `encode` takes."""

    def source(self, features_btm: NDArray[np.float32]) -> tuple[NDArray[Any], ...]:
        """Return inputs of equally many frames as `encode` takes them."""

    def constants(self) -> Mapping[str, NDArray[np.generic]]:
        """Return further constants of `encode`."""

    def write_encoder(self, write: ProgramWriter) -> Node:
        """Write the encoder: the arguments to embeddings [batch, 1, t, output]."""


@dataclass(frozen=True, kw_only=True)
class WhisperEncoder(AudioEncoder):
    n_mels: int
    width: int
    inner: int
    heads: int
    layers: int
    projected: int
    output: int
    activation: str = "gelu"
    chunk: int = 0  # frames of a chunk; 0: one convolution halves all frames
    channels: int = 0  # of convolutions in chunks; 0 without chunks
    window: int = 0  # frames of an attention window, a multiple of `chunk`; 0 without chunks
    joined: int = 1
    projector_activation: str = "gelu"
    projector_bias: bool = False

    def __post_init__(self) -> None:
        sizes = ("n_mels", "width", "inner", "heads", "layers", "projected", "output", "joined")
        require_positive(**{name: getattr(self, name) for name in sizes})
        require_layers(self.layers)
        require_one_of("activation", self.activation, ACTIVATIONS)
        require_one_of("activation", self.projector_activation, ACTIVATIONS)
        if self.width % self.heads or self.width % 2:
            raise KvcastError(f"width {self.width} must be even and a multiple of the heads")
        if max(self.width, self.inner, self.projected, self.n_mels) > MOST_POSITIONS:
            raise KvcastError("an encoder is larger than any model's")
        if self.chunk:
            require_positive(chunk=self.chunk, channels=self.channels, window=self.window)
            if self.joined > 1 or self.window % self.chunk or self.width < 4:
                raise KvcastError("windows must be multiples of chunks, whose positions stay apart")
        elif self.channels or self.window:
            raise KvcastError("channels and windows are of chunks")
        elif MOST_FRAMES // 2 % self.joined:
            raise KvcastError(f"{MOST_FRAMES // 2} positions are not a multiple of {self.joined}")

    @property
    @override
    def frames(self) -> int:
        return 0 if self.chunk else MOST_FRAMES

    @property
    @override
    def most_frames(self) -> int:
        return MOST_FRAMES

    @override
    def embedding_count(self, frames: int) -> int:
        return len(self.layout(frames).source) if self.chunk else frames // 2 // self.joined

    @property
    def bands(self) -> int:
        return _halve(self.n_mels)

    def layout(self, frames: int) -> ChunkLayout:
        whole, rest = divmod(frames, self.chunk)
        each = _halve(self.chunk)
        lengths = [each] * whole + ([_halve(rest)] if rest else [])
        source = np.concatenate(
            [i * each + np.arange(length) for i, length in enumerate(lengths)]
        ).astype(np.int64)
        count = len(source)
        span = min(each * (self.window // self.chunk), count)
        places = np.arange(-(-count // span) * span).reshape(-1, span)
        held = np.minimum(span, count - places[:, 0]).astype(np.int32)
        return ChunkLayout(source, np.minimum(places, count - 1), held)

    @override
    def arguments(self) -> tuple[Argument, ...]:
        if not self.chunk:
            shape = ("batch", MOST_FRAMES, self.n_mels)
            return (Argument(name=FEATURES.name, shape=shape, dtype="float32"),)
        return (
            Argument(name=FEATURES.name, shape=("batch", "frames", self.n_mels), dtype="float32"),
            Argument(name=_SOURCE.name, shape=("batch", "source"), dtype="int64"),
            Argument(name=_WINDOWS.name, shape=("batch", "windows", "span"), dtype="int64"),
            Argument(name=_WINDOW_LENGTHS.name, shape=("batch", "windows"), dtype="int32"),
        )

    @override
    def source(self, features_btm: NDArray[np.float32]) -> tuple[NDArray[Any], ...]:
        if not self.chunk:
            return (features_btm,)
        batch, frames = features_btm.shape[:2]
        padding = -frames % self.chunk
        padded_btm = np.pad(features_btm, ((0, 0), (0, padding), (0, 0)))
        whole = len(self.layout(frames + padding).source)
        return (padded_btm, *batch_of([self.layout(frames)] * batch, whole))

    @override
    def constants(self) -> Mapping[str, NDArray[np.generic]]:
        return _waves(self) if self.chunk else {}

    @override
    def write_encoder(self, write: ProgramWriter) -> Node:
        return _write_states(write, self)


def _halve(size: int) -> int:
    for _ in range(_CONVOLUTIONS):
        size = (size + 1) // 2
    return size


def batch_of(layouts: list[ChunkLayout], chunks: int) -> tuple[NDArray[np.generic], ...]:
    """Return `encode`'s arguments after its features; `chunks`: positions of an input, padded."""
    source_bt = np.stack([layout.source + i * chunks for i, layout in enumerate(layouts)])
    count = source_bt.shape[1]
    windows = np.stack([layout.windows + i * count for i, layout in enumerate(layouts)])
    return source_bt, windows, np.stack([layout.window_lengths for layout in layouts])


def _waves(encoder: WhisperEncoder) -> Mapping[str, NDArray[np.generic]]:
    """[positions of a chunk, width]."""
    half = encoder.width // 2
    steps = np.exp(-math.log(_TIMESCALE) / (half - 1) * np.arange(half))
    angles = np.arange(_halve(encoder.chunk))[:, None] * steps
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return {_POSITIONS: waves.astype(np.float32)}


def _write_states(write: ProgramWriter, encoder: WhisperEncoder) -> Node:
    x = _encode_chunks(write, encoder) if encoder.chunk else _halve_once(write, encoder)
    for i in range(encoder.layers):
        x = _layer(write, x, f"encoder.layers.{i}", encoder)
    width, projected = encoder.width, encoder.projected
    x = write.layer_norm(x, "encoder.norm", width, _EPSILON)
    if encoder.joined > 1:
        x = write.step("flatten", write.step("unflatten", x, 1, [-1, encoder.joined]), 2, 3)
    bias, shape = encoder.projector_bias, (projected, encoder.joined * width)
    activation = encoder.projector_activation
    x = write.linear(x, "encoder.projector.up", shape, bias=bias, activation=activation)
    x = write.linear(x, "encoder.projector.down", (encoder.output, projected), bias=bias)
    if encoder.chunk:
        x = write.step("unflatten", x, 0, [write.size(_SOURCE, 0), write.size(_SOURCE, 1)])
    return write.step("unsqueeze", x, 1)


def _halve_once(write: ProgramWriter, encoder: WhisperEncoder) -> Node:
    """[batch, frames / 2, width]."""
    width = encoder.width
    x = write.step("transpose", FEATURES, 1, 2)
    shape, again = (width, encoder.n_mels, _KERNEL), (width, width, _KERNEL)
    x = write.conv1d(x, "encoder.conv1", shape, stride=1, padding=1, activation="gelu")
    x = write.conv1d(x, "encoder.conv2", again, stride=2, padding=1, activation="gelu")
    positions = write.tensor(_POSITIONS, MOST_FRAMES // 2, width)
    return write.step("add", write.step("transpose", x, 1, 2), positions)


def _encode_chunks(write: ProgramWriter, encoder: WhisperEncoder) -> Node:
    """[batch * t, width], without the chunks' padding."""
    chunks = write.step("unflatten", FEATURES, 1, [-1, encoder.chunk])
    x = write.step("unsqueeze", write.step("flatten", chunks, 0, 1), -1)
    channels = encoder.channels
    for i in range(1, _CONVOLUTIONS + 1):
        shape = (channels, channels if i > 1 else 1, _KERNEL, _KERNEL)
        x = write.conv2d(x, f"encoder.conv{i}", shape, stride=2, padding=1, activation="gelu")
    out = encoder.width, encoder.bands * channels
    x = write.linear(write.step("flatten", x, 2, 3), "encoder.conv_out", out)
    x = write.step("flatten", write.step("add", x, Constant(_POSITIONS)), 0, 1)
    return write.step("index_select", x, 0, write.step("flatten", _SOURCE))


def _layer(write: ProgramWriter, x: Node, layer: str, encoder: WhisperEncoder) -> Node:
    width, inner = encoder.width, encoder.inner
    normed = write.layer_norm(x, f"{layer}.attention_norm", width, _EPSILON)
    projected = write.linear(normed, f"{layer}.attention.qkv", (3 * width, width), bias=True)
    qkv = write.chunk(projected, 3)
    mixed = _in_windows(write, qkv, encoder) if encoder.chunk else _attend(write, qkv, encoder)
    x = write.linear(mixed, f"{layer}.attention.out", (width, width), bias=True, residual=x)
    block, activation = f"{layer}.feed_forward", encoder.activation
    normed = write.layer_norm(x, f"{block}_norm", width, _EPSILON)
    fed = write.linear(normed, f"{block}.up", (inner, width), bias=True, activation=activation)
    return write.linear(fed, f"{block}.down", (width, inner), bias=True, residual=x)


def _attend(
    write: ProgramWriter, qkv: list[Node], encoder: WhisperEncoder, lengths: Node | None = None
) -> Node:
    scale = (encoder.width // encoder.heads) ** -0.5
    given = () if lengths is None else (lengths,)
    return write.step("encoder_attention", *qkv, encoder.heads, scale, *given)


def _in_windows(write: ProgramWriter, qkv: list[Node], encoder: WhisperEncoder) -> Node:
    """[batch * t, width] each, and so is the result."""
    windows = write.step("flatten", _WINDOWS, 0, 1)
    index, span = write.step("flatten", windows), write.size(windows, 1)
    sizes = [write.size(windows, 0), span]
    apart = [
        write.step("unflatten", write.step("index_select", part, 0, index), 0, sizes)
        for part in qkv
    ]
    mixed = _attend(write, apart, encoder, write.step("flatten", _WINDOW_LENGTHS))
    # Padding follows the last window's positions.
    inputs = write.step("unflatten", write.step("flatten", mixed, 0, 1), 0, [_inputs(write), -1])
    count = write.step("arange", write.size(_SOURCE, 1), dtype="int64")
    return write.step("flatten", write.step("index_select", inputs, 1, count), 0, 1)


def _inputs(write: ProgramWriter) -> Node:
    return write.size(_SOURCE, 0)


FEATURES = Node("features")
"""The first input of `encode`: fp32 [batch, frames, bands]."""
