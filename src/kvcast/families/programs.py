"""Signatures of programs as data: arguments with their shapes, and the names of results.

A size that callers vary has a name in a shape: "rows", "new", "asked", "capacity", "ring",
"inputs", "batch", "source", "n", and what encoders of sound have, such as "frames". Knows no family
and no tensor library.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcast.families.caches import ENCODED, KEY_VALUE, CacheLayers
from kvcast.spec.program import Program

Shape = tuple[int | str, ...]
"""Sizes of a tensor; a name stands for a size that callers vary."""

SOURCE_LENGTHS = "source_lengths"
"""The argument of `encode`, [batch], that tells how many positions each input becomes."""

SOURCE = "source"
"""The argument of `encode`, [batch, t], that has as many positions as its results, if they vary."""

ALIGNMENT_QUERIES = "alignment_queries"
"""The result of `decode` with the queries of alignment heads, in models with alignment heads."""

_ATTENDED = {"linear": "capacity", "ring": "ring"}
_CAPACITIES = {**_ATTENDED, "inputs": "inputs", "state": "inputs"}


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A tensor that a program takes; `example` are values that it may have, zeros if empty."""

    name: str
    shape: Shape
    dtype: str
    example: tuple[int, ...] = ()

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape alone."""
        return (self.shape,)


LENGTHS_OF_SOURCES = Argument(name=SOURCE_LENGTHS, shape=("batch",), dtype="int32", example=(5, 3))
"""It, where sources differ in length; `decode` takes it too where it attends to them."""


@dataclass(frozen=True, kw_only=True)
class CacheArgument:
    """A key and a value for each layer, or what else `parts` names; a shape for each tensor.

    `dtype` is of keys and values.
    """

    name: str
    shapes: tuple[Shape, ...]
    dtype: str = "float32"
    parts: tuple[tuple[str, ...], ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the tensors, in order."""
        return _part_names(self.name, self._parts)

    @property
    def dtypes(self) -> list[str]:
        """Dtype of each tensor."""
        each = [part for layer in self._parts for part in layer]
        return [self.dtype if part in KEY_VALUE else "float32" for part in each]

    @property
    def _parts(self) -> Sequence[Sequence[str]]:
        return self.parts or (KEY_VALUE,) * (len(self.shapes) // len(KEY_VALUE))


@dataclass(frozen=True, kw_only=True)
class ProgramSignature:
    """The arguments of one program and the names of its flattened results, in order."""

    arguments: tuple[Argument | CacheArgument, ...]
    outputs: tuple[str, ...]

    @property
    def inputs(self) -> list[str]:
        """Names of the flattened arguments."""
        return [name for argument in self.arguments for name in _names(argument)]

    @property
    def sizes(self) -> set[str]:
        """Names of the sizes that callers vary."""
        shapes = [shape for argument in self.arguments for shape in argument.shapes]
        return {size for shape in shapes for size in shape if isinstance(size, str)}

    @property
    def kinds(self) -> list[str]:
        """Kinds of the self caches that are attended to, each once: "linear", "ring"."""
        return [kind for kind, size in _ATTENDED.items() if size in self.sizes]


def _names(argument: Argument | CacheArgument) -> Sequence[str]:
    if isinstance(argument, Argument):
        return [argument.name]
    return argument.names


def cache_names(prefix: str, layers: int) -> list[str]:
    """Name every layer's key and value."""
    return _part_names(prefix, (KEY_VALUE,) * layers)


def _part_names(prefix: str, parts: Sequence[Sequence[str]]) -> list[str]:
    return [f"{prefix}_{part}_{i}" for i, layer in enumerate(parts) for part in layer]


def decode_program(
    caches: Sequence[CacheLayers],
    results: Sequence[str],
    *inputs: Argument | CacheArgument,
) -> ProgramSignature:
    """Return a program that appends tokens to self caches and gives `results` and the caches.

    `inputs` are its other arguments.
    """
    each = [layers for layers in caches for _ in range(layers.layers)]
    shapes = tuple(
        ("rows", heads, positions or _CAPACITIES[layers.kind], size)
        for layers in each
        for heads, positions, size in layers.sizes
    )
    past, present = (
        CacheArgument(name=name, shapes=shapes, parts=tuple(layers.parts for layers in each))
        for name in ("past", "present")
    )
    return ProgramSignature(
        arguments=(
            Argument(name="tokens", shape=("rows", "new"), dtype="int64"),
            Argument(name="lengths", shape=("rows",), dtype="int32"),
            Argument(name="offsets", shape=("asked",), dtype="int64", example=(0, 2)),
            past,
            *inputs,
        ),
        outputs=(*results, *present.names),
    )


def encode_program(cross: CacheLayers, *inputs: Argument) -> ProgramSignature:
    """Return a program that gives the cross caches of every layer of the decoder.

    Or embeddings, which the decoder reads before its layers.
    """
    names = _part_names("cross", (cross.parts,) * cross.layers)
    return ProgramSignature(arguments=inputs, outputs=tuple(names))


def cross_argument(cross: CacheLayers, positions: int | str) -> CacheArgument:
    """Return the cross caches that `decode` reads, of sources of that many positions."""
    shape = ("batch", cross.heads, positions, cross.head_dim)
    parts = (cross.parts,) * cross.layers
    shapes = (shape,) * (len(cross.parts) * cross.layers)
    return CacheArgument(name="cross", shapes=shapes, parts=parts)


LISTEN, FINISH = "listen", "finish"
NEXT = "next_"
"""Names of a streamed source's programs; begins the names of what `listen` leaves."""


@dataclass(frozen=True, kw_only=True)
class StreamedSource:
    """How a source is encoded as it comes, by programs over the weights of `encode`.

    `listen` takes "samples", the count of positions "done" and what it left before by name, and
    gives cross keys and values that no later sound changes, and what it leaves now, named NEXT and
    the name. `finish` takes the same without samples, and gives the last positions.

    Attributes:
        programs: `listen` and `finish`.
        left: of each part that `listen` leaves, its shape before all sound, [positions, width].

    """

    programs: Mapping[str, Program]
    left: Mapping[str, tuple[int, int]]


def empty_caches(caches: Sequence[CacheLayers], positions: int) -> dict[str, NDArray[np.float32]]:
    """Return self caches of one row for so many positions, by the names of `decode`'s inputs."""
    each = [layers for layers in caches if layers.kind not in ENCODED for _ in range(layers.layers)]
    names = _part_names("past", [layers.parts for layers in each])
    sizes = [
        (1, heads, held or max(positions, _read(layers)), size)
        for layers in each
        for heads, held, size in layers.sizes
    ]
    return {n: np.zeros(shape, np.float32) for n, shape in zip(names, sizes, strict=True)}


def _read(layers: CacheLayers) -> int:
    """Return how many positions a convolution reads, its own included; 0 for attention."""
    return layers.capacity if layers.kind == "inputs" else layers.length
