"""The interface of another tool's exported decoder, and the record of a step's work.

`foreign/readers.py` has a reader for each kind of folder.
"""

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
    """Bytes that operators of a step write which hold whole caches, or as much of them.

    Attributes:
        fixed: bytes that they write in a step, whatever the length.
        per_position: bytes more for each position that the sequence holds.

    """

    operator: str
    count: int
    fixed: int
    per_position: int

    def at(self, length: int) -> int:
        """Return the bytes of a step over so many positions."""
        return self.fixed + length * self.per_position


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """What a step of one row does beside what is new.

    Attributes:
        caches: what happens to each tensor of the caches, by the tensor's name.
        moved: whole caches that are written elsewhere, from what the file says.
        measured: the same as the runtime's profile has it; None where it has none.
        recomputed: operators over what the encoder gave alone: as often as there are steps, to the
            same result; by the operator's name.
        branches: operators that choose between graphs at each step.
        spans_capacity: whether queries meet all slots of a cache, and not only those in use.
        weights: bytes of the decoder's weights in the files that are opened.
        repeated_weights: how many of these bytes are another file's or tensor's once more.

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
    """A decoder whose caches hold `rows` sequences of the same length.

    Attributes:
        encoder: what its encoder takes: "tokens" or "features"; empty without one.
        capacity: most positions of a sequence; None where the files do not say.
        most_rows: most sequences at once; None: any number.
        takes_chunks: whether a call takes several tokens of each row.

    """

    exporter: str
    runtime: str
    precision: BundlePrecision
    encoder: Literal["", "tokens", "features"] = ""
    vocab_size: int
    capacity: int | None
    most_rows: int | None = None
    takes_chunks: bool = True
    tools: Mapping[str, str]

    @abstractmethod
    def begin(self, rows: int, source: Source = ()) -> None:
        """Begin `rows` empty sequences on the same load, over the same memory where it has any.

        Args:
            rows: at most `most_rows`.
            source: arrays [rows, ...] for the encoder; empty without one.

        """

    @abstractmethod
    def feed(self, tokens_rs: Int64) -> Float32:
        """Append s tokens to each row; return logits fp32 [rows, s, vocab]."""

    @abstractmethod
    def cut(self, length: int) -> None:
        """Keep the first `length` positions of each row."""

    @abstractmethod
    def reorder(self, parents: Sequence[int]) -> None:
        """Let row i go on from row `parents[i]`; only where there may be several rows."""

    @abstractmethod
    def held_bytes(self) -> int:
        """Return the bytes of the self caches of all rows, as they are now."""

    @abstractmethod
    def work(self) -> StepWork:
        """Tell what a step does; it may run steps of its own, so no sequence goes on afterwards."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A kind of folder.

    Attributes:
        name: of the tool, with the files that tell.
        detect: whether a folder is of this kind, by its files' names.
        open: opens it, with so many threads; raises KvcastError with one line.
        native: the folder's files that can contain native code, which opening runs.

    """

    name: str
    detect: Callable[[Path], bool]
    open: Callable[[Path, int], ForeignModel]
    native: Callable[[Path], Sequence[Path]] = field(default=lambda _: ())


def one_by_one(model: ForeignModel, tokens_rs: Int64) -> Float32:
    """Append tokens one after the other; return logits fp32 [rows, s, vocab]."""
    steps = [
        model.feed(tokens_r1).copy() for tokens_r1 in np.split(tokens_rs, tokens_rs.shape[1], 1)
    ]
    return np.concatenate(steps, axis=1)


class ForeignCache:
    """Rows of a load, which hold the same number of tokens; its sources are by slots."""

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
    """A load as the checks' runtime: the memory still holds what earlier caches wrote.

    A cache is of use until another one takes its first tokens.
    """

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
