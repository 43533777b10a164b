"""Voxtral Realtime's encoder as data: Whisper's convolutions and a decoder's layers, all causal.

A position attends to a sliding window of earlier positions, so that later audio does not change it.
Adjacent positions are joined, and a projector returns embeddings, one for each token of the text.
Canonical tensors are [out, in], as in torch's Linear; query, key and value are one tensor in this
order, and so are gate and up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.families.audio_encoder import FEATURES, AudioEncoder
from kvcast.families.blocks import EMBEDDINGS
from kvcast.families.programs import LENGTHS_OF_SOURCES, LISTEN, NEXT, Argument, StreamedSource
from kvcast.spec.position_encodings import Rotary
from kvcast.spec.program import Constant, Node, ProgramWriter
from kvcast.spec.sizes import (
    ACTIVATIONS,
    MOST_POSITIONS,
    require_layers,
    require_one_of,
    require_positive,
)

_KERNEL = 3  # frames of a convolution
_HALVED = 2  # frames of a position
_AFTER = 11
"""Embeddings of the silence after the audio, besides those of the delay: text comes later."""

_MOST_EMBEDDINGS = 375  # of the longest excerpt, of 30 seconds
_SAMPLES, _DONE, _ALL = Node("samples"), Node("done"), 1 << 62
_ANGLES = ("encoder.cosines", "encoder.sines")


@dataclass(frozen=True, kw_only=True)
class CausalEncoder(AudioEncoder):
    n_mels: int
    width: int
    inner: int  # inner width of a feed-forward, which has a gate
    heads: int
    head_dim: int
    layers: int
    window: int  # positions that one sees, its own among them
    rotary: Rotary
    epsilon: float
    output: int  # size of an embedding, and inner width of the projector
    activation: str = "silu"  # of gates; one of `sizes.ACTIVATIONS`
    joined: int = 4
    projector_activation: str = "gelu"
    silence: int = 32
    delay: int = 6  # delay of the text after its audio, in embeddings

    def __post_init__(self) -> None:
        sizes = {name: vars(self)[name] for name in _SIZES}
        require_positive(**sizes)
        require_layers(self.layers)
        require_one_of("activation", self.activation, ACTIVATIONS)
        require_one_of("projector_activation", self.projector_activation, ACTIVATIONS)
        if max(sizes.values()) > MOST_POSITIONS:
            raise KvcastError("an encoder is larger than any model's")
        if max(self.silence, self.delay) > _MOST_EMBEDDINGS:
            raise KvcastError("there is more silence around the audio than any model has")
        self.rotary.check(self.head_dim)

    frames, beside = 0, True

    @classmethod
    @override
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls(**{**fields, "rotary": Rotary(**fields["rotary"])})

    @property
    def each(self) -> int:
        return _HALVED * self.joined

    @property
    def after(self) -> int:
        return self.delay + _AFTER

    @property
    @override
    def positions(self) -> int:
        return self.silence + _MOST_EMBEDDINGS + self.after

    @property
    @override
    def most_frames(self) -> int:
        return self.positions * self.each

    @override
    def embedding_count(self, frames: int) -> int:
        return frames // self.each

    @override
    def arguments(self) -> tuple[Argument, ...]:
        shape = ("batch", "frames", self.n_mels)
        return (
            Argument(name=FEATURES.name, shape=shape, dtype="float32"),
            LENGTHS_OF_SOURCES,
        )

    @override
    def source(self, features_btm: NDArray[np.float32]) -> tuple[NDArray[Any], ...]:
        batch, frames = features_btm.shape[:2]
        whole_btm = features_btm[:, : frames // self.each * self.each]
        return whole_btm, np.full(batch, self.embedding_count(frames), np.int32)

    @override
    def constants(self) -> Mapping[str, NDArray[np.generic]]:
        """Tables of angles for all positions of the longest audio."""
        tables = self.rotary.tables(self.joined * self.positions, self.head_dim)
        return dict(zip(_ANGLES, tables, strict=True))

    @override
    def write_encoder(self, write: ProgramWriter) -> Node:
        x = self.convolve(write, FEATURES, 1, padding=_KERNEL - 1)
        x = self.convolve(write, x, 2, padding=_KERNEL - _HALVED)
        angles = self.angles(write, write.step("arange", write.size(x, 1), dtype="int64"))
        for i in range(self.layers):
            query, key, value = self.project(write, x, i, angles)
            x = self.attend(write, x, (query, key, value), i)
        return self.project_embeddings(write, x)

    def angles(self, write: ProgramWriter, places: Node) -> list[Node]:
        """Cosines and sines [t, 1, d / 2], the same for every head."""
        tables = [write.step("index_select", Constant(name), 0, places) for name in _ANGLES]
        return [write.step("unsqueeze", table, 1) for table in tables]

    def project(
        self, write: ProgramWriter, x: Node, i: int, angles: Sequence[Node]
    ) -> tuple[Node, Node, Node]:
        """Rotated queries and keys, and values, each [batch, t, heads * d]."""
        layer, width, mixed = f"encoder.layers.{i}", self.width, self.heads * self.head_dim
        normed = write.rms_norm(x, f"{layer}.attention_norm", width, self.epsilon)
        qkv = write.linear(normed, f"{layer}.attention.qkv", (3 * mixed, width), bias=True)
        query, key, value = write.chunk(qkv, 3)
        return self._rotate(write, query, angles), self._rotate(write, key, angles), value

    def _rotate(self, write: ProgramWriter, x: Node, angles: Sequence[Node]) -> Node:
        cosines, sines = angles
        heads = write.step("unflatten", x, -1, [self.heads, self.head_dim])
        first, second = write.chunk(heads, 2)
        turned = [
            write.step("sub", write.step("mul", first, cosines), write.step("mul", second, sines)),
            write.step("add", write.step("mul", second, cosines), write.step("mul", first, sines)),
        ]
        return write.step("flatten", write.step("cat", turned, -1), 2, 3)

    def attend(self, write: ProgramWriter, x: Node, qkv: Sequence[Node], i: int) -> Node:
        """Attend from the hidden states to keys, of which theirs are the last."""
        layer, scale = f"encoder.layers.{i}", self.head_dim**-0.5
        given = *qkv, self.heads, scale, self.window - 1, 0
        mixed = write.step("window_attention", *given)
        width, inner, out = self.width, self.inner, f"{layer}.attention.out"
        x = write.linear(mixed, out, (width, self.heads * self.head_dim), bias=True, residual=x)
        block = f"{layer}.feed_forward"
        normed = write.rms_norm(x, f"{block}_norm", width, self.epsilon)
        fed = write.linear(normed, f"{block}.gate_up", (2 * inner, width), gate=self.activation)
        return write.linear(fed, f"{block}.down", (width, inner), bias=True, residual=x)

    def project_embeddings(self, write: ProgramWriter, x: Node) -> Node:
        """Project [batch, t, width] to the decoder's embeddings [batch, 1, t / joined, output]."""
        output, activation = self.output, self.projector_activation
        normed = write.rms_norm(x, "encoder.norm", self.width, self.epsilon)
        joined = write.step("flatten", write.step("unflatten", normed, 1, [-1, self.joined]), 2, 3)
        shape = output, self.joined * self.width
        inner = write.linear(joined, "encoder.projector.up", shape, activation=activation)
        embeddings = write.linear(inner, "encoder.projector.down", (output, output))
        return write.step("unsqueeze", embeddings, 1)

    def convolve(self, write: ProgramWriter, x: Node, number: int, *, padding: int) -> Node:
        """Convolve [batch, t, channels] with `padding` zeros before the beginning."""
        channels = write.step("transpose", x, 1, 2)
        name, stride = f"encoder.conv{number}", number  # the second halves positions
        shape = self.width, self.n_mels if number == 1 else self.width, _KERNEL
        before = [padding, 0]
        x = write.conv1d(channels, name, shape, stride=stride, padding=before, activation="gelu")
        return write.step("transpose", x, 1, 2)


_SIZES = (
    *("n_mels", "width", "inner", "heads", "head_dim", "layers", "window", "output", "joined"),
    *("silence", "delay"),
)


def write_streamed_source(encoder: CausalEncoder) -> StreamedSource:
    """Write `listen`, over frames [1, n, frames of one * n_mels] and each layer's window."""
    mixed = encoder.heads * encoder.head_dim
    left = {"frames": (_KERNEL - 1, encoder.n_mels), "halves": (_KERNEL - _HALVED, encoder.width)}
    for i in range(encoder.layers):
        left |= {f"key_{i}": (0, mixed), f"value_{i}": (0, mixed)}
    write = ProgramWriter([_SAMPLES.name, _DONE.name, *left])
    kept: dict[str, Node] = {}

    def with_former(name: str, new: Node, most: int) -> Node:
        whole = write.step("cat", [Node(name), new], 1)
        # Of none from the end would be all.
        kept[f"{NEXT}{name}"] = write.step("slice", whole, 1, -most if most else _ALL, _ALL)
        return whole

    frames = write.step("unflatten", _SAMPLES, 2, [encoder.each, encoder.n_mels])
    x = write.step("flatten", frames, 1, 2)
    x = encoder.convolve(write, with_former("frames", x, _KERNEL - 1), 1, padding=0)
    x = encoder.convolve(write, with_former("halves", x, _KERNEL - _HALVED), 2, padding=0)
    places = write.step("positions", x, write.step("mul", _DONE, encoder.joined))
    angles = encoder.angles(write, write.step("flatten", places))
    for i in range(encoder.layers):
        query, key, value = encoder.project(write, x, i, angles)
        keys = with_former(f"key_{i}", key, encoder.window - 1)
        values = with_former(f"value_{i}", value, encoder.window - 1)
        x = encoder.attend(write, x, (query, keys, values), i)
    embeddings = encoder.project_embeddings(write, x)
    program = write.program(**{EMBEDDINGS.name: embeddings}, **kept)
    return StreamedSource(programs={LISTEN: program}, left=left)
