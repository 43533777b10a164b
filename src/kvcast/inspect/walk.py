"""Walks programs with sizes: what each op multiplies and reads, for `kvcast.inspect.work`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

from kvcast.families.base import Family
from kvcast.spec.program import (
    Constant,
    LatentAttention,
    Node,
    PositionSelection,
    Program,
    SelfAttention,
    SharedAttention,
    Step,
)
from kvcast.spec.shapes import Shape, resolve

NEW, ASKED = 7, 5
"""New and asked positions that `decode` is walked with, so that a product's are one or other."""

_LAYER = re.compile(r"(?:^|\.)layers\.\d+\.")
_STATE_PRODUCTS = {
    "delta_rule": (3, -3),
    "selective_scan": (2, -3),
    "gated_recurrence": (2, -2),
}
"""Products of a position with each value of a state, and the state's place among arguments."""


class ConstantShapes(dict[str, Shape]):
    """Shapes of tensors, and of a family's derived constants on access."""

    def __init__(self, family: Family, dimensions: Any, shapes: Mapping[str, Shape]) -> None:
        super().__init__(shapes)
        self._family, self._dimensions = family, dimensions

    def __missing__(self, name: str) -> Shape:
        # Zeros without memory, of any size.
        tensors = {name: np.broadcast_to(np.float32(0), shape) for name, shape in self.items()}
        constants = self._family.constants(self._dimensions, tensors)
        self.update({name: part.shape for name, part in constants.items()})
        return self[name]


@dataclass(frozen=True)
class Op:
    step: Step
    nodes: Mapping[str, Any]
    constants: Mapping[str, Shape]

    @property
    def name(self) -> str:
        return self.step.operation

    @property
    def result(self) -> Shape:
        shape: Shape = self.nodes[self.step.name]
        return shape

    @property
    def is_asked(self) -> bool:
        """Whether its first argument, [..., width], has only the asked positions of `decode`."""
        return prod(self.shape(0)[:-1]) == ASKED

    def shape(self, argument: int) -> Shape:
        shape: Shape = self.resolve(self.step.arguments[argument])
        return shape

    def resolve(self, given: Any) -> Any:  # a shape, a number or a list
        return resolve(given, self.nodes, self.constants)

    def constant(self, argument: int) -> Constant:
        constant: Constant = self.step.arguments[argument]
        return constant

    def read(self, tensors: Mapping[str, Shape]) -> dict[str, int]:
        """Weights that it reads whole, by tensor."""
        if self.name == "embedding" or (self.name == "index_select" and not self.step.arguments[1]):
            return {}
        given = (*self.step.arguments, *self.step.keywords.values())
        names = [
            name
            for part in given
            if isinstance(part, Constant)
            for name in (part.name, part.bias)
            if name is not None and name in tensors
        ]
        return {name: prod(tensors[name]) for name in names}


@dataclass
class _Product:
    """A product with a matrix, of all or the asked positions; `keys`: outputs for caches."""

    name: str
    shape: Shape
    asked: bool
    is_head: bool
    keys: int = 0


class _Mixture(NamedTuple):
    experts: int
    used: int
    size: int
    asked: bool


@dataclass(frozen=True)
class Attention:
    """A layer's attention.

    `products`: multiplications of a query's heads with a position; `cached`: values that a position
    has in its own cache; `cross`: positions of an input.
    """

    products: int
    cached: int
    asked: bool
    window: int | None = None
    causal: bool = True
    cross: int = 0

    @classmethod
    def of(cls, op: Op, call: SelfAttention[Any] | SharedAttention[Any], keys: int) -> "Attention":
        products, causal = 2 * op.shape(0)[-1], getattr(call, "causal", True)
        return cls(products, 2 * keys, op.is_asked, call.window or None, causal)

    def held(self, length: int) -> int:
        return min(length, self.window - 1 if self.window else length)

    def seen(self, length: int, new: int, asked: int) -> int:
        """Pairs of the last `asked` of `new` queries and a key that each sees."""
        if self.cross:
            return asked * self.cross
        if not self.causal and not length:  # the source of a prefix LM sees all of itself
            return new * new
        end = length + new
        return pairs(end, self.window) - pairs(end - asked, self.window)


class DecodeCounts:
    """GEMMs of all new positions, and of requested ones, in `decode`."""

    def __init__(self, program: Program, tensors: Mapping[str, Shape], embedded: int) -> None:
        self._tensors = tensors
        self._steps = {step.name: step for step in program.steps}
        self._last = program.last_product("logits")
        self._read: dict[str, int] = {}
        self._products: dict[str, _Product] = {}
        self.head: str = self._last.arguments[1].name
        self.attentions: list[Attention] = []
        self.mixtures: list[_Mixture] = []
        self.written_keys = self.cross = self.rewriting = 0
        self.embedded = embedded

    def add(self, op: Op) -> None:
        self._read |= op.read(self._tensors)
        if op.name == "linear":
            self._add_product(op)
        elif op.name == "mixture_of_experts":
            size = prod(op.shape(2)[1:]) + prod(op.shape(3)[1:])
            used = op.step.arguments[4]
            self.mixtures.append(_Mixture(op.shape(2)[0], used, size, op.is_asked))
        elif op.name == "self_attention":
            self._add_self_attention(op)
        elif op.name == "select_positions":
            selection = PositionSelection[Any](*op.step.arguments)
            heads, dim = (op.resolve(part)[-1] for part in (selection.query, selection.key))
            self.attentions.append(Attention(heads, dim, asked=op.is_asked))
            self.written_keys += dim
        elif op.name == "latent_attention":
            self._add_latent_attention(op)
        elif op.name == "shared_attention":
            call = SharedAttention[Any](*op.step.arguments)
            self.attentions.append(Attention.of(op, call, prod(op.shape(1)[1::2])))
        elif op.name == "cross_attention":
            self.cross += 2 * prod(op.shape(1))
            of = Attention(2 * op.shape(0)[-1], 0, op.is_asked, cross=op.shape(1)[2])
            self.attentions.append(of)
        elif op.name in _STATE_PRODUCTS:
            products, place = _STATE_PRODUCTS[op.name]
            self.rewriting += products * prod(op.resolve(op.step.arguments[place])[1:])

    def _add_product(self, op: Op) -> None:
        name = op.constant(1).name
        after_layers = not _LAYER.search(name) and any(
            _LAYER.search(product.name) for product in self._products.values()
        )
        is_head = op.step is self._last or (after_layers and op.is_asked)
        self._products[op.step.name] = _Product(name, op.shape(1), op.is_asked, is_head)

    def _add_self_attention(self, op: Op) -> None:
        call = SelfAttention[Any](*op.step.arguments)
        keys = prod(op.shape(3)[1::2])
        self.attentions.append(own := Attention.of(op, call, keys))
        self.written_keys += 2 * keys
        if call.crosses:
            shape = op.resolve(call.cross_key)
            self.cross += 2 * prod(shape)
            self.attentions.append(replace(own, cached=0, cross=shape[2]))
        for name, _ in {_projection(part, self._steps) for part in (call.key, call.value)}:
            self._products[name].keys += keys

    def _add_latent_attention(self, op: Op) -> None:
        """Count the absorbed form."""
        call = LatentAttention[Any](*op.step.arguments, **op.step.keywords)
        most = None if call.selected is None else op.resolve(call.selected)[-1]
        heads, rank, plain = op.resolve(call.absorb)
        line = op.resolve(call.cache)[-1]
        self.attentions.append(Attention(heads * (rank + line), line, op.is_asked, window=most))
        for stack, shape in (
            (call.key_b, (heads * rank, plain)),
            (call.value_b, op.resolve(call.value_b)),
        ):
            of = (prod(shape[:-1]), shape[-1])
            self._products[stack.name] = _Product(stack.name, of, op.is_asked, is_head=False)
        for part in filter(None, (call.latent, call.key)):
            width = op.resolve(part)[-1]
            name, _ = _projection(part, self._steps)
            self._products[name].keys += width
            self.written_keys += width

    @cached_property
    def products(self) -> Mapping[str, tuple[int, int]]:
        counts = {part: [0, 0] for part in ("keys_values", "linear", "head")}
        for product in self._products.values():
            outputs, width = product.shape
            counts["keys_values"][product.asked] += product.keys * width
            part = "head" if product.is_head else "linear"
            counts[part][product.asked] += (outputs - product.keys) * width
        return {part: (new, asked) for part, (new, asked) in counts.items()}

    @cached_property
    def weights(self) -> int:
        return sum(self._read.values())

    @cached_property
    def matrices(self) -> int:
        return sum(prod(of.shape) for of in self._products.values() if of.name != self.head)

    @cached_property
    def columns(self) -> int:
        return sum(of.shape[0] for of in self._products.values() if of.name != self.head)


def _projection(node: Node, steps: Mapping[str, Step]) -> tuple[str, str]:
    step, part = steps[node.name], ""
    while step.operation != "linear":
        part = step.name if step.operation == "getitem" else part
        step = steps[step.arguments[0].name]
    return step.name, part


def pairs(length: int, window: int | None) -> int:
    """Query-key pairs of `length` positions: the sum of min(q + 1, window) over all q."""
    ramp = min(length, window or length)
    return ramp * (ramp + 1) // 2 + (length - ramp) * ramp


def _all_pairs(op: Op) -> int:
    *rows, positions, width = op.shape(0)
    return 2 * prod(rows) * positions * op.shape(1)[-2] * width


def _within(op: Op, before: int, after: int) -> int:
    rows, positions, width = op.shape(0)
    own = pairs(positions, before + 1) + pairs(positions, after + 1) - positions
    return 2 * rows * own * width


def _source_pairs(op: Op) -> int:
    window = op.step.keywords["window"]
    return _within(op, (window - 1) // 2, window // 2) if window else _all_pairs(op)


ENCODING: Mapping[str, Callable[[Op], int]] = {
    "encoder_attention": _all_pairs,
    "source_attention": _source_pairs,
    "window_attention": lambda op: _within(op, *op.step.arguments[5:7]),
    "relative_scores": lambda op: prod(op.result) * (op.shape(0)[-1] // op.step.arguments[2]),
    "conv1d": lambda op: prod(op.result) * prod(op.shape(1)[1:]),
    "conv2d": lambda op: prod(op.result) * prod(op.shape(1)[1:]),
    "channel_convolution": lambda op: prod(op.result) * prod(op.shape(1)[:2]),
}
"""Multiplications of an encoder's other operations."""
