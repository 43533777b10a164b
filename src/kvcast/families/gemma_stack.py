"""A stack of Gemma's blocks, an encoder or a decoder, as data, and the writer of its layers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvcast.errors import KvcastError
from kvcast.spec.position_encodings import Rotary
from kvcast.spec.program import Constant, Node, ProgramWriter
from kvcast.spec.sizes import (
    ACTIVATIONS,
    MOST_POSITIONS,
    require_layers,
    require_one_of,
    require_positions,
    require_positive,
)

_SIZES = ("width", "inner", "heads", "kv_heads", "head_dim", "positions")

Shapes = dict[str, tuple[int, ...]]
"""Shapes of tensors by their names."""


@dataclass(frozen=True, kw_only=True)
class GemmaStack:
    """The encoder or the decoder.

    Attributes:
        kv_heads: number of heads of keys and values; `heads` is a multiple.
        windows: each layer's window, the query's position included: in the decoder the last
            positions, in the encoder half of the others before it and half, rounded up, after it;
            None: all.
        window_rotary: angles of layers with windows; None: as in other layers.
        attention_scale: factor on scores.
        attention_softcap: c in c tanh(x / c), on attention's logits; 0: none.
        query_key_norm: norm of each head of queries and keys before rotation (Gemma 3).

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
    window_rotary: Rotary | None = None
    attention_softcap: float = 0.0
    attention_bias: bool = False
    query_key_norm: bool = False

    def __post_init__(self) -> None:
        require_positive(**{name: getattr(self, name) for name in _SIZES})
        require_layers(len(self.windows))
        if not self.windows or not all(map(_is_window, self.windows)):
            raise KvcastError("windows must have one or more layers, each None or 1 or more")
        if self.heads % self.kv_heads:
            raise KvcastError(f"{self.heads} heads are not a multiple of {self.kv_heads} kv_heads")
        if self.head_dim % 2:
            raise KvcastError(f"head_dim must be even, not {self.head_dim}")
        require_positions(positions=self.positions)
        for layer in range(self.layers):
            self.rotary_of(layer).check(self.head_dim)
        require_one_of("activation", self.activation, ACTIVATIONS)
        for name in ("norm_eps", "attention_scale"):
            if not 0 < getattr(self, name) < math.inf:
                raise KvcastError(f"{name} must be a finite number above 0")

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def mixed(self) -> int:
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        return self.kv_heads * self.head_dim

    def rotary_of(self, layer: int) -> Rotary:
        return self.rotary if self.windows[layer] is None else self.window_rotary or self.rotary


def _is_window(window: object) -> bool:
    return window is None or (type(window) is int and 1 <= window <= 2 * MOST_POSITIONS)


def attention_shapes(
    stack: GemmaStack, block: str, matrices: Mapping[str, tuple[int, ...]]
) -> Shapes:
    """Return the tensors of a layer's attention, and of the norms around it, by their names.

    `matrices` are of its projections, [out, in], by their names in `block`.
    """
    shapes = _norm_shapes(stack, block)
    for name, shape in matrices.items():
        shapes[f"{block}.{name}.weight"] = shape
        if stack.attention_bias:
            shapes[f"{block}.{name}.bias"] = shape[:1]
    if stack.query_key_norm:
        shapes |= {f"{block}.{name}_norm.weight": (stack.head_dim,) for name in ("query", "key")}
    return shapes


def feed_forward_shapes(stack: GemmaStack) -> Shapes:
    """Return the tensors of a layer's feed-forward, by their names."""
    return {
        **_norm_shapes(stack, "feed_forward"),
        "feed_forward.gate_up.weight": (2 * stack.inner, stack.width),
        "feed_forward.down.weight": (stack.width, stack.inner),
    }


def _norm_shapes(stack: GemmaStack, block: str) -> Shapes:
    """Return the norms before and after a part of a layer, by their names."""
    return {f"{block}_{norm}.weight": (stack.width,) for norm in ("norm", "post_norm")}


@dataclass(frozen=True)
class StackWriter:
    """Writes the parts that layers of a stack have.

    Attributes:
        name: prefix of its tensors' names.
        tables: of each kind of angles, the names of its cosines and sines.

    """

    write: ProgramWriter
    stack: GemmaStack
    name: str
    tables: Mapping[Rotary, Sequence[str]]

    def angles(self, layer: int) -> dict[str, Constant]:
        """Return a layer's tables of cosines and sines, by the names of attention's arguments."""
        tables = map(Constant, self.tables[self.stack.rotary_of(layer)])
        return dict(zip(("cosines", "sines"), tables, strict=True))

    def before(self, x: Node, name: str) -> Node:
        """Return the input of a part of a layer."""
        return self.write.rms_norm(x, f"{name}_norm", self.stack.norm_eps)

    def qkv(self, normed: Node, name: str) -> Sequence[Node]:
        stack = self.stack
        projected = self.project(normed, f"{name}.qkv")
        query, key, value = self.write.split(projected, [stack.mixed, stack.keys, stack.keys])
        return self._normed(query, f"{name}.query"), self._normed(key, f"{name}.key"), value

    def query(self, normed: Node, name: str) -> Node:
        return self._normed(self.project(normed, f"{name}.query"), f"{name}.query")

    def key_value(self, normed: Node, name: str) -> Sequence[Node]:
        key, value = self.write.chunk(self.project(normed, f"{name}.key_value"), 2)
        return self._normed(key, f"{name}.key"), value

    def project(self, x: Node, name: str) -> Node:
        return self.write.linear(x, name, bias=self.stack.attention_bias)

    def _normed(self, x: Node, name: str) -> Node:
        """Norm each head, if the stack's queries and keys are normed."""
        if not self.stack.query_key_norm:
            return x
        heads = self.write.step("unflatten", x, -1, [-1, self.stack.head_dim])
        normed = self.write.rms_norm(heads, f"{name}_norm", self.stack.norm_eps)
        return self.write.step("flatten", normed, -2)

    def added(self, x: Node, mixed: Node, name: str) -> Node:
        return self._normed_sum(x, self.project(mixed, f"{name}.out"), name)

    def fed(self, x: Node, layer: int) -> Node:
        name = f"{self.name}.layers.{layer}.feed_forward"
        activation = self.stack.activation
        inner = self.write.linear(self.before(x, name), f"{name}.gate_up", gate=activation)
        return self._normed_sum(x, self.write.linear(inner, f"{name}.down"), name)

    def _normed_sum(self, x: Node, product: Node, name: str) -> Node:
        normed = self.write.rms_norm(product, f"{name}_post_norm", self.stack.norm_eps)
        return self.write.step("add", x, normed)
