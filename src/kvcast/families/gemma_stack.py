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


@dataclass(frozen=True, kw_only=True)
class GemmaStack:
    width: int
    inner: int
    heads: int
    kv_heads: int  # number of heads of keys and values; `heads` is a multiple
    head_dim: int
    # each layer's window, the query's position included: in the decoder the last positions, in the
    # encoder half of the others before it and half, rounded up, after it; None: all
    windows: tuple[int | None, ...]
    positions: int
    rotary: Rotary
    norm_eps: float
    activation: str
    attention_scale: float  # factor on scores
    window_rotary: Rotary | None = None  # angles of layers with windows; None: as in other layers
    attention_softcap: float = 0.0  # c in c tanh(x / c), on attention's logits; 0: none
    attention_bias: bool = False
    query_key_norm: bool = False  # norm of each head of queries and keys before rotation (Gemma 3)

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


@dataclass(frozen=True)
class StackWriter:
    write: ProgramWriter
    stack: GemmaStack
    name: str  # prefix of its tensors' names
    tables: Mapping[Rotary, Sequence[str]]  # names of cosines and sines, by kind of angles

    def angles(self, layer: int) -> dict[str, Constant]:
        tables = map(Constant, self.tables[self.stack.rotary_of(layer)])
        return dict(zip(("cosines", "sines"), tables, strict=True))

    def encode(self, x: Node, layer: int, lengths: Node) -> Node:
        """Write a layer whose positions, `lengths` of each input, see each other both ways."""
        stack, name = self.stack, f"{self.name}.layers.{layer}.self_attention"
        mixed = self.write.step(
            "source_attention",
            *self.qkv(self.before(x, name), name),
            stack.heads,
            stack.attention_scale,
            lengths,
            *self.angles(layer).values(),
            window=stack.windows[layer] or 0,
            softcap=stack.attention_softcap,
        )
        return self.feed_forward(self.add(x, mixed, name), layer)

    def before(self, x: Node, name: str) -> Node:
        """Return the input of a part of a layer."""
        return self.write.rms_norm(x, f"{name}_norm", self.stack.width, self.stack.norm_eps)

    def qkv(self, normed: Node, name: str) -> Sequence[Node]:
        sizes = [self.stack.mixed, self.stack.keys, self.stack.keys]
        projected = self.project(normed, f"{name}.qkv", (sum(sizes), self.stack.width))
        query, key, value = self.write.split(projected, sizes)
        return self._norm(query, f"{name}.query"), self._norm(key, f"{name}.key"), value

    def query(self, normed: Node, name: str) -> Node:
        shape = self.stack.mixed, self.stack.width
        return self._norm(self.project(normed, f"{name}.query", shape), f"{name}.query")

    def key_value(self, normed: Node, name: str) -> Sequence[Node]:
        shape = 2 * self.stack.keys, self.stack.width
        key, value = self.write.chunk(self.project(normed, f"{name}.key_value", shape), 2)
        return self._norm(key, f"{name}.key"), value

    def project(self, x: Node, name: str, shape: tuple[int, int]) -> Node:
        return self.write.linear(x, name, shape, bias=self.stack.attention_bias)

    def _norm(self, x: Node, name: str) -> Node:
        if not self.stack.query_key_norm:
            return x
        size = self.stack.head_dim
        heads = self.write.step("unflatten", x, -1, [-1, size])
        normed = self.write.rms_norm(heads, f"{name}_norm", size, self.stack.norm_eps)
        return self.write.step("flatten", normed, -2)

    def add(self, x: Node, mixed: Node, name: str) -> Node:
        shape = self.stack.width, self.stack.mixed
        return self._norm_sum(x, self.project(mixed, f"{name}.out", shape), name)

    def feed_forward(self, x: Node, layer: int) -> Node:
        name = f"{self.name}.layers.{layer}.feed_forward"
        write, width, inner = self.write, self.stack.width, self.stack.inner
        before, gate_up = self.before(x, name), f"{name}.gate_up"
        gated = write.linear(before, gate_up, (2 * inner, width), gate=self.stack.activation)
        return self._norm_sum(x, write.linear(gated, f"{name}.down", (width, inner)), name)

    def _norm_sum(self, x: Node, product: Node, name: str) -> Node:
        width, epsilon = self.stack.width, self.stack.norm_eps
        normed = self.write.rms_norm(product, f"{name}_post_norm", width, epsilon)
        return self.write.step("add", x, normed)
