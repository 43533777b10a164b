"""Parakeet as data: a FastConformer whose positions a transducer, or CTC, turns into tokens.

A decode token packs a token id and an encoder frame, `token + frame * tokens`; the step returns
logits of the next token there: with a prediction network over the tokens so far, whose LSTMs'
states are a cache, or without one (CTC). Blank tokens leave the states unchanged. The caller
chooses the next frame.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from kvcast.errors import KvcastError
from kvcast.families.base import Family, PrecisionRoles, Probe
from kvcast.families.blocks import (
    EMBEDDINGS,
    LENGTHS,
    TOKENS,
    gather_embeddings,
    join_rows,
    select_asked,
    split_rows,
)
from kvcast.families.conformer import Conformer
from kvcast.families.programs import (
    LENGTHS_OF_SOURCES,
    CacheLayers,
    ProgramSignature,
    cross_argument,
    decode_program,
    embeddings_cache,
    encode_program,
)
from kvcast.spec.program import Node, Program, ProgramWriter
from kvcast.spec.sizes import (
    ACTIVATIONS,
    require_layers,
    require_one_of,
    require_positive,
    require_token,
)

_MOST_DURATIONS = 1 << 10
_MOST_SYMBOLS = 1 << 10
_STATE = Node("past_state_0")


@dataclass(frozen=True, kw_only=True)
class ParakeetDimensions:
    architecture: str  # the checkpoint's name for it, for people only: "parakeet_tdt", ...
    encoder: Conformer
    tokens: int
    blank: int
    width: int
    vocab_size: int
    prediction_layers: int = 0  # number of LSTM layers over the tokens so far; 0: CTC
    activation: str = "relu"  # of the sum of both networks; one of `sizes.ACTIVATIONS`
    durations: tuple[int, ...] = ()  # frames that a token advances; empty: 1 after a blank
    most_symbols: int = 10

    def __post_init__(self) -> None:
        names = ("tokens", "width", "most_symbols")
        require_positive(**{name: getattr(self, name) for name in names})
        require_one_of("activation", self.activation, ACTIVATIONS)
        if type(self.prediction_layers) is not int or self.prediction_layers < 0:
            raise KvcastError("prediction_layers must be 0 or more")
        require_layers(self.prediction_layers)
        require_token("the blank token", self.blank, self.tokens)
        if not all(type(n) is int and 0 <= n < _MOST_DURATIONS for n in self.durations):
            raise KvcastError("durations must be whole numbers from 0 on")
        if self.durations and (not self.prediction_layers or not any(self.durations)):
            raise KvcastError("durations are a transducer's, and some must be above 0")
        if self.vocab_size != self.tokens + len(self.durations):
            raise KvcastError("vocab_size must be the number of tokens and durations")
        if self.most_symbols > _MOST_SYMBOLS:
            raise KvcastError(f"{self.most_symbols} tokens at one position are more than any")
        if not self.prediction_layers and self.width != self.encoder.width:
            raise KvcastError(f"positions are {self.encoder.width} wide, not {self.width}")

    @property
    def head_dim(self) -> int:
        return self.width

    @property
    def positions(self) -> int:
        return self.encoder.positions * self.most_symbols

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        try:
            rebuilt = {
                **fields,
                "encoder": Conformer(**fields["encoder"]),
                "durations": tuple(fields.get("durations", ())),
            }
            return cls(**rebuilt)
        except (TypeError, KeyError) as error:
            raise KvcastError(f"not the dimensions of a Parakeet: {error}") from None


def _caches(dimensions: ParakeetDimensions) -> tuple[CacheLayers, ...]:
    encoded = embeddings_cache(dimensions.encoder.positions, dimensions.width)
    if not dimensions.prediction_layers:
        return (encoded,)
    states = CacheLayers(
        kind="state",
        layers=1,
        heads=2 * dimensions.prediction_layers,
        capacity=1,
        head_dim=dimensions.width,
    )
    return states, encoded


def _programs(dimensions: ParakeetDimensions) -> Mapping[str, ProgramSignature]:
    *own, encoded = _caches(dimensions)
    return {
        "encode": encode_program(encoded, dimensions.encoder.features, LENGTHS_OF_SOURCES),
        "decode": decode_program(own, ["logits"], cross_argument(encoded, "source")),
    }


def _encode(write: ProgramWriter, dimensions: ParakeetDimensions) -> Program:
    encoded = dimensions.encoder.write_encoder(write)
    if dimensions.prediction_layers:
        shape = dimensions.width, dimensions.encoder.width
        encoded = write.linear(encoded, "encoder.out", shape, bias=True)
    return write.program(**{EMBEDDINGS.name: write.step("unsqueeze", encoded, 1)})


def _decode(write: ProgramWriter, dimensions: ParakeetDimensions) -> Program:
    position = write.step("floor_divide", TOKENS, dimensions.tokens)
    token = write.step("sub", TOKENS, write.step("mul", position, dimensions.tokens))
    x = write.step("flatten", gather_embeddings(write, position), 0, 1)
    if dimensions.prediction_layers:
        x = write.step("add", x, _predict(write, token, dimensions))
        x = write.step(dimensions.activation, x)
    x = select_asked(write, write.step("unsqueeze", x, 1))
    shape = dimensions.vocab_size, dimensions.width
    logits = write.linear(join_rows(write, x), "head", shape, bias=True)
    return write.program(logits=split_rows(write, logits))


def _predict(write: ProgramWriter, token: Node, dimensions: ParakeetDimensions) -> Node:
    """[rows, width]; updates the states."""
    layers, width = dimensions.prediction_layers, dimensions.width
    has_begun = write.step("unsqueeze", write.step("ge", LENGTHS, 1), 1)
    held = write.step("where", has_begun, write.step("flatten", _STATE, 1, 3), 0.0)
    table = "prediction.embedding.weight"
    x = write.step("flatten", write.embedding(table, token, (dimensions.tokens, width)), 1, 2)
    fresh: list[Node] = []
    parts = write.split(held, [width] * 2 * layers)
    for i in range(layers):
        x, cell = _lstm(write, x, parts[2 * i : 2 * i + 2], f"prediction.layers.{i}", width)
        fresh += [x, cell]
    is_blank = write.step("where", write.step("eq", token, dimensions.blank), 1, 0)
    stays = write.step("eq", write.step("where", has_begun, is_blank, 0), 1)
    kept = write.step("where", stays, held, write.step("cat", fresh, -1))
    write.step("rewrite", _STATE, write.step("unflatten", kept, -1, [2 * layers, 1, width]))
    output = write.split(kept, [width] * 2 * layers)[-2]
    return write.linear(output, "prediction.out", (width, width), bias=True)


def _lstm(
    write: ProgramWriter, x: Node, before: Sequence[Node], name: str, width: int
) -> tuple[Node, Node]:
    """Output and cell of an LSTM layer, from the previous ones."""
    output, cell = before
    both = write.step("cat", [x, output], -1)
    gates = write.linear(both, name, (4 * width, 2 * width), bias=True)
    taken, kept, new, given = write.chunk(gates, 4)

    def gate_of(gate: Node, value: Node) -> Node:
        return write.step("gated", gate, value, activation="sigmoid")

    cell = write.step("add", gate_of(kept, cell), gate_of(taken, write.step("tanh", new)))
    return gate_of(given, write.step("tanh", cell)), cell


def _probe(dimensions: ParakeetDimensions) -> Probe:
    source = dimensions.encoder.noise(2, np.random.default_rng(0))
    return Probe(prompts=[np.array([dimensions.blank])] * 2, source=source)


PARAKEET = Family(
    name="parakeet",
    title="Parakeet",
    task="transcribe",
    interface="encoder-decoder",
    dimensions=ParakeetDimensions,
    positions=lambda dimensions: dimensions.positions,
    caches=_caches,
    programs=_programs,
    writers={"encode": _encode, "decode": _decode},
    constants=lambda dimensions, _: dimensions.encoder.constants(),
    precision=PrecisionRoles(fused=False),
    probe=_probe,
    model_class="kvcast.speech.conformer:ParakeetModel",
    usual_prompt=lambda _: 1,
    longest=lambda dimensions, _: {
        "frames": dimensions.encoder.most_frames,
        "source": dimensions.encoder.positions,
    },
    one_by_one=True,
)
