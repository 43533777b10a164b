"""Operations and values read by a model's calls, counted by walking its programs with sizes.

A multiplication and an addition are two operations (FLOP). Matrix products, convolutions of
encoders and attention are counted. Norms, activations, softmax, rotation and a decoder's short
convolutions are not, nor are lookups in tables, which read one row per token.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from operator import mul
from typing import Any, Self

from kvcast.errors import UsageError
from kvcast.families.base import Family
from kvcast.families.programs import ENCODED, CacheLayers
from kvcast.families.table import family_with
from kvcast.inspect.walk import ASKED, ENCODING, NEW, Attention, ConstantShapes, DecodeCounts, Op
from kvcast.spec.shapes import Shape, shape_of

USUAL_SOURCE = 128
_ORDER = {"inputs": 1, "state": 2, "embeddings": 3}
"""Kinds of caches that are listed after others."""


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
        return self.held + self.cross


PARTS = ("encoder", "cross_keys_values", "keys_values", "linear", "attention", "head")


@dataclass(frozen=True, kw_only=True)
class CacheKind:
    """Cache layers of one kind, for one sequence; `values`: their total values."""

    kind: str
    layers: int
    positions: int
    values: int


@dataclass(frozen=True, kw_only=True)
class ModelWork:
    """Counts the calls of a model; `source`: encoded positions, if they vary."""

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
        return self.shapes[self._decode.head][1]

    def encode(self, inputs: int = 1) -> Work:
        """Operations that run once for each input, with or without a cache."""
        return self._encoded(inputs)[0]

    def project(self, inputs: int = 1) -> Work:
        """Cross keys and values, computed once for each input if they are cached."""
        return self._encoded(inputs)[1]

    def call(
        self, length: int, new: int, *, rows: int = 1, inputs: int = 1, asked: int = 1
    ) -> Work:
        """Count `new` tokens for each of `rows` rows over caches of `length` positions each.

        `asked` positions of each row reach the head. Weights are read once for all rows, and the
        cross cache of each of `inputs` encoded inputs once for all rows that read it.
        """
        decode, each = self._decode, rows * new
        positions = (new, asked)
        routed = [(min(of.experts, each * of.used), of) for of in decode.mixtures]
        mixed = sum(of.used * of.size * positions[of.asked] for of in decode.mixtures)
        flop = {
            part: 2 * rows * sum(map(mul, counts, positions))
            for part, counts in decode.products.items()
        }
        read = sum(n * of.cached * of.held(length) for of, n in self._attentions.items())
        rewritten = each if self.family.one_by_one else rows
        held = length or self.family.one_by_one
        attended = sum(
            n * of.products * of.seen(length, new, positions[of.asked])
            for of, n in self._attentions.items()
        )
        return Work(
            keys_values=flop["keys_values"],
            linear=flop["linear"] + 2 * rows * mixed,
            attention=2 * (rows * attended + each * decode.rewriting),
            head=flop["head"],
            weights=decode.weights - sum((of.experts - used) * of.size for used, of in routed),
            matrices=decode.matrices + sum(used * of.size for used, of in routed),
            table=prod(self.shapes[decode.head]),
            columns=decode.columns,
            held=rows * (read + self._convolution_inputs(length) + (self._states if held else 0)),
            written=each * (decode.written_keys + self._convolution_inputs(None))
            + rewritten * self._states,
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
                share = run.layers if part in (run.parts[0], "state") else 0
                kinds.setdefault(key, []).append((share, held, run.layers * heads * size * held))
        return tuple(
            CacheKind(
                kind=kind,
                layers=sum(layers for layers, *_ in parts),
                positions=1 if kind == "state" else max(held for _, held, _ in parts),
                values=sum(values for *_, values in parts),
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
        return {"source": self.source, **self.family.longest(self.dimensions, self.source)}

    def _convolution_inputs(self, length: int | None) -> int:
        """Count inputs that convolutions read after `length` positions; None: of one."""
        return sum(
            run.layers
            * (run.channels or run.head_dim)
            * (1 if length is None else min(length, (run.length or run.capacity) - 1))
            for run in self._convolutions
        )

    @cached_property
    def _convolutions(self) -> Sequence[CacheLayers]:
        return [run for run in self._caches if "inputs" in run.parts]

    @cached_property
    def _attentions(self) -> Counter[Attention]:
        """Equal layers count once: a text's cost takes a call for each of its tokens."""
        return Counter(self._decode.attentions)

    @cached_property
    def _states(self) -> int:
        states = (run for run in self._caches if run.kind == "state")
        return sum(run.layers * run.heads * run.capacity * run.head_dim for run in states)

    @cached_property
    def _constants(self) -> Mapping[str, Shape]:
        return ConstantShapes(self.family, self.dimensions, self.shapes)

    def _walk(self, name: str, sizes: Mapping[str, int]) -> Iterator[Op]:
        signature = self.family.programs(self.dimensions)[name]
        given = [shape for argument in signature.arguments for shape in argument.shapes]
        known: dict[str, Any] = {
            name: tuple(size if isinstance(size, int) else sizes[size] for size in shape)
            for name, shape in zip(signature.inputs, given, strict=True)
        }
        for step in self._programs[name].steps:
            known[step.name] = shape_of(step, known, self._constants)
            yield Op(step, known, self._constants)

    @cached_property
    def _programs(self) -> Mapping[str, Any]:
        return self.family.write_programs(self.dimensions)

    def _encoded(self, inputs: int) -> tuple[Work, Work]:
        if "encode" not in self._programs:
            return Work(), Work()
        if inputs in self._encodings:
            return self._encodings[inputs]
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
            elif op.name in ENCODING:
                parts["encoder_attention"] += 2 * ENCODING[op.name](op)
        cross = parts.pop("cross_keys_values")
        own, projected = (
            Work(**flop, weights=sum(read.values()), encoder_matrices=sum(held.values()))
            for flop, read, held in zip(
                (parts, {"cross_keys_values": cross}), weights, matrices, strict=True
            )
        )
        self._encodings[inputs] = own, projected
        return own, projected

    @cached_property
    def _encodings(self) -> dict[int, tuple[Work, Work]]:
        return {}

    @cached_property
    def _decode(self) -> DecodeCounts:
        new = 1 if self.family.one_by_one else NEW
        sizes = dict.fromkeys(("rows", "batch", "capacity", "ring", "inputs"), 1)
        sizes |= {"source": self._sizes["source"], "new": new, "asked": ASKED}
        embedded = sum(run.head_dim for run in self._caches if run.kind == "embeddings")
        counts = DecodeCounts(self._programs["decode"], self.shapes, embedded)
        for op in self._walk("decode", sizes):
            counts.add(op)
        return counts
