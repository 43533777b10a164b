"""Text encoders, which turn texts into vectors, and cross-encoders, which score pairs, as data.

`encode` gives a hidden state for each token, of which `pooling` makes one for each text; `head`
goes on from that. A stack is BERT's (BERT, RoBERTa, XLM-RoBERTa, MPNet) or Gemma's
(EmbeddingGemma).

Canonical tensors are [out, in], as in torch's Linear. Query, key and value are one tensor in this
order, and so are gate and up. Gemma's have the names of T5Gemma's encoder.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.families.base import Family, PrecisionRoles, Probe, Task
from kvcast.families.blocks import bert_layer, bias_by_distance
from kvcast.families.gemma_stack import GemmaStack, StackWriter
from kvcast.families.programs import LENGTHS_OF_SOURCES, Argument, ProgramSignature
from kvcast.families.programs import SOURCE as SOURCE_NAME
from kvcast.families.stacks import PROBED, SOURCE, SOURCE_LENGTHS
from kvcast.spec.position_encodings import Rotary, biases_by_distance, farthest_of
from kvcast.spec.program import Node, Program, ProgramWriter
from kvcast.spec.sizes import (
    ACTIVATIONS,
    require_heads,
    require_layers,
    require_one_of,
    require_positions,
    require_positive,
)

POOLINGS = ("mean", "cls", "max", "last")
"""Of a text's hidden states: their mean, the first, the largest of each channel, the last."""

SEGMENTS = "segments"
"""The argument of `encode`, [batch, t], of stacks with segments: 1 in the second text of a pair."""

_AFTER = ("identity", "tanh", "relu", "gelu")
_SIZES = ("width", "inner", "heads", "layers", "positions")
_ANGLES = ("cosines", "sines")
_BIAS = "bias_by_distance"


@dataclass(frozen=True, kw_only=True)
class BertStack:
    width: int
    inner: int
    heads: int
    layers: int
    positions: int  # of the longest text
    activation: str
    norm_eps: float
    first_position: int = 0  # row of the table of positions that a text's first token has
    segments: int = 0  # rows of the table of segments; 0: there is none
    buckets: int = 0  # of relative positions, whose biases all layers share (MPNet); 0: none
    max_distance: int = 128  # from this distance on, all share a bucket

    def __post_init__(self) -> None:
        require_positive(**{name: getattr(self, name) for name in _SIZES})
        require_layers(self.layers)
        require_heads(self.width, self.heads)
        require_one_of("activation", self.activation, ACTIVATIONS)
        require_positions(
            positions=self.positions,
            first_position=self.first_position,
            segments=self.segments,
            max_distance=self.max_distance,
        )
        if min(self.first_position, self.segments, self.buckets) < 0:
            raise KvcastError("first_position, segments and buckets must be 0 or more")
        if self.buckets % 4 or (self.buckets and self.max_distance <= self.buckets // 2):
            raise KvcastError(
                f"{self.buckets} buckets over a distance of {self.max_distance} are not possible"
            )


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A matrix over pooled states, with a function of its results."""

    outputs: int
    bias: bool
    activation: str = "identity"

    def __post_init__(self) -> None:
        require_positive(outputs=self.outputs)
        require_one_of("activation", self.activation, _AFTER)


@dataclass(frozen=True, kw_only=True)
class TextEncoderDimensions:
    architecture: str  # the checkpoint's name for it, for people only: "bert", "mpnet", ...
    vocab_size: int
    stack: BertStack | GemmaStack
    longest: int  # tokens of the longest text
    pooling: str = "mean"  # one of POOLINGS
    head: tuple[Projection, ...] = ()
    normalized: bool = False  # whether vectors have length 1

    name: ClassVar[str] = "a text encoder"

    def __post_init__(self) -> None:
        require_positive(vocab_size=self.vocab_size, longest=self.longest)
        require_one_of("pooling", self.pooling, POOLINGS)
        if self.longest > self.stack.positions:
            raise KvcastError(
                f"a text has at most {self.stack.positions} tokens, and not {self.longest}"
            )

    @property
    def width(self) -> int:
        return self.stack.width

    @property
    def outputs(self) -> int:
        """Size of a vector."""
        return self.head[-1].outputs if self.head else self.width

    @property
    def segments(self) -> int:
        return self.stack.segments if isinstance(self.stack, BertStack) else 0

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        try:
            head = tuple(Projection(**each) for each in fields["head"])
            return cls(**{**fields, "stack": _stack(fields["stack"]), "head": head})
        except (TypeError, KeyError) as error:
            raise KvcastError(f"not the dimensions of {cls.name}: {error}") from None


class CrossEncoderDimensions(TextEncoderDimensions):
    """Of a text encoder that reads two texts at once, and whose head gives one score."""

    name: ClassVar[str] = "a cross-encoder"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outputs != 1 or not self.head:
            raise KvcastError(f"a cross-encoder gives one score, and not {self.outputs}")


def _stack(fields: Mapping[str, Any]) -> BertStack | GemmaStack:
    if "windows" not in fields:
        return BertStack(**fields)
    given = {name: fields.get(name) for name in ("rotary", "window_rotary")}
    angles = {name: None if part is None else Rotary(**part) for name, part in given.items()}
    return GemmaStack(**{**fields, "windows": tuple(fields["windows"]), **angles})


def _programs(dimensions: TextEncoderDimensions) -> Mapping[str, ProgramSignature]:
    source = Argument(name=SOURCE_NAME, shape=("batch", "source"), dtype="int64")
    segments = Argument(name=SEGMENTS, shape=source.shape, dtype="int64")
    given = source, LENGTHS_OF_SOURCES, *([segments] if dimensions.segments else [])
    programs = {"encode": ProgramSignature(arguments=given, outputs=("hidden",))}
    if dimensions.head:
        pooled = Argument(name="pooled", shape=("n", dimensions.width), dtype="float32")
        programs["head"] = ProgramSignature(arguments=(pooled,), outputs=("projected",))
    return programs


def _encode(write: ProgramWriter, dimensions: TextEncoderDimensions) -> Program:
    given = write, dimensions.vocab_size
    stack = dimensions.stack
    if isinstance(stack, BertStack):
        return write.program(hidden=_encode_bert(*given, stack))
    return write.program(hidden=_encode_gemma(*given, stack))


def _encode_bert(write: ProgramWriter, vocab_size: int, stack: BertStack) -> Node:
    width, count = stack.width, write.size(SOURCE, 1)
    x = write.embedding("embedding.weight", SOURCE, (vocab_size, width))
    positions = write.step("unsqueeze", write.step("arange", count, dtype="int64"), 0)
    rows = write.step("add", positions, stack.first_position) if stack.first_position else positions
    table = stack.first_position + stack.positions, width
    x = write.step("add", x, write.embedding("positions.weight", rows, table))
    if stack.segments:
        table = stack.segments, width
        x = write.step("add", x, write.embedding("segments.weight", Node(SEGMENTS), table))
    x = write.layer_norm(x, "embedding_norm", width, stack.norm_eps)
    options = [stack.heads, (width // stack.heads) ** -0.5, SOURCE_LENGTHS]
    if stack.buckets:
        write.tensor("bias.weight", stack.buckets, stack.heads)  # the constant comes from it
        farthest = farthest_of(stack.max_distance)
        options.append(bias_by_distance(write, _BIAS, farthest, positions, [1, count, count]))
    for i in range(stack.layers):
        x = bert_layer(
            write, x, i, stack, lambda qkv: write.step("encoder_attention", *qkv, *options)
        )
    return x


def _encode_gemma(write: ProgramWriter, vocab_size: int, stack: GemmaStack) -> Node:
    names = {rotary: _angles(i) for i, rotary in enumerate(_rotaries(stack))}
    block = StackWriter(write, stack, "encoder", names)
    x = write.embedding("encoder.embedding.weight", SOURCE, (vocab_size, stack.width))
    x = write.step("mul", x, math.sqrt(stack.width))
    for i in range(stack.layers):
        x = block.encode(x, i, SOURCE_LENGTHS)
    return write.rms_norm(x, "encoder.norm", stack.width, stack.norm_eps)


def _head(write: ProgramWriter, dimensions: TextEncoderDimensions) -> Program:
    x, width = Node("pooled"), dimensions.width
    for i, projection in enumerate(dimensions.head):
        shape = projection.outputs, width
        x, width = write.linear(x, f"head.{i}", shape, bias=projection.bias), projection.outputs
        if projection.activation != "identity":
            x = write.step(projection.activation, x)
    return write.program(projected=x)


def _rotaries(stack: GemmaStack) -> list[Rotary]:
    return list(dict.fromkeys(map(stack.rotary_of, range(stack.layers))))


def _angles(i: int) -> list[str]:
    return [f"{table}_{i}" for table in _ANGLES]


def _constants(
    dimensions: TextEncoderDimensions, tensors: Mapping[str, NDArray[np.generic]]
) -> dict[str, NDArray[np.generic]]:
    stack = dimensions.stack
    if isinstance(stack, BertStack):
        if not stack.buckets:
            return {}
        sizes = stack.buckets, stack.max_distance
        return {_BIAS: biases_by_distance(tensors["bias.weight"], *sizes, bidirectional=True)}
    tables: dict[str, NDArray[np.generic]] = {}
    for i, rotary in enumerate(_rotaries(stack)):
        each = rotary.tables(dimensions.longest, stack.head_dim)
        tables |= dict(zip(_angles(i), each, strict=True))
    return tables


def _probe(dimensions: TextEncoderDimensions) -> Probe:
    longest = min(PROBED, dimensions.longest)
    lengths_b = np.array([longest, max(1, longest // 2)], np.int32)
    source_bt = np.random.default_rng(0).integers(0, dimensions.vocab_size, (2, longest))
    segments = (np.zeros_like(source_bt),) if dimensions.segments else ()
    return Probe(prompts=[], source=(source_bt, lengths_b, *segments))


def _family(
    name: str, title: str, task: Task, dimensions: type[TextEncoderDimensions], model_class: str
) -> Family:
    return Family(
        name=name,
        title=title,
        task=task,
        interface="encoder",
        dimensions=dimensions,
        positions=lambda dimensions: dimensions.longest,
        caches=lambda _: (),
        programs=_programs,
        writers={"encode": _encode, "head": _head},
        constants=_constants,
        precision=PrecisionRoles(fused=False),
        probe=_probe,
        model_class=model_class,
        tokenizer="kvcast.tokenizers.encoder:open_encoder_tokenizer",
        usual_prompt=lambda dimensions: min(128, dimensions.longest),
        rotary=lambda dimensions: isinstance(dimensions.stack, GemmaStack),
    )


TEXT_ENCODER = _family(
    "text_encoder",
    "Text encoder",
    "embed",
    TextEncoderDimensions,
    "kvcast.text.encoders:EmbeddingModel",
)
CROSS_ENCODER = _family(
    "cross_encoder",
    "Cross-encoder",
    "rerank",
    CrossEncoderDimensions,
    "kvcast.text.encoders:RerankingModel",
)
