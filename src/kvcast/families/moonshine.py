"""Moonshine, speech recognition from raw samples, as data.

There are two encoders for one decoder. Moonshine's has convolutions over samples, a norm over the
whole recording, and full attention. The streaming one has frames of few samples, causal
convolutions and windowed attention, so that live audio is encoded as it comes. Canonical tensors
are [out, in], as in torch's Linear. Query, key and value of self-attention are one tensor in this
order, and so are key and value of cross-attention, and gate and up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.families.base import Family, PrecisionRoles, Probe
from kvcast.families.blocks import (
    TOKENS,
    attend,
    cache_of,
    join_rows,
    select_asked,
    split_rows,
)
from kvcast.families.moonshine_encoder import (
    ANGLES,
    FRAMES_EACH,
    REACH,
    STRIDE,
    encode,
    norm,
    normed_frames,
    sources,
)
from kvcast.families.programs import (
    LENGTHS_OF_SOURCES,
    ProgramSignature,
    cross_argument,
    decode_program,
    encode_program,
    self_and_cross_caches,
)
from kvcast.families.stacks import SOURCE_LENGTHS
from kvcast.spec.position_encodings import Rotary
from kvcast.spec.program import Constant, Program, ProgramWriter
from kvcast.spec.sizes import (
    ACTIVATIONS,
    MOST_POSITIONS,
    require_layers,
    require_one_of,
    require_positions,
    require_positive,
    require_token,
)

_SIZES = (
    "vocab_size",
    "width",
    "inner",
    "heads",
    "head_dim",
    "decoder_layers",
    "encoder_width",
    "encoder_inner",
    "encoder_heads",
    "encoder_head_dim",
    "encoder_layers",
    "source_positions",
    "target_positions",
)


@dataclass(frozen=True, kw_only=True)
class MoonshineDimensions:
    vocab_size: int
    width: int  # size of a hidden state of the decoder
    inner: int  # inner width of its feed-forward, which has a gate
    heads: int
    head_dim: int
    decoder_layers: int
    encoder_width: int  # size of a hidden state of the encoder
    encoder_inner: int
    encoder_heads: int
    encoder_head_dim: int
    encoder_layers: int
    rotary: Rotary  # angles of positions, in the encoder over samples too
    start_token: int
    source_positions: int
    target_positions: int  # length of the longest target, including the start token
    activation: str = "silu"
    encoder_activation: str = "gelu"
    attention_bias: bool = False  # whether queries, keys and values have biases in the decoder
    encoder_attention_bias: bool = False  # over frames, outputs have biases as well
    tied: bool = True
    frame: int = 0  # samples of a frame; 0: the encoder has convolutions over samples
    windows: tuple[tuple[int, int], ...] = ()  # of layers over frames: positions before and after

    def __post_init__(self) -> None:
        require_positive(**{name: getattr(self, name) for name in _SIZES})
        require_layers(self.encoder_layers, self.decoder_layers)
        require_one_of("activation", self.activation, ACTIVATIONS)
        require_one_of("encoder_activation", self.encoder_activation, ACTIVATIONS)
        object.__setattr__(self, "windows", tuple(map(tuple, self.windows)))
        require_positions(
            source_positions=self.source_positions,
            target_positions=self.target_positions,
            frame=self.frame,
        )
        if self.head_dim % 2:
            raise KvcastError(f"heads of {self.head_dim} numbers cannot be rotated in pairs")
        self.rotary.check(self.head_dim)
        if self.frame:
            require_positive(frame=self.frame)
            self._check_windows()
        elif (self.encoder_width, self.encoder_head_dim) != (self.width, self.head_dim):
            raise KvcastError("an encoder over samples is as wide as the decoder")
        require_token("start_token", self.start_token, self.vocab_size)

    def _check_windows(self) -> None:
        if len(self.windows) != self.encoder_layers:
            raise KvcastError(
                f"{self.encoder_layers} layers need as many windows, not {len(self.windows)}"
            )
        for window in self.windows:
            sizes = [size for size in window if type(size) is int and 0 <= size <= MOST_POSITIONS]
            if len(window) != 2 or len(sizes) != 2:
                raise KvcastError("a window is a number of positions before and one after")

    @property
    def architecture(self) -> str:
        return "moonshine_streaming" if self.frame else "moonshine"

    @property
    def decoder_heads(self) -> int:
        return self.heads

    @property
    def head(self) -> str:
        return "decoder.embedding" if self.tied else "head"

    @property
    def position_samples(self) -> int:
        return FRAMES_EACH * self.frame if self.frame else STRIDE

    @property
    def sees_ahead(self) -> int:
        """Positions after its own that an encoded position over frames depends on."""
        return sum(after for _, after in self.windows)

    def positions_of(self, samples: int) -> int:
        """At least 1: shorter recordings are padded."""
        if self.frame:
            return max(1, -(-samples // self.position_samples))
        return positions_over_samples(samples)

    def padded_samples(self, positions: int) -> int:
        """Return the samples of the longest recording of `positions` positions."""
        if self.frame:
            return positions * self.position_samples
        return (positions - 1) * STRIDE + REACH + STRIDE - 1

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        try:
            return cls(**{**fields, "rotary": Rotary(**fields["rotary"])})
        except (KeyError, TypeError) as error:
            raise KvcastError(f"not the dimensions of a Moonshine: {error}") from None


def positions_over_samples(samples: int) -> int:
    return max(1, (samples - REACH) // STRIDE + 1)


def _programs(dimensions: MoonshineDimensions) -> Mapping[str, ProgramSignature]:
    own, cross = self_and_cross_caches(dimensions)
    read = cross_argument(cross, "source"), LENGTHS_OF_SOURCES
    return {
        "encode": encode_program(cross, *sources(dimensions), LENGTHS_OF_SOURCES),
        "decode": decode_program([own], ["logits"], *read),
    }


def _decode(write: ProgramWriter, dimensions: MoonshineDimensions) -> Program:
    scale, bias = dimensions.head_dim**-0.5, dimensions.attention_bias
    width, inner = dimensions.width, dimensions.inner
    query_width = dimensions.heads * dimensions.head_dim
    vocab, out = (dimensions.vocab_size, width), (width, query_width)
    angles = {name: Constant(name) for name in ANGLES}
    x = write.embedding("decoder.embedding.weight", TOKENS, vocab)
    for i in range(dimensions.decoder_layers):
        layer = f"decoder.layers.{i}"
        normed = norm(write, x, f"{layer}.self_attention_norm", width)
        qkv, shape = f"{layer}.self_attention.qkv", (3 * query_width, width)
        parts = write.chunk(write.linear(normed, qkv, shape, bias=bias), 3)
        mixed = attend(write, i, parts, scale, **angles)
        x = write.linear(mixed, f"{layer}.self_attention.out", out, residual=x)
        normed = norm(write, x, f"{layer}.cross_attention_norm", width)
        query = write.linear(normed, f"{layer}.cross_attention.query", out[::-1], bias=bias)
        cross = (*cache_of("cross", i), scale, SOURCE_LENGTHS)
        mixed = write.step("cross_attention", query, *cross)
        x = write.linear(mixed, f"{layer}.cross_attention.out", out, residual=x)
        block, shape = f"{layer}.feed_forward", (2 * inner, width)
        normed = norm(write, x, f"{block}_norm", width)
        gate = dimensions.activation
        fed = write.linear(normed, f"{block}.gate_up", shape, bias=True, gate=gate)
        x = write.linear(fed, f"{block}.down", (width, inner), bias=True, residual=x)
    normed = norm(write, join_rows(write, select_asked(write, x)), "decoder.norm", width)
    return write.program(logits=split_rows(write, write.linear(normed, dimensions.head, vocab)))


def _constants(
    dimensions: MoonshineDimensions,
    tensors: Mapping[str, NDArray[np.generic]],  # noqa: ARG001
) -> dict[str, NDArray[np.generic]]:
    """Tables of angles, and the biases and gains of norms that have none."""
    encoded = 0 if dimensions.frame else dimensions.source_positions
    longest = max(dimensions.target_positions, encoded)
    tables = dict(zip(ANGLES, dimensions.rotary.tables(longest, dimensions.head_dim), strict=True))
    tables |= {
        "encoder_no_bias": np.zeros(dimensions.encoder_width, np.float32),
        "decoder_no_bias": np.zeros(dimensions.width, np.float32),
    }
    if dimensions.frame:
        tables["frame_gain"] = np.ones(dimensions.frame, np.float32)
        tables["frame_bias"] = np.zeros(dimensions.frame, np.float32)
    return dict(tables)


def source_of(
    dimensions: MoonshineDimensions, waveforms: Sequence[NDArray[np.float32]]
) -> tuple[NDArray[Any], ...]:
    """Return `encode`'s arguments: samples, and the number of positions of each recording."""
    lengths_b = np.array(
        [dimensions.positions_of(len(waveform)) for waveform in waveforms], np.int32
    )
    longest = int(lengths_b.max())
    samples_bn = np.zeros((len(waveforms), dimensions.padded_samples(longest)), np.float32)
    for samples_n, waveform in zip(samples_bn, waveforms, strict=True):
        # The rest of the last frame is silence.
        rest = len(waveform) % dimensions.frame if dimensions.frame else 0
        samples_n[: len(waveform) - rest] = waveform[: len(waveform) - rest]
    if dimensions.frame:
        return samples_bn.reshape(len(waveforms), longest, -1), lengths_b
    frames_b = np.array([normed_frames(len(waveform)) for waveform in waveforms], np.int32)
    return samples_bn, frames_b, lengths_b


def _probe(dimensions: MoonshineDimensions) -> Probe:
    generator = np.random.default_rng(0)
    longest = dimensions.padded_samples(min(40, dimensions.source_positions))
    waveforms = [generator.uniform(-1, 1, length) for length in (longest, longest // 2)]
    return Probe(
        prompts=[np.array([dimensions.start_token])] * len(waveforms),
        source=source_of(dimensions, [waveform.astype(np.float32) for waveform in waveforms]),
    )


MOONSHINE = Family(
    name="moonshine",
    title="Moonshine",
    task="transcribe",
    interface="encoder-decoder",
    dimensions=MoonshineDimensions,
    positions=lambda dimensions: dimensions.target_positions,
    caches=self_and_cross_caches,
    programs=_programs,
    writers={"encode": encode, "decode": _decode},
    constants=_constants,
    precision=PrecisionRoles(fused=False),
    probe=_probe,
    model_class="kvcast.speech.moonshine:MoonshineModel",
    usual_prompt=lambda _: 1,
    longest=lambda dimensions, source: {"samples": dimensions.padded_samples(source)},
    rotary=lambda _: True,
    facts=lambda dimensions: {"start_tokens": [dimensions.start_token]},
)
