"""UniLM generators (Dong et al. 2019, arXiv:1905.03197): RoFormer, SimBERT.

A BERT with a prefix-LM mask: source positions see the whole source, and target positions all up to
themselves. Canonical tensors are [out, in], as in torch's Linear. Query, key and value are one
tensor in this order; rotary pairs, if any, are in halves of a head. The output head is the
embedding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.families.base import PROBE_STEPS, Family, PrecisionRoles, Probe
from kvcast.families.blocks import (
    LENGTHS,
    TOKENS,
    attend,
    bert_layer,
    cache_of,
    join_rows,
    new_positions,
    select_asked,
    split_rows,
)
from kvcast.families.programs import (
    Argument,
    CacheLayers,
    KeysAndValues,
    ProgramSignature,
    decode_program,
    self_caches,
)
from kvcast.spec.position_encodings import Rotary
from kvcast.spec.program import Constant, Node, Program, ProgramWriter
from kvcast.spec.sizes import (
    require_heads,
    require_layers,
    require_one_of,
    require_positions,
    require_positive,
)

ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
_PROBED_SOURCE = 40
_ANGLES = ("cosines", "sines")
_SIZES = (
    "vocab_size",
    "segments",
    "width",
    "embedding_width",
    "inner",
    "heads",
    "layers",
    "max_positions",
)


@dataclass(frozen=True, kw_only=True)
class UnilmDimensions:
    architecture: str  # the checkpoint's name for it, for people only: "roformer", "bert", ...
    vocab_size: int
    segments: int  # number of segments, 2 or more: 0 is the source, 1 the target
    width: int
    embedding_width: int  # size of an embedding; if it is not the width, it is projected
    inner: int
    heads: int
    layers: int
    max_positions: int  # length of the longest sequence, source and target together
    rotary: Rotary | None  # of queries and keys (RoFormer); None: learned positions (BERT)
    activation: str = "gelu"  # of the feed-forward and the head, one of ACTIVATIONS
    norm_eps: float = 1e-12
    pooled: bool = False  # whether there is a pooler, a matrix over the first token's hidden state

    def __post_init__(self) -> None:
        require_positive(**{name: getattr(self, name) for name in _SIZES})
        require_layers(self.layers)
        require_one_of("activation", self.activation, ACTIVATIONS)
        require_heads(self.width, self.heads)
        if self.rotary is not None and self.head_dim % 2:
            raise KvcastError(f"rotary positions need an even head_dim, not {self.head_dim}")
        if self.segments < 2:
            raise KvcastError("a UniLM has 2 segments, source and target: this model has 1")
        require_positions(max_positions=self.max_positions)

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def windows(self) -> tuple[None, ...]:
        return (None,) * self.layers

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        try:
            rotary = fields["rotary"]
            return cls(**{**fields, "rotary": None if rotary is None else Rotary(**rotary)})
        except (TypeError, KeyError) as error:
            raise KvcastError(f"not the dimensions of a UniLM: {error}") from None


def _caches(dimensions: UnilmDimensions) -> tuple[CacheLayers, ...]:
    layer = KeysAndValues(heads=dimensions.heads, head_dim=dimensions.head_dim, window=None)
    return self_caches([layer] * dimensions.layers, dimensions.max_positions)


def _programs(dimensions: UnilmDimensions) -> Mapping[str, ProgramSignature]:
    programs = {"decode": decode_program(_caches(dimensions), ["logits", "hidden"])}
    if dimensions.pooled:
        hidden = Argument(name="hidden", shape=("n", dimensions.width), dtype="float32")
        programs["pool"] = ProgramSignature(arguments=(hidden,), outputs=("pooled",))
    return programs


def _pool(write: ProgramWriter, dimensions: UnilmDimensions) -> Program:
    square = dimensions.width, dimensions.width
    return write.program(pooled=write.linear(Node("hidden"), "pooler", square, bias=True))


def _decode(write: ProgramWriter, dimensions: UnilmDimensions) -> Program:
    """Write `decode`: an empty row's first tokens are its whole source, all later ones target."""
    positions = new_positions(write, "int32")
    empty = write.step("eq", LENGTHS, 0)
    # The cached positions of other rows all count as source: a target position sees them all.
    sources = write.step("where", empty, write.size(TOKENS, 1), LENGTHS)
    return _write_prefix(write, dimensions, positions, sources)


def _whole(dimensions: UnilmDimensions) -> Program:
    write = ProgramWriter([*_programs(dimensions)["decode"].inputs, "sources"])
    return _write_prefix(write, dimensions, new_positions(write, "int32"), Node("sources"))


def _write_prefix(
    write: ProgramWriter, dimensions: UnilmDimensions, positions: Node, sources: Node
) -> Program:
    """Write a program over new tokens at positions, of rows with sources of these lengths."""
    epsilon, width, embedded = dimensions.norm_eps, dimensions.width, dimensions.embedding_width
    vocab = dimensions.vocab_size
    sources = write.step("unsqueeze", sources, 1)
    segments = write.step("to", write.step("ge", positions, sources), "int64")
    x = write.embedding("embedding.weight", TOKENS, (vocab, embedded))
    table = dimensions.segments, embedded
    x = write.step("add", x, write.embedding("segments.weight", segments, table))
    if dimensions.rotary is None:
        ids, table = write.step("to", positions, "int64"), (dimensions.max_positions, embedded)
        x = write.step("add", x, write.embedding("positions.weight", ids, table))
    x = write.layer_norm(x, "embedding_norm", embedded, epsilon)
    if embedded != width:
        x = write.linear(x, "projection", (width, embedded), bias=True)
    bias = _bias(write, sources, positions)
    scale = dimensions.head_dim**-0.5
    options: dict[str, Any] = {"bias": bias, "causal": False}
    if dimensions.rotary is not None:
        options |= {name: Constant(name) for name in _ANGLES}
    for i in range(dimensions.layers):
        mix = partial(attend, write, i, scale=scale, **options)
        x = bert_layer(write, x, i, dimensions, mix)
    hidden = select_asked(write, x)
    shape, activation = (embedded, width), dimensions.activation
    x = write.linear(hidden, "head.transform", shape, bias=True, activation=activation)
    x = join_rows(write, write.layer_norm(x, "head.norm", embedded, epsilon))
    logits = write.linear(x, "embedding", (vocab, embedded))
    logits = write.step("add", logits, write.tensor("head.bias", vocab))
    return write.program(logits=split_rows(write, logits), hidden=hidden)


def _bias(write: ProgramWriter, sources: Node, positions: Node) -> Node:
    """Mask [rows, 1, new, capacity]: a position sees the whole source, and all up to itself."""
    seen = write.step("maximum", sources, write.step("add", positions, 1))
    slots = write.step("arange", write.size(cache_of("past", 0)[1], 2), dtype="int32")
    visible = write.step("lt", slots, write.step("unsqueeze", seen, 2))
    return write.step("unsqueeze", write.step("where", visible, 0.0, -float("inf")), 1)


def _constants(
    dimensions: UnilmDimensions,
    tensors: Mapping[str, NDArray[np.generic]],  # noqa: ARG001
) -> dict[str, NDArray[np.generic]]:
    if dimensions.rotary is None:
        return {}
    tables = dimensions.rotary.tables(dimensions.max_positions, dimensions.head_dim)
    return dict(zip(_ANGLES, tables, strict=True))


def _probe(dimensions: UnilmDimensions) -> Probe:
    most = dimensions.max_positions
    longest = max(min(_PROBED_SOURCE, most - PROBE_STEPS), min(2, most))
    generator = np.random.default_rng(0)
    sources = [
        generator.integers(0, dimensions.vocab_size, length)
        for length in (longest, max(longest // 2, 1))
    ]
    return Probe(prompts=sources)


UNILM = Family(
    name="unilm",
    title="UniLM",
    task="generate",
    interface="prefix",
    dimensions=UnilmDimensions,
    positions=lambda dimensions: dimensions.max_positions,
    caches=_caches,
    programs=_programs,
    writers={"decode": _decode, "pool": _pool},
    whole=_whole,
    constants=_constants,
    precision=PrecisionRoles(int8_self_cache=True),
    probe=_probe,
    model_class="kvcast.text.text2text:UnilmModel",
    usual_prompt=lambda dimensions: min(128, dimensions.max_positions),
    rotary=lambda dimensions: dimensions.rotary is not None,
)
