"""Canary and its relatives as data: a FastConformer and a decoder that attends to it.

Canonical tensors as in `conformer` and `stacks`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from kvcast.errors import KvcastError
from kvcast.families.base import Family, PrecisionRoles, Probe
from kvcast.families.blocks import project_cross_caches
from kvcast.families.conformer import Conformer
from kvcast.families.programs import (
    LENGTHS_OF_SOURCES,
    ProgramSignature,
    cross_argument,
    decode_program,
    encode_program,
    self_and_cross_caches,
)
from kvcast.families.stacks import decode
from kvcast.spec.program import Program, ProgramWriter
from kvcast.spec.sizes import (
    ACTIVATIONS,
    require_heads,
    require_layers,
    require_one_of,
    require_positions,
    require_positive,
)


@dataclass(frozen=True, kw_only=True)
class CanaryDimensions:
    architecture: str  # the checkpoint's name for it, for people only: "canary", "cohere_asr"
    encoder: Conformer
    vocab_size: int
    width: int
    inner: int
    decoder_heads: int  # number of heads of each of its attentions
    decoder_layers: int
    target_positions: int  # length of the longest text, with its prompt
    before: tuple[int, ...] = ()  # tokens that precede the language token
    activation: str = "relu"  # of the feed-forward; one of `sizes.ACTIVATIONS`
    projected: bool = False  # whether a projection precedes the decoder
    tied: bool = True

    # As `stacks` has them.
    norm_first = embedding_norm = final_norm = head_bias = True
    late_positions = zero_start = recurrent = False
    embedding_scale = 1.0
    norm_eps = 1e-5

    def __post_init__(self) -> None:
        require_positive(**{name: vars(self)[name] for name in _SIZES})
        require_layers(self.decoder_layers)
        require_one_of("activation", self.activation, ACTIVATIONS)
        require_heads(self.width, self.decoder_heads)
        require_positions(target_positions=self.target_positions)
        if not self.projected and self.encoder.width != self.width:
            raise KvcastError(
                f"the decoder is {self.width} wide, and its encoder {self.encoder.width}"
            )
        if not all(type(token) is int and 0 <= token < self.vocab_size for token in self.before):
            raise KvcastError(f"a text's first tokens are not of {self.vocab_size} tokens")

    @property
    def decoder_inner(self) -> int:
        return self.inner

    @property
    def head_dim(self) -> int:
        return self.width // self.decoder_heads

    @property
    def head(self) -> str:
        return "embedding" if self.tied else "head"

    @property
    def source_positions(self) -> int:
        return self.encoder.positions

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        try:
            rebuilt = {
                **fields,
                "encoder": Conformer(**fields["encoder"]),
                "before": tuple(fields.get("before", ())),
            }
            return cls(**rebuilt)
        except (TypeError, KeyError) as error:
            raise KvcastError(f"not the dimensions of a Canary: {error}") from None


_SIZES = ("vocab_size", "width", "inner", "decoder_heads", "decoder_layers", "target_positions")


def _programs(dimensions: CanaryDimensions) -> Mapping[str, ProgramSignature]:
    own, cross = self_and_cross_caches(dimensions)
    read = cross_argument(cross, "source"), LENGTHS_OF_SOURCES
    return {
        "encode": encode_program(cross, dimensions.encoder.features, LENGTHS_OF_SOURCES),
        "decode": decode_program([own], ["logits"], *read),
    }


def _encode(write: ProgramWriter, dimensions: CanaryDimensions) -> Program:
    encoded, width = dimensions.encoder.write_encoder(write), dimensions.width
    if dimensions.projected:
        shape = width, dimensions.encoder.width
        encoded = write.linear(encoded, "encoder.out", shape, bias=True)
    sizes = dimensions.decoder_layers, (2 * width, width), dimensions.decoder_heads
    return write.program(**project_cross_caches(write, encoded, *sizes, bias=True))


def _probe(dimensions: CanaryDimensions) -> Probe:
    generator = np.random.default_rng(0)
    source = dimensions.encoder.noise(2, generator)
    prompts_rs = generator.integers(0, dimensions.vocab_size, (2, 4))
    return Probe(prompts=list(prompts_rs), source=source)


CANARY = Family(
    name="canary",
    title="Canary",
    task="transcribe",
    interface="encoder-decoder",
    dimensions=CanaryDimensions,
    positions=lambda dimensions: dimensions.target_positions,
    caches=self_and_cross_caches,
    programs=_programs,
    writers={"encode": _encode, "decode": decode},
    constants=lambda dimensions, _: dimensions.encoder.constants(),
    precision=PrecisionRoles(int8_cross_cache=True, fused=False),
    probe=_probe,
    model_class="kvcast.speech.conformer:CanaryModel",
    usual_prompt=lambda _: 10,  # task, languages and formatting
    longest=lambda dimensions, _: {
        "frames": dimensions.encoder.most_frames,
        "source": dimensions.source_positions,
    },
)
