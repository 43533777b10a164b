"""T5Gemma, an encoder and a decoder of Gemma 2's blocks, and T5Gemma 2, of Gemma 3's, as data.

A layer of T5Gemma's decoder attends to the target and then to the source. A layer of T5Gemma 2's
attends to both in one softmax: the source's keys and values use the target's matrices and norm, and
are not rotated.

Canonical tensors are [out, in], as in torch's Linear. Query, key and value of self-attention are
one tensor in this order; key and value of cross-attention are one, and so are gate and up. Norms
multiply by their weight, without adding 1. Rotary pairs are in halves of a head.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.families.base import Family, PrecisionRoles
from kvcast.families.blocks import (
    TOKENS,
    attend,
    cache_of,
    cap_logits,
    join_rows,
    project_cross_caches,
    select_asked,
    split_heads,
    split_rows,
)
from kvcast.families.gemma_stack import GemmaStack, StackWriter
from kvcast.families.programs import self_and_cross_caches
from kvcast.families.stacks import (
    PROBED,
    SOURCE,
    SOURCE_LENGTHS,
    source_probe,
    source_programs,
)
from kvcast.spec.position_encodings import Rotary
from kvcast.spec.program import Node, Program, ProgramWriter
from kvcast.spec.sizes import require_positive, require_token

_STACKS = ("encoder", "decoder")
_ANGLES = ("cosines", "sines")


@dataclass(frozen=True, kw_only=True)
class T5GemmaDimensions:
    architecture: str  # the checkpoint's name for it, for people only
    vocab_size: int
    source_vocab_size: int
    encoder: GemmaStack
    decoder: GemmaStack
    start_token: int
    logit_softcap: float = 0.0  # c in c tanh(x / c), on the model's logits; 0: none
    tied: bool = True
    merged: bool = False  # a decoder layer attends to target and source at once (T5Gemma 2)
    one_embedding: bool = False
    eoi_token: int | None = None  # end of image, with an own, unscaled embedding; None: none

    def __post_init__(self) -> None:
        require_positive(vocab_size=self.vocab_size, source_vocab_size=self.source_vocab_size)
        require_token("start_token", self.start_token, self.vocab_size)
        widths = self.encoder.width, self.decoder.width
        if (self.merged or self.one_embedding) and len(set(widths)) > 1:
            raise KvcastError("encoder and decoder share matrices, but have other widths")
        if self.one_embedding and self.vocab_size != self.source_vocab_size:
            raise KvcastError("encoder and decoder share tokens, but have other numbers of them")
        if self.decoder.query_key_norm and not self.merged:
            raise KvcastError("keys of a source that is attended to apart have no norm")
        if self.eoi_token is not None and (type(self.eoi_token) is not int or self.eoi_token < 0):
            raise KvcastError(f"eoi_token {self.eoi_token!r} is not a token")

    @property
    def encoder_layers(self) -> int:
        return self.encoder.layers

    @property
    def decoder_layers(self) -> int:
        return self.decoder.layers

    @property
    def decoder_heads(self) -> int:
        return self.decoder.kv_heads

    @property
    def head_dim(self) -> int:
        return self.decoder.head_dim

    @property
    def source_positions(self) -> int:
        return self.encoder.positions

    @property
    def target_positions(self) -> int:
        return self.decoder.positions

    @property
    def stacks(self) -> Mapping[str, GemmaStack]:
        """By the names that their tensors begin with."""
        return {"encoder": self.encoder, "decoder": self.decoder}

    @property
    def tables(self) -> Mapping[str, int]:
        """Rows of each embedding, by the stack that its names begin with."""
        own = {} if self.one_embedding else {"encoder": self.source_vocab_size}
        return {**own, "decoder": self.vocab_size}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        try:
            return cls(**{**fields, **{name: _stack(fields[name]) for name in _STACKS}})
        except (TypeError, KeyError) as error:
            raise KvcastError(f"not the dimensions of a T5Gemma: {error}") from None


def _stack(fields: Mapping[str, Any]) -> GemmaStack:
    given = {name: fields.get(name) for name in ("rotary", "window_rotary")}
    angles = {name: None if part is None else Rotary(**part) for name, part in given.items()}
    return GemmaStack(**{**fields, "windows": tuple(fields["windows"]), **angles})


def _encode(write: ProgramWriter, dimensions: T5GemmaDimensions) -> Program:
    stack = dimensions.encoder
    block = _writer(write, dimensions, "encoder")
    x = _embed(write, dimensions, "encoder", SOURCE)
    for i in range(stack.layers):
        x = block.encode(x, i, SOURCE_LENGTHS)
    encoded = write.rms_norm(x, "encoder.norm", stack.width, stack.norm_eps)
    decoder, layers = dimensions.decoder, range(dimensions.decoder.layers)
    if not dimensions.merged:
        sizes = len(layers), (2 * decoder.keys, stack.width), decoder.kv_heads
        bias = decoder.attention_bias
        return write.program(**project_cross_caches(write, encoded, *sizes, bias=bias))
    target = _writer(write, dimensions, "decoder")
    pairs = (target.key_value(encoded, f"decoder.layers.{i}.attention") for i in layers)
    return write.program(**split_heads(write, pairs, decoder.kv_heads))


def _decode(write: ProgramWriter, dimensions: T5GemmaDimensions) -> Program:
    block = _writer(write, dimensions, "decoder")
    attends = _attends_to_both if dimensions.merged else _attends_to_each
    x = _embed(write, dimensions, "decoder", TOKENS)
    for i in range(block.stack.layers):
        x = block.feed_forward(attends(block, x, i), i)
    x, width = join_rows(write, select_asked(write, x)), block.stack.width
    normed = write.rms_norm(x, "decoder.norm", width, block.stack.norm_eps)
    head, shape = "decoder.embedding" if dimensions.tied else "head", (dimensions.vocab_size, width)
    logits = write.linear(normed, head, shape)
    logits = cap_logits(write, logits, dimensions.logit_softcap)
    return write.program(logits=split_rows(write, logits))


def _attends_to_each(block: StackWriter, x: Node, i: int) -> Node:
    stack, name = block.stack, f"decoder.layers.{i}.self_attention"
    qkv = block.qkv(block.before(x, name), name)
    mixed = attend(block.write, i, qkv, stack.attention_scale, **_own_cache(block, i))
    x = block.add(x, mixed, name)
    name = f"decoder.layers.{i}.cross_attention"
    query = block.query(block.before(x, name), name)
    cross = (*cache_of("cross", i), stack.attention_scale, SOURCE_LENGTHS)
    softcap = stack.attention_softcap
    mixed = block.write.step("cross_attention", query, *cross, softcap=softcap)
    return block.add(x, mixed, name)


def _attends_to_both(block: StackWriter, x: Node, i: int) -> Node:
    name = f"decoder.layers.{i}.attention"
    normed, scale = block.before(x, name), block.stack.attention_scale
    key, value = cache_of("cross", i)
    cross = {"cross_key": key, "cross_value": value, "cross_lengths": SOURCE_LENGTHS}
    qkv = (block.query(normed, name), *block.key_value(normed, name))
    mixed = attend(block.write, i, qkv, scale, **_own_cache(block, i), **cross)
    return block.add(x, mixed, name)


def _own_cache(block: StackWriter, i: int) -> dict[str, Any]:
    window, softcap = block.stack.windows[i] or 0, block.stack.attention_softcap
    return {"window": window, "softcap": softcap, **block.angles(i)}


def _embed(write: ProgramWriter, dimensions: T5GemmaDimensions, name: str, tokens: Node) -> Node:
    owner = name if name in dimensions.tables else "decoder"
    width = dimensions.stacks[name].width
    x = write.embedding(f"{owner}.embedding.weight", tokens, (dimensions.tables[owner], width))
    x = write.step("mul", x, math.sqrt(width))
    if dimensions.eoi_token is None:
        return x
    is_end = write.step("unsqueeze", write.step("eq", tokens, dimensions.eoi_token), -1)
    return write.step("where", is_end, write.tensor(f"{owner}.eoi_embedding", width), x)


def _writer(write: ProgramWriter, dimensions: T5GemmaDimensions, name: str) -> StackWriter:
    stack, kinds = dimensions.stacks[name], _kinds_of_angles(dimensions)
    names = {
        rotary: [f"{table}_{i}" for table in _ANGLES]
        for i, (rotary, *sizes) in enumerate(kinds)
        if sizes == [stack.positions, stack.head_dim]
    }
    return StackWriter(write, stack, name, names)


def _kinds_of_angles(dimensions: T5GemmaDimensions) -> Sequence[tuple[Rotary, int, int]]:
    """Angles of layers with their positions and head sizes, each once."""
    kinds = [
        (stack.rotary_of(i), stack.positions, stack.head_dim)
        for stack in dimensions.stacks.values()
        for i in range(stack.layers)
    ]
    return list(dict.fromkeys(kinds))


def _constants(
    dimensions: T5GemmaDimensions,
    tensors: Mapping[str, NDArray[np.generic]],  # noqa: ARG001
) -> dict[str, NDArray[np.generic]]:
    tables: dict[str, NDArray[np.generic]] = {}
    for i, (rotary, positions, head_dim) in enumerate(_kinds_of_angles(dimensions)):
        names = [f"{table}_{i}" for table in _ANGLES]
        tables |= dict(zip(names, rotary.tables(positions, head_dim), strict=True))
    return tables


T5GEMMA = Family(
    name="t5gemma",
    title="T5Gemma",
    task="generate",
    interface="encoder-decoder",
    dimensions=T5GemmaDimensions,
    positions=lambda dimensions: dimensions.target_positions,
    caches=self_and_cross_caches,
    programs=lambda dimensions: source_programs(self_and_cross_caches(dimensions)),
    writers={"encode": _encode, "decode": _decode},
    constants=_constants,
    precision=PrecisionRoles(outliers=("gate",), fused=False),
    probe=lambda dimensions: source_probe(
        dimensions, dimensions.source_vocab_size, min(PROBED, dimensions.source_positions)
    ),
    model_class="kvcast.text.text2text:T5GemmaModel",
    usual_prompt=lambda _: 1,
    rotary=lambda _: True,
    facts=lambda dimensions: {"start_tokens": [dimensions.start_token]},
)
