"""The interface of another tool's exported decoder, and the record of a step's work."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.base import Float32, Int64
from kvcast.spec.runtimes import BundlePrecision

Source: TypeAlias = Sequence[NDArray[Any]]
"""Input of an encoder, one entry a row: tokens int64 [rows, t], or features fp32 [rows, f, t]."""

How: TypeAlias = Literal["copied", "in place", "kept"]
"""What a step does to a cache: makes all of it anew, adds to it where it lies, or only reads it."""


@dataclass(frozen=True, kw_only=True)
class Movement:
    """Bytes written in a step by operators whose results are as large as whole caches."""

    operator: str
    count: int
    fixed: int  # bytes a step, whatever the length
    per_position: int  # additional bytes for each position that the sequence holds

    def at(self, length: int) -> int:
        return self.fixed + length * self.per_position


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """The work of a step of one row that does not depend on its new token.

    Attributes:
        caches: how each tensor of the caches is updated.
        moved: whole caches that are written elsewhere, from the graph.
        measured: the same from the runtime's profile; None where it has none.
        recomputed: operators, by name, that depend only on the encoder: the same in each step.
        branches: operators that choose between graphs at each step.
        spans_capacity: whether queries attend to all slots of a cache, not only the used ones.
        weights: bytes of the decoder's weights in the files that are opened.
        repeated_weights: how many of these bytes are duplicates.

    """

    caches: Mapping[str, How]
    moved: Sequence[Movement]
    measured: Sequence[Movement] | None = None
    recomputed: Mapping[str, int] = field(default_factory=dict)
    branches: int = 0
    spans_capacity: bool = False
    weights: int = 0
    repeated_weights: int = 0


class ForeignModel(ABC):
    """A decoder whose caches hold `rows` sequences of the same length."""

    exporter: str
    runtime: str
    precision: BundlePrecision
    encoder: Literal["", "tokens", "features"] = ""  # the type of its encoder's input
    vocab_size: int
    capacity: int | None  # None where the files do not say
    most_rows: int | None = None  # None: any number
    takes_chunks: bool = True  # a call takes several tokens of each row
    tools: Mapping[str, str]

    @abstractmethod
    def begin(self, rows: int, source: Source = ()) -> None:
        """Begin `rows` empty sequences without reloading; `source`: arrays [rows, ...]."""

    @abstractmethod
    def feed(self, tokens_rs: Int64) -> Float32:
        """Append s tokens to each row; return logits fp32 [rows, s, vocab]."""

    @abstractmethod
    def cut(self, length: int) -> None:
        """Keep the first `length` positions of each row."""

    @abstractmethod
    def reorder(self, parents: Sequence[int]) -> None:
        """Continue row `parents[i]` in row i; only for exports of several rows."""

    @abstractmethod
    def held_bytes(self) -> int:
        """Return the bytes of the self caches of all rows, as they are now."""

    @abstractmethod
    def work(self) -> StepWork:
        """Tell what a step does; it may run steps of its own, so no sequence goes on afterwards."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    name: str  # of the tool, with the files that identify it
    detect: Callable[[Path], bool]  # by the names of the folder's files
    # with this many threads; raises KvcastError with one line
    open: Callable[[Path, int], ForeignModel]
    # files that can contain native code, which opening runs
    native: Callable[[Path], Sequence[Path]] = field(default=lambda _: ())


def one_by_one(model: ForeignModel, tokens_rs: Int64) -> Float32:
    """Append tokens in single steps; return logits fp32 [rows, s, vocab]."""
    steps = [
        model.feed(tokens_r1).copy() for tokens_r1 in np.split(tokens_rs, tokens_rs.shape[1], 1)
    ]
    return np.concatenate(steps, axis=1)


class ForeignCache:
    """Rows of a model, with equally many tokens; sources are by slot."""

    has_snapshots = False

    def __init__(self, rows: int, capacity: int) -> None:
        self.capacity = capacity
        self.lengths = np.zeros(rows, np.int32)
        self.sources: dict[int, Sequence[NDArray[Any]]] = {}
        self.reads = [0] * rows

    def revocable(self, row: int, kept: int, most: int) -> int:
        return min(most, self.capacity - int(self.lengths[row]) - kept)

    def reachable(self, _row: int, most: int) -> int:
        return most


class ForeignRuntime:
    """A model as the checks' runtime; a new cache reuses the memory of the one before."""

    def __init__(self, model: ForeignModel) -> None:
        self._model = model
        self._current: ForeignCache | None = None

    def new_cache(self, rows: int, capacity: int, **_: int) -> ForeignCache:
        return ForeignCache(rows, capacity)

    def encode(self, cache: ForeignCache, slots: Sequence[int], *source: Any) -> ForeignCache:
        first, *lengths = source
        # As transformers has it: without padding, and without lengths.
        cache.sources[slots[0]] = [first[:, : int(lengths[0][0])] if lengths else first]
        return cache

    def reset(
        self, cache: ForeignCache, rows: Sequence[int], slots: Sequence[int] = ()
    ) -> ForeignCache:
        cache.lengths[list(rows)] = 0
        for row, slot in zip(rows, slots, strict=False):
            cache.reads[row] = slot
        return cache

    def decode(
        self,
        tokens: Sequence[Int64],
        cache: ForeignCache,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, ForeignCache]:
        tokens_rs, model = np.stack(tokens), self._model
        if not cache.lengths.any():
            parts = zip(*(cache.sources.get(slot, ()) for slot in cache.reads), strict=True)
            model.begin(len(cache.reads), [np.concatenate(part) for part in parts])
            self._current = cache
        if self._current is not cache or len(rows or cache.reads) != len(cache.reads):
            raise ValueError("the load holds other rows")
        whole = model.takes_chunks or tokens_rs.shape[1] == 1
        logits_rsv = model.feed(tokens_rs) if whole else one_by_one(model, tokens_rs)
        cache.lengths += tokens_rs.shape[1]
        return logits_rsv[:, list(positions)], cache

    prefill = decode

    def truncate(
        self, cache: ForeignCache, _rows: Sequence[int], lengths: Sequence[int]
    ) -> ForeignCache:
        self._model.cut(lengths[0])
        cache.lengths[:] = lengths[0]
        return cache

    def reorder(self, cache: ForeignCache, parents: Sequence[int]) -> ForeignCache:
        self._model.reorder(parents)
        return cache
