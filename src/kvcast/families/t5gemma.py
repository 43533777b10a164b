"""T5Gemma, an encoder and a decoder of Gemma 2's blocks, as data.

Canonical tensors are [out, in], as in torch's Linear. Query, key and value of self-attention are
one tensor in this order, and so are key and value of cross-attention, and gate and up. Norms
multiply by their weight as it is. Rotary pairs are in halves of a head. Knows no file format,
weights, text or runtimes.
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
    attended,
    cache_of,
    chosen,
    cross_caches,
    flat,
    in_rows,
    written,
)
from kvcast.families.caches import self_and_cross_caches
from kvcast.families.sources import (
    PROBED,
    SOURCE,
    SOURCE_LENGTHS,
    source_probe,
    source_programs,
)
from kvcast.spec.program import Constant, Node, Program
from kvcast.spec.rotary import Rotary
from kvcast.spec.sizes import MOST_POSITIONS, require_layers, require_one_of, require_positive
from kvcast.spec.writer import ProgramWriter

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
_SIZES = ("width", "inner", "heads", "kv_heads", "head_dim", "positions")


@dataclass(frozen=True, kw_only=True)
class GemmaStack:
    """The encoder or the decoder.

    Attributes:
        width: size of a hidden state.
        inner: inner width of the feed-forward.
        heads: number of heads of queries.
        kv_heads: number of heads of keys and values; `heads` is a multiple.
        head_dim: size of a head, even.
        windows: of each layer how many positions a query of the decoder sees, its own included, or
            how far one of the encoder sees on both sides; None: all.
        positions: length of the longest sequence.
        rotary: angles of all layers.
        norm_eps: of every norm.
        activation: of the gate, one of ACTIVATIONS.
        attention_scale: factor on the products of queries and keys.
        attention_softcap: c in c tanh(x / c), on attention's logits; 0: none.
        attention_bias: whether attention's projections have biases.

    """

    width: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    positions: int
    rotary: Rotary
    norm_eps: float
    activation: str
    attention_scale: float
    attention_softcap: float = 0.0
    attention_bias: bool = False

    def __post_init__(self) -> None:
        require_positive(**{name: getattr(self, name) for name in _SIZES})
        require_layers(len(self.windows))
        if not self.windows or not all(map(_is_window, self.windows)):
            raise KvcastError("windows must have one or more layers, each None or 1 or more")
        if self.heads % self.kv_heads:
            raise KvcastError(f"{self.heads} heads are not a multiple of {self.kv_heads} kv_heads")
        if self.head_dim % 2:
            raise KvcastError(f"head_dim must be even, not {self.head_dim}")
        if self.positions > MOST_POSITIONS:
            raise KvcastError(f"{self.positions} positions are more than any model has")
        self.rotary.check(self.head_dim)
        require_one_of("activation", self.activation, ACTIVATIONS)
        for name in ("norm_eps", "attention_scale"):
            if not 0 < getattr(self, name) < math.inf:
                raise KvcastError(f"{name} must be a finite number above 0")

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.windows)

    @property
    def mixed(self) -> int:
        """Size of all heads together."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Size of a position's keys."""
        return self.kv_heads * self.head_dim


def _is_window(window: object) -> bool:
    return window is None or (type(window) is int and 1 <= window <= MOST_POSITIONS)


@dataclass(frozen=True, kw_only=True)
class T5GemmaDimensions:
    """Everything that determines a T5Gemma's tensor shapes and computation.

    Attributes:
        architecture: the checkpoint's name for it, for people only.
        vocab_size: rows of the decoder's embedding.
        source_vocab_size: rows of the encoder's.
        encoder: sizes of the encoder.
        decoder: sizes of the decoder.
        logit_softcap: c in c tanh(x / c), on the model's logits; 0: none.
        tied: whether the head is the decoder's embedding.
        start_token: the first token of a target.

    """

    architecture: str
    vocab_size: int
    source_vocab_size: int
    encoder: GemmaStack
    decoder: GemmaStack
    start_token: int
    logit_softcap: float = 0.0
    tied: bool = True

    def __post_init__(self) -> None:
        require_positive(vocab_size=self.vocab_size, source_vocab_size=self.source_vocab_size)
        if type(self.start_token) is not int or not 0 <= self.start_token < self.vocab_size:
            raise KvcastError(
                f"start_token {self.start_token} is not one of {self.vocab_size} tokens"
            )

    @property
    def encoder_layers(self) -> int:
        """Number of layers of the encoder."""
        return self.encoder.layers

    @property
    def decoder_layers(self) -> int:
        """Number of layers of the decoder."""
        return self.decoder.layers

    @property
    def decoder_heads(self) -> int:
        """Number of heads in the decoder's caches."""
        return self.decoder.kv_heads

    @property
    def head_dim(self) -> int:
        """Size of a head in the decoder's caches."""
        return self.decoder.head_dim

    @property
    def source_positions(self) -> int:
        """Length of the longest source."""
        return self.encoder.positions

    @property
    def target_positions(self) -> int:
        """Length of the longest target, including the start token."""
        return self.decoder.positions

    @property
    def stacks(self) -> Mapping[str, GemmaStack]:
        """Both stacks, by the names that their tensors begin with."""
        return {"encoder": self.encoder, "decoder": self.decoder}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuild from `asdict`'s output; raises KvcastError for missing or unknown fields."""
        try:
            return cls(**{**fields, **{name: _stack(fields[name]) for name in _STACKS}})
        except (TypeError, KeyError) as error:
            raise KvcastError(f"not the dimensions of a T5Gemma: {error}") from None


_STACKS = ("encoder", "decoder")


def _stack(fields: Mapping[str, Any]) -> GemmaStack:
    rotary = Rotary(**fields["rotary"])
    return GemmaStack(**{**fields, "windows": tuple(fields["windows"]), "rotary": rotary})


def tensor_shapes(dimensions: T5GemmaDimensions) -> dict[str, tuple[int, ...]]:
    """Return every canonical name with its shape."""
    shapes: dict[str, tuple[int, ...]] = {}
    if not dimensions.tied:
        shapes["head.weight"] = (dimensions.vocab_size, dimensions.decoder.width)
    tokens = {"encoder": dimensions.source_vocab_size, "decoder": dimensions.vocab_size}
    for name, stack in dimensions.stacks.items():
        shapes |= {
            f"{name}.embedding.weight": (tokens[name], stack.width),
            f"{name}.norm.weight": (stack.width,),
        }
        layer = _layer_shapes(stack)
        if name == "decoder":
            layer |= _cross_shapes(stack, dimensions.encoder.width)
        for i in range(stack.layers):
            shapes |= {f"{name}.layers.{i}.{tensor}": shape for tensor, shape in layer.items()}
    return shapes


def _layer_shapes(stack: GemmaStack) -> dict[str, tuple[int, ...]]:
    matrices = {
        "self_attention.qkv": (stack.mixed + 2 * stack.keys, stack.width),
        "self_attention.out": (stack.width, stack.mixed),
    }
    return {
        **_norms(stack, "self_attention"),
        **_matrices(stack, matrices),
        **_norms(stack, "feed_forward"),
        "feed_forward.gate_up.weight": (2 * stack.inner, stack.width),
        "feed_forward.down.weight": (stack.width, stack.inner),
    }


def _cross_shapes(stack: GemmaStack, encoded: int) -> dict[str, tuple[int, ...]]:
    matrices = {
        "cross_attention.query": (stack.mixed, stack.width),
        "cross_attention.key_value": (2 * stack.keys, encoded),
        "cross_attention.out": (stack.width, stack.mixed),
    }
    return _norms(stack, "cross_attention") | _matrices(stack, matrices)


def _norms(stack: GemmaStack, block: str) -> dict[str, tuple[int, ...]]:
    return {f"{block}_{norm}.weight": (stack.width,) for norm in ("norm", "post_norm")}


def _matrices(
    stack: GemmaStack, matrices: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    weights = {f"{name}.weight": shape for name, shape in matrices.items()}
    if not stack.attention_bias:
        return weights
    return weights | {f"{name}.bias": shape[:1] for name, shape in matrices.items()}


def _written(dimensions: T5GemmaDimensions) -> Mapping[str, Program]:
    return written(source_programs(dimensions), dimensions, encode=_encode, decode=_decode)


def _encode(write: ProgramWriter, dimensions: T5GemmaDimensions) -> Program:
    """Write `encode`: source tokens [batch, t] to the decoder's cross keys and values."""
    stack = dimensions.encoder
    block = _Block(write, stack, "encoder")
    x = block.embedded(SOURCE)
    for i, window in enumerate(stack.windows):
        name = f"encoder.layers.{i}.self_attention"
        mixed = write.step(
            "source_attention",
            *block.qkv(block.before(x, name), name),
            stack.heads,
            stack.attention_scale,
            SOURCE_LENGTHS,
            *block.angles,
            reach=window or 0,
            softcap=stack.attention_softcap,
        )
        x = block.fed(block.added(x, mixed, name), i)
    encoded = write.rms_norm(x, "encoder.norm", stack.norm_eps)
    decoder = dimensions.decoder
    caches = decoder.layers, decoder.kv_heads
    return write.program(**cross_caches(write, encoded, *caches, bias=decoder.attention_bias))


def _decode(write: ProgramWriter, dimensions: T5GemmaDimensions) -> Program:
    """Write `decode`: new target tokens to logits."""
    stack = dimensions.decoder
    block = _Block(write, stack, "decoder")
    cosines, sines = block.angles
    x = block.embedded(TOKENS)
    for i, window in enumerate(stack.windows):
        name = f"decoder.layers.{i}.self_attention"
        qkv = block.qkv(block.before(x, name), name)
        options = {"window": window or 0, "softcap": stack.attention_softcap}
        angles = {"cosines": cosines, "sines": sines}
        x = block.added(
            x, attended(write, i, qkv, stack.attention_scale, **options, **angles), name
        )
        name = f"decoder.layers.{i}.cross_attention"
        before = block.before(x, name)
        query = write.linear(before, f"{name}.query", bias=stack.attention_bias)
        cross = (*cache_of("cross", i), stack.attention_scale, SOURCE_LENGTHS)
        softcap = stack.attention_softcap
        x = block.added(x, write.step("cross_attention", query, *cross, softcap=softcap), name)
        x = block.fed(x, i)
    normed = write.rms_norm(flat(write, chosen(write, x)), "decoder.norm", stack.norm_eps)
    logits = write.linear(normed, "decoder.embedding" if dimensions.tied else "head")
    if softcap := dimensions.logit_softcap:
        capped = write.step("tanh", write.step("div", logits, softcap))
        logits = write.step("mul", capped, softcap)
    return write.program(logits=in_rows(write, logits))


@dataclass(frozen=True)
class _Block:
    """Writes the parts that layers of both stacks have."""

    write: ProgramWriter
    stack: GemmaStack
    name: str

    @property
    def angles(self) -> Sequence[Constant]:
        """Tables of cosines and sines."""
        return [Constant(f"{self.name}.{table}") for table in ("cosines", "sines")]

    def embedded(self, tokens: Node) -> Node:
        """Embed tokens."""
        x = self.write.embedding(f"{self.name}.embedding.weight", tokens)
        return self.write.step("mul", x, math.sqrt(self.stack.width))

    def before(self, x: Node, name: str) -> Node:
        """Return the input of a part of a layer."""
        return self.write.rms_norm(x, f"{name}_norm", self.stack.norm_eps)

    def qkv(self, normed: Node, name: str) -> Sequence[Node]:
        """Return queries, keys and values of self-attention."""
        stack = self.stack
        projected = self.write.linear(normed, f"{name}.qkv", bias=stack.attention_bias)
        return self.write.split(projected, [stack.mixed, stack.keys, stack.keys])

    def added(self, x: Node, mixed: Node, name: str) -> Node:
        """Add attention's projected result, normed, to its input."""
        bias = self.stack.attention_bias
        return self._normed_sum(x, self.write.linear(mixed, f"{name}.out", bias=bias), name)

    def fed(self, x: Node, layer: int) -> Node:
        """Add a layer's feed-forward."""
        name = f"{self.name}.layers.{layer}.feed_forward"
        activation = self.stack.activation
        inner = self.write.linear(self.before(x, name), f"{name}.gate_up", gate=activation)
        return self._normed_sum(x, self.write.linear(inner, f"{name}.down"), name)

    def _normed_sum(self, x: Node, product: Node, name: str) -> Node:
        normed = self.write.rms_norm(product, f"{name}_post_norm", self.stack.norm_eps)
        return self.write.step("add", x, normed)


def _constants(
    dimensions: T5GemmaDimensions,
    tensors: Mapping[str, NDArray[np.generic]],  # noqa: ARG001
) -> dict[str, NDArray[np.generic]]:
    """Return the tables of angles of both stacks."""
    tables: dict[str, NDArray[np.generic]] = {}
    for name, stack in dimensions.stacks.items():
        cosines, sines = stack.rotary.tables(stack.positions, stack.head_dim)
        tables |= {f"{name}.cosines": cosines, f"{name}.sines": sines}
    return tables


T5GEMMA = Family(
    name="t5gemma",
    title="T5Gemma",
    task="generate",
    interface="encoder-decoder",
    dimensions=T5GemmaDimensions,
    positions=lambda dimensions: dimensions.target_positions,
    caches=self_and_cross_caches,
    programs=source_programs,
    written=_written,
    constants=_constants,
    tensor_shapes=tensor_shapes,
    precision=PrecisionRoles(outliers=("gate",), fused=False),
    probe=lambda dimensions: source_probe(
        dimensions, dimensions.source_vocab_size, min(PROBED, dimensions.source_positions)
    ),
    model_class="kvcast.text.t5gemma:T5GemmaModel",
    work_class="kvcast.inspect.work.t5gemma:T5GemmaWork",
    rotary=lambda _: True,
    facts=lambda dimensions: {"start_tokens": [dimensions.start_token]},
)
