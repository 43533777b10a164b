"""Operations and values read by a model's calls, counted by walking its programs with sizes.

A multiplication and an addition are two operations (FLOP). Matrix products, convolutions of
encoders and attention are counted. Norms, activations, softmax, rotation and a decoder's short
convolutions are not, nor are lookups in tables, which read one row per token.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np

from kvcast.errors import UsageError
from kvcast.families.base import Family
from kvcast.families.programs import ENCODED, CacheLayers
from kvcast.families.table import family_with
from kvcast.spec.program import Constant, Node, SelfAttention, SharedAttention, Step
from kvcast.spec.shapes import Shape, resolve, shape_of

USUAL_SOURCE = 128
_NEW, _ASKED = 7, 5  # `decode` is walked with these, so that a product's positions are either
_LAYER = re.compile(r"(?:^|\.)layers\.\d+\.")
_ORDER = {"inputs": 1, "state": 2, "embeddings": 3}
"""Kinds of caches that are listed after others."""
_STATE_PRODUCTS = {"delta_rule": 3, "selective_scan": 2}
"""Products of a position with each value of a state."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Operations by purpose, and how many values are read from memory."""

    encoder: int = 0  # the encoder's products with weights
    encoder_attention: int = 0  # its attention and convolutions
    cross_keys_values: int = 0  # projecting the encoder's output to the decoder's keys and values
    keys_values: int = 0  # projecting positions to keys and values
    linear: int = 0  # all other products with weights before the logits
    attention: int = 0  # queries with keys, attention weights with values
    head: int = 0  # hidden states to logits
    weights: int = 0  # weights read, of which the next three are parts; others are biases, norms, …
    encoder_matrices: int = 0  # of the encoder and of the cross projections
    matrices: int = 0  # of the decoder
    table: int = 0  # matrix of the head
    columns: int = 0  # outputs of the decoder's matrices, if int8 has a scale for each
    held: int = 0  # self-cache values from before the call that its queries see
    written: int = 0  # self-cache values that the call adds
    cross: int = 0  # cross-cache values read

    def __add__(self, other: Self) -> Self:
        names = (field.name for field in fields(self))
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def flop(self) -> Mapping[str, int]:
        return {
            "encoder": self.encoder + self.encoder_attention,
            **{part: getattr(self, part) for part in PARTS[1:]},
        }

    @property
    def operations(self) -> int:
        return sum(self.flop.values())

    @property
    def cached(self) -> int:
        """Cached values read that were there before the call."""
        return self.held + self.cross


PARTS = ("encoder", "cross_keys_values", "keys_values", "linear", "attention", "head")


@dataclass(frozen=True, kw_only=True)
class CacheKind:
    """Cache layers of one kind, for one sequence; `numbers`: values of all of them together."""

    kind: str
    layers: int
    positions: int
    numbers: int


@dataclass(frozen=True, kw_only=True)
class ModelWork:
    """Counts the calls of a model whose encoded inputs have `source` positions, if they vary."""

    dimensions: Any
    source: int = USUAL_SOURCE

    def __post_init__(self) -> None:
        longest = next((run.capacity for run in self._caches if run.kind == "cross"), None)
        if longest is not None and self._sizes["source"] > longest:
            raise UsageError(
                f"a source of {self.source:,} tokens is too long: the model has {longest:,} "
                "positions"
            )

    @cached_property
    def family(self) -> Family:
        return family_with(self.dimensions)

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """Shapes of the weights by name."""
        return self.family.tensor_shapes(self.dimensions)

    @cached_property
    def parameters(self) -> int:
        return sum(map(prod, self.shapes.values()))

    @property
    def most_positions(self) -> int:
        return self.family.positions(self.dimensions)

    @property
    def usual_prompt(self) -> int:
        return self.family.usual_prompt(self.dimensions)

    @property
    def width(self) -> int:
        """Size of a hidden state, as the head reads it."""
        return self.shapes[self._decode.head][1]

    def encode(self, inputs: int = 1) -> Work:
        """Count what is computed once for each input, with or without a cache."""
        return self._encoded(inputs)[0]

    def project(self, inputs: int = 1) -> Work:
        """Count the cross keys and values, computed once for each input if they are cached."""
        return self._encoded(inputs)[1]

    def call(
        self, length: int, new: int, *, rows: int = 1, inputs: int = 1, asked: int = 1
    ) -> Work:
        """Count `new` tokens for each of `rows` rows over caches of `length` positions each.

        `asked` positions of each row meet the head. Weights are read once for all rows, and the
        cross cache of each of `inputs` encoded inputs once for all rows that read it.
        """
        decode, each = self._decode, rows * new
        positions = (new, asked)
        routed = [(min(of.experts, each * of.used), of) for of in decode.mixtures]
        mixed = sum(of.used * of.size * positions[of.asked] for of in decode.mixtures)
        flop = {
            part: 2 * rows * (counts[0] * new + counts[1] * asked)
            for part, counts in decode.products.items()
        }
        read = sum(2 * of.keys * of.held(length) for of in decode.attentions)
        rewritten = each if self.family.one_by_one else rows
        held = length or self.family.one_by_one
        attended = sum(
            of.width * of.seen(length, new, positions[of.asked]) for of in decode.attentions
        )
        return Work(
            keys_values=flop["keys_values"],
            linear=flop["linear"] + 2 * rows * mixed,
            attention=2 * (2 * rows * attended + each * decode.rewriting),
            head=flop["head"],
            weights=decode.weights - sum((of.experts - used) * of.size for used, of in routed),
            matrices=decode.matrices + sum(used * of.size for used, of in routed),
            table=prod(self.shapes[decode.head]),
            columns=decode.columns,
            held=rows * (read + self._convolved(length) + (self._states if held else 0)),
            written=each * (decode.written_keys + self._convolved(None)) + rewritten * self._states,
            cross=inputs * decode.cross + each * decode.embedded,
        )

    def recompute(self, prompt: int, new: int) -> Work:
        """Count the logits after a prompt and `new` tokens, with nothing but `encode` cached."""
        whole = prompt + new
        call = self.call(0, whole, asked=whole)
        parts = self.call(0, prompt, asked=prompt) + self.call(prompt, new, asked=new)
        own = replace(
            call, attention=parts.attention, head=self.call(0, whole).head, held=0, cross=0
        )
        return own + self.project()

    def cache(self, positions: int) -> tuple[CacheKind, ...]:
        """Return the size of the cache for a sequence of that many positions."""
        kinds: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        for run in self._caches:
            slots = self._sizes["source"] if run.kind in ENCODED else positions
            for part, (heads, fixed, size) in zip(run.parts, run.sizes, strict=True):
                if part == "inputs":
                    held = min(positions, (run.length or run.capacity) - 1)
                    key = "inputs", 0
                elif part == "state":
                    held, key = fixed or 1, ("state", 0)
                else:
                    held, key = min(run.capacity, slots), (run.kind, run.capacity)
                share = run.layers if part != "value" else 0
                kinds.setdefault(key, []).append((share, held, run.layers * heads * size * held))
        return tuple(
            CacheKind(
                kind=kind,
                layers=sum(layers for layers, *_ in parts),
                positions=1 if kind == "state" else max(held for _, held, _ in parts),
                numbers=sum(numbers for *_, numbers in parts),
            )
            for (kind, _), parts in sorted(
                kinds.items(), key=lambda item: _ORDER.get(item[0][0], 0)
            )
        )

    @cached_property
    def _caches(self) -> Sequence[CacheLayers]:
        return self.family.caches(self.dimensions)

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        """Sizes of arguments of the longest encoded input, or of one of `source` positions."""
        return {"source": self.source, **self.family.longest(self.dimensions, self.source)}

    def _convolved(self, length: int | None) -> int:
        """Return how many inputs convolutions read after `length` positions; None: of one."""
        runs = [(run, run.length or run.capacity) for run in self._caches if "inputs" in run.parts]
        return sum(
            run.layers
            * (run.channels or run.head_dim)
            * (1 if length is None else min(length, read - 1))
            for run, read in runs
        )

    @cached_property
    def _states(self) -> int:
        states = (run for run in self._caches if run.kind == "state")
        return sum(run.layers * run.heads * run.capacity * run.head_dim for run in states)

    @cached_property
    def _constants(self) -> Mapping[str, Shape]:
        return _ConstantShapes(self.family, self.dimensions, self.shapes)

    def _walk(self, name: str, sizes: Mapping[str, int]) -> Iterator["_Op"]:
        """Yield a program's operations with the shapes of all that they read and give."""
        signature = self.family.programs(self.dimensions)[name]
        given = [shape for argument in signature.arguments for shape in argument.shapes]
        known: dict[str, Any] = {
            name: tuple(size if isinstance(size, int) else sizes[size] for size in shape)
            for name, shape in zip(signature.inputs, given, strict=True)
        }
        for step in self._programs[name].steps:
            known[step.name] = shape_of(step, known, self._constants)
            yield _Op(step, known, self._constants)

    @cached_property
    def _programs(self) -> Mapping[str, Any]:
        return self.family.write_programs(self.dimensions)

    def _encoded(self, inputs: int) -> tuple[Work, Work]:
        """Count `encode`: what is the encoder's, and the projections to cross keys and values."""
        if "encode" not in self._programs:
            return Work(), Work()
        parts = {"encoder": 0, "encoder_attention": 0, "cross_keys_values": 0}
        matrices: tuple[dict[str, int], dict[str, int]] = {}, {}
        weights: tuple[dict[str, int], dict[str, int]] = {}, {}
        for op in self._walk("encode", {**self._sizes, "batch": inputs}):
            is_cross = any(name.startswith("decoder.") for name in op.read(self.shapes))
            weights[is_cross].update(op.read(self.shapes))
            if op.name == "linear":
                part = "cross_keys_values" if is_cross else "encoder"
                parts[part] += 2 * prod(op.shape(0)[:-1]) * prod(op.shape(1))
                matrices[is_cross][op.constant(1).name] = prod(op.shape(1))
            elif op.name in _ENCODING:
                parts["encoder_attention"] += 2 * _ENCODING[op.name](op)
        cross = parts.pop("cross_keys_values")
        own, projected = (
            Work(**flop, weights=sum(read.values()), encoder_matrices=sum(held.values()))
            for flop, read, held in zip(
                (parts, {"cross_keys_values": cross}), weights, matrices, strict=True
            )
        )
        return own, projected

    @cached_property
    def _decode(self) -> "_Decode":
        """Walk `decode` once."""
        source = self._sizes["source"]
        new = 1 if self.family.one_by_one else _NEW
        sizes = dict.fromkeys(("rows", "batch", "capacity", "ring", "inputs"), 1)
        sizes |= {"source": source, "new": new, "asked": _ASKED}
        program = self._programs["decode"]
        head, steps = program.last_product("logits"), {step.name: step for step in program.steps}
        decode = _Decode(head=head.arguments[1].name)
        read: dict[str, int] = {}
        products: dict[str, _Product] = {}
        seen_layer = False
        for op in self._walk("decode", sizes):
            read |= op.read(self.shapes)
            if op.name == "linear":
                name = op.constant(1).name
                seen_layer |= bool(_LAYER.search(name))
                after = seen_layer and not _LAYER.search(name)
                asked = _is_asked(op.shape(0)[:-1])
                is_head = op.step is head or (after and asked)
                products[op.step.name] = _Product(name, op.shape(1), asked, is_head)
            elif op.name == "mixture_of_experts":
                experts, *shape = op.shape(2)
                size = prod(shape) + prod(op.shape(3)[1:])
                asked = _is_asked(op.shape(0)[:-1])
                decode.mixtures.append(_Mixture(experts, op.step.arguments[4], size, asked))
            elif op.name == "self_attention":
                own_call = SelfAttention[Any](*op.step.arguments)
                keys = prod(op.shape(3)[1::2])
                own = _Attention.of(op, own_call, keys)
                decode.attentions.append(own)
                decode.written_keys += 2 * keys
                if own_call.crosses:
                    decode.cross += 2 * prod(op.resolved(own_call.cross_key))
                    decode.attentions.append(
                        replace(own, keys=0, cross=op.resolved(own_call.cross_key)[2])
                    )
                for name, _ in {
                    _projection(part, steps) for part in (own_call.key, own_call.value)
                }:
                    products[name].keys += keys
            elif op.name == "shared_attention":
                call = SharedAttention[Any](*op.step.arguments)
                decode.attentions.append(_Attention.of(op, call, prod(op.shape(1)[1::2])))
            elif op.name == "cross_attention":
                decode.cross += 2 * prod(op.shape(1))
                width, asked = op.shape(0)[-1], _is_asked(op.shape(0)[:-1])
                decode.attentions.append(_Attention(width, 0, asked, cross=op.shape(1)[2]))
            elif op.name in _STATE_PRODUCTS:
                state = op.resolved(op.step.arguments[-3])
                decode.rewriting += _STATE_PRODUCTS[op.name] * prod(state[1:])
        decode.embedded = sum(run.head_dim for run in self._caches if run.kind == "embeddings")
        for product in products.values():
            decode.count(product)
        decode.weights = sum(read.values())
        return decode


class _ConstantShapes(dict[str, Shape]):
    """Shapes of tensors, and of a family's derived constants where one is asked for."""

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
class _Op:
    """An operation, and the shapes of nodes and of constants by name."""

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

    def shape(self, argument: int) -> Shape:
        shape: Shape = self.resolved(self.step.arguments[argument])
        return shape

    def resolved(self, given: Any) -> Any:  # a shape, a number or a list
        return resolve(given, self.nodes, self.constants)

    def constant(self, argument: int) -> Constant:
        constant: Constant = self.step.arguments[argument]
        return constant

    def read(self, tensors: Mapping[str, Shape]) -> dict[str, int]:
        """Return how many weights of each tensor it reads whole."""
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
    """A mixture of experts; `size`: weights of one of them."""

    experts: int
    used: int
    size: int
    asked: bool


@dataclass(frozen=True)
class _Attention:
    """A layer's attention: sizes of all heads of queries and of keys; `cross`: keys of an input."""

    width: int
    keys: int
    asked: bool
    window: int | None = None
    causal: bool = True
    cross: int = 0

    @classmethod
    def of(
        cls, op: _Op, call: SelfAttention[Any] | SharedAttention[Any], keys: int
    ) -> "_Attention":
        width, causal = op.shape(0)[-1], getattr(call, "causal", True)
        return cls(width, keys, _is_asked(op.shape(0)[:-1]), call.window or None, causal)

    def held(self, length: int) -> int:
        """Return how many earlier positions are read."""
        return min(length, self.window - 1 if self.window else length)

    def seen(self, length: int, new: int, asked: int) -> int:
        """Return the pairs of the last `asked` of `new` queries and a key that each sees."""
        if self.cross:
            return asked * self.cross
        if not self.causal and not length:  # the source of a prefix LM sees all of itself
            return new * new
        end = length + new
        return pairs(end, self.window) - pairs(end - asked, self.window)


@dataclass
class _Decode:
    """What a walk over `decode` found; products of all new positions, and of the asked ones."""

    head: str
    products: Mapping[str, list[int]] = field(
        default_factory=lambda: {part: [0, 0] for part in ("keys_values", "linear", "head")}
    )
    attentions: list[_Attention] = field(default_factory=list)
    mixtures: list[_Mixture] = field(default_factory=list)
    weights: int = 0
    matrices: int = 0
    columns: int = 0
    written_keys: int = 0
    cross: int = 0
    embedded: int = 0
    rewriting: int = 0

    def count(self, product: _Product) -> None:
        outputs, width = product.shape
        part = "head" if product.is_head else "linear"
        self.products[part][product.asked] += (outputs - product.keys) * width
        self.products["keys_values"][product.asked] += product.keys * width
        if product.name != self.head:
            self.matrices += prod(product.shape)
            self.columns += outputs


def _is_asked(leading: Shape) -> bool:
    return prod(leading) == _ASKED


def _projection(node: Node, steps: Mapping[str, Step]) -> tuple[str, str]:
    """Return the product that keys or values are a part of, and which part."""
    step, part = steps[node.name], ""
    while step.operation != "linear":
        part = step.name if step.operation == "getitem" else part
        step = steps[step.arguments[0].name]
    return step.name, part


def pairs(length: int, window: int | None) -> int:
    """Return the number of pairs of a query and a key that it sees among `length` positions.

    This is the sum of min(q + 1, window) over all q below `length`.
    """
    ramp = min(length, window or length)
    return ramp * (ramp + 1) // 2 + (length - ramp) * ramp


def _all_pairs(op: _Op) -> int:
    *rows, positions, width = op.shape(0)
    return 2 * prod(rows) * positions * op.shape(1)[-2] * width


def _within(op: _Op, before: int, after: int) -> int:
    """Count attention from each position to a window around it."""
    rows, positions, width = op.shape(0)
    own = pairs(positions, before + 1) + pairs(positions, after + 1) - positions
    return 2 * rows * own * width


def _source_pairs(op: _Op) -> int:
    window = op.step.keywords["window"]
    return _within(op, (window - 1) // 2, window // 2) if window else _all_pairs(op)


_ENCODING: Mapping[str, Callable[[_Op], int]] = {
    "encoder_attention": _all_pairs,
    "source_attention": _source_pairs,
    "window_attention": lambda op: _within(op, *op.step.arguments[5:7]),
    "relative_scores": lambda op: prod(op.result) * (op.shape(0)[-1] // op.step.arguments[2]),
    "conv1d": lambda op: prod(op.result) * prod(op.shape(1)[1:]),
    "conv2d": lambda op: prod(op.result) * prod(op.shape(1)[1:]),
    "channel_convolution": lambda op: prod(op.result) * prod(op.shape(1)[:2]),
}
"""Multiplications of an encoder's other operations."""
