"""Memory traffic of one program call by layer: operators, and bytes of weights and caches.

A runtime's reader (`kvcast/runtimes/*/traffic.py`) derives it from the code that the runtime
executes, without running it: opcodes, nodes of a graph, generated C++.

Each weight counts once per call and whole, a lookup table by the rows looked up, and tables that
are no tensors of the model, such as rotary angles, not at all. A cache counts by the earlier
entries that the call's queries see and the entries that it writes, and by a whole copy, read and
written, if it is copied.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kvcast.bundle.manifest import Manifest
from kvcast.families.base import Family
from kvcast.families.programs import (
    ENCODED,
    QUANTIZED,
    Argument,
    CacheLayers,
    ProgramSignature,
    Shape,
)
from kvcast.runtimes.memory import recurrent_layers
from kvcast.spec.runtimes import BundlePrecision

if TYPE_CHECKING:
    from kvcast.checkpoints.base import Checkpoint

COPIED, IN_PLACE, REWRITTEN, FILLED, READ = "copied", "in place", "rewritten", "filled", "read"
"""What happens to a cache in a call.

Copied: all of it goes elsewhere, or is made anew. In place: new entries are written where it lies.
Rewritten: it has a fixed size, whatever the length, and each call makes it anew. Filled: a program
gives it as its result. Read: nothing is written.
"""

INPUT, OUTPUT = "input", "output"
"""What comes before the layers, such as embeddings, and after them, such as the head."""

FIXED_SIZE = ("inputs", "state")
"""Kinds of caches that do not grow."""

_LAYER = re.compile(r"(?:(?P<stack>encoder|decoder)\.)?(?:.*\.)?layers\.(?P<number>\d+)\.")


@dataclass(frozen=True, kw_only=True)
class CallSizes:
    """The sizes of a call: `new` tokens per row after `length` positions in each row."""

    rows: int = 1  # each with its own encoded input
    length: int = 64
    new: int = 1
    source: int | None = None  # positions of an encoded input; None: the usual length

    def seen(self, window: int | None) -> int:
        """Return how many of a row's earlier positions the call's queries attend to."""
        return min(self.length, window - 1) if window else self.length


@dataclass(frozen=True, kw_only=True)
class CacheTensor:
    kind: str
    shape: tuple[int, ...]
    dtype: str
    # positions that a query sees or a convolution reads, with its own; None: all
    window: int | None = None


@dataclass(frozen=True, kw_only=True)
class CacheTraffic:
    """The traffic of a call on one tensor of a cache; `read` and `written` include whole copies."""

    name: str
    kind: str  # of its layer, as in `CacheLayers`
    how: str
    read: int
    written: int
    copied: int
    by: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LayerTraffic:
    """The traffic of a call in one layer; `weights`: bytes read."""

    name: str
    operators: Mapping[str, int]
    weights: int
    caches: tuple[CacheTraffic, ...]

    @property
    def read(self) -> int:
        return sum(cache.read for cache in self.caches)

    @property
    def written(self) -> int:
        return sum(cache.written for cache in self.caches)


@dataclass(frozen=True, kw_only=True)
class ProgramTraffic:
    name: str
    layers: tuple[LayerTraffic, ...]

    @property
    def weights(self) -> int:
        return sum(layer.weights for layer in self.layers)

    @property
    def caches(self) -> tuple[CacheTraffic, ...]:
        return tuple(cache for layer in self.layers for cache in layer.caches)


@dataclass(frozen=True, kw_only=True)
class ModelTraffic:
    family: str
    runtime: str
    precision: BundlePrecision
    sizes: CallSizes
    programs: Sequence[ProgramTraffic]

    @property
    def copies(self) -> Sequence[CacheTraffic]:
        caches = (cache for program in self.programs for cache in program.caches)
        return [cache for cache in caches if cache.how == COPIED]


class TrafficReader(Protocol):
    """A runtime's reader of its programs' traffic, for sizes that the model supports.

    Raises KvcastError with one line.
    """

    def bundle(
        self, folder: Path, manifest: Manifest, sizes: CallSizes
    ) -> Sequence[ProgramTraffic]:
        """Read a bundle whose checksums have been verified."""

    def checkpoint(
        self, checkpoint: "Checkpoint", precision: BundlePrecision, sizes: CallSizes
    ) -> Sequence[ProgramTraffic]:
        raise NotImplementedError


@dataclass
class _Cache:
    size: int
    read: int = 0
    written: int = 0
    copied: int = 0
    by: dict[str, None] = field(default_factory=dict)

    def traffic(self, name: str, kind: str, *, filled: bool) -> CacheTraffic:
        if filled:
            how = FILLED
        elif kind in FIXED_SIZE and (self.copied or self.written >= self.size):
            how = REWRITTEN
        else:
            how = COPIED if self.copied else IN_PLACE if self.written else READ
        copied = self.copied if how == COPIED else 0
        return CacheTraffic(
            name=name,
            kind=kind,
            how=how,
            read=self.read,
            written=self.written,
            copied=copied,
            by=tuple(self.by),
        )


@dataclass
class _Layer:
    operators: Counter[str] = field(default_factory=Counter)
    weights: dict[str, int] = field(default_factory=dict)
    caches: dict[str, _Cache] = field(default_factory=dict)


class Tally:
    """Counts operators by layer, which begins with the first operator that reads its tensors."""

    def __init__(
        self,
        program: str,
        tensors: Collection[str],
        caches: Mapping[str, CacheTensor],
        filled: Collection[str] = (),
        *,
        by_number: bool = False,
    ) -> None:
        """Begin a program; `tensors` are the model's, `filled` the caches that are its results.

        `by_number`: traffic of a cache counts in the layer of its index (compilers move operators).
        """
        self._program = program
        self._tensors = tensors
        self._caches = caches
        self._filled = filled
        self._by_number = by_number
        self._elsewhere: dict[str, _Cache] = {}
        self._layers: dict[str, _Layer] = {}
        self._name = INPUT

    def enter(self, layer: str) -> None:
        """Count the next operators in a layer that the reader identified without names."""
        self._name = layer

    def operator(self, name: str, constants: Iterable[str] = ()) -> None:
        """Count an operator that reads constants, by their names."""
        for constant in filter(self.tensor, constants):
            if match := _LAYER.match(constant):
                stack = f"{match['stack']} " if match["stack"] else ""
                self._name = f"{stack}layer {match['number']}"
            elif self._name != INPUT:
                self._name = OUTPUT
        self._layer.operators[name] += 1

    def tensor(self, constant: str) -> str | None:
        """Return the model's tensor that a constant is, or is derived from; None if none."""
        while constant and constant not in self._tensors:
            constant = constant.rpartition(".")[0]
        return constant or None

    def weight(self, name: str, size: int) -> None:
        """Count bytes of a constant that the last operator reads; it may be part of a weight."""
        if self.tensor(name):
            weights = self._layer.weights
            weights[name] = max(weights.get(name, 0), size)

    def cache(
        self, name: str, by: str, size: int, *, read: int = 0, written: int = 0, copied: int = 0
    ) -> None:
        """Count bytes of a cache of `size` that an operator reads, writes, or copies whole."""
        own = self._elsewhere if self._by_number else self._layer_of(name).caches
        cache = own.setdefault(name, _Cache(size))
        cache.read += read + copied
        cache.written += written + copied
        cache.copied += copied
        cache.by[by] = None

    def traffic(self) -> ProgramTraffic:
        for name, cache in self._elsewhere.items():
            self._numbered(name).caches[name] = cache
        return ProgramTraffic(
            name=self._program,
            layers=tuple(
                LayerTraffic(
                    name=name,
                    operators=dict(layer.operators.most_common()),
                    weights=sum(layer.weights.values()),
                    caches=tuple(
                        cache.traffic(
                            tensor, self._caches[tensor].kind, filled=tensor in self._filled
                        )
                        for tensor, cache in layer.caches.items()
                    ),
                )
                for name, layer in self._layers.items()
            ),
        )

    @property
    def _layer(self) -> _Layer:
        return self._layers.setdefault(self._name, _Layer())

    def _layer_of(self, cache: str) -> _Layer:
        """Return the layer that a cache is counted in: a result may be copied after its layer."""
        return self._numbered(cache) if cache in self._filled else self._layer

    def _numbered(self, cache: str) -> _Layer:
        """Return the layer with a cache's index, or the last layer."""
        number = cache.rpartition("_")[2]
        known = (self._layers.get(f"{stack}layer {number}") for stack in ("decoder ", ""))
        return next((layer for layer in known if layer is not None), self._layer)


def caches_of(
    layers: Sequence[CacheLayers], sizes: CallSizes, *, spare: int = 0
) -> dict[str, CacheTensor]:
    """Return the caches' tensors by argument or result, with the least capacity for a call.

    `spare`: slots of a ring past its window.
    """
    own = [run for run in layers if run.kind not in ENCODED for _ in range(run.layers)]
    encoded = [run for run in layers if run.kind in ENCODED for _ in range(run.layers)]
    return {
        f"{prefix}_{part}_{i}": CacheTensor(
            kind=run.kind,
            shape=(sizes.rows, *shape),
            dtype=run.dtype if part in QUANTIZED else "float32",
            window={"ring": run.capacity, "inputs": run.length or run.capacity}.get(
                "inputs" if part == "inputs" else run.kind
            ),
        )
        for prefix, runs in (("past", own), ("cross", encoded))
        for i, run in enumerate(runs)
        for part, shape in zip(run.parts, _shapes(run, sizes, spare), strict=True)
    }


def _shapes(run: CacheLayers, sizes: CallSizes, spare: int) -> list[tuple[int, ...]]:
    """Return the shapes of a layer's tensors, of one row or input."""
    if fixed := recurrent_layers(run, None):
        return [layer.shape for layer in fixed]
    slots = sizes.source or run.capacity
    if run.kind not in ENCODED:
        slots = run.capacity + spare if run.kind == "ring" else sizes.length + sizes.new
    return [(heads, slots, size) for heads, _, size in run.sizes]


def shapes_of(
    signature: ProgramSignature, sizes: CallSizes, probed: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of arguments except caches; sizes of audio are as in `probed`."""
    named = {
        "rows": sizes.rows,
        "batch": sizes.rows,
        "new": sizes.new,
        "asked": 1,
        "n": 1,
        "source": sizes.source or 1,
    }
    arguments = [part for part in signature.arguments if isinstance(part, Argument)]
    if {size for part in arguments for size in part.shape if isinstance(size, str)} <= named.keys():
        return {part.name: resolved(part.shape, named) for part in arguments}
    return {part.name: probed[part.name] for part in arguments}


def resolved(shape: Shape, named: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else named[size] for size in shape)


def probed_shapes(family: Family, dimensions: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arguments of `encode` in a family's proof, if it has one."""
    encode = family.programs(dimensions).get("encode")
    if encode is None:
        return {}
    source = family.probe(dimensions).source
    return {name: part.shape for name, part in zip(encode.inputs, source, strict=True)}
