"""The interface that every runtime implements, for all model families.

The cache contract in short: a cache goes in and a cache comes out. Validity follows from
`lengths` alone, so a fresh sequence is `lengths = 0` and stale contents never matter. Handles
are immutable; the buffers behind them are written in place, so only the newest handle of a
sequence, or an older and shorter one to roll back to, may be used.
"""

import gc
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from threading import RLock
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError, UsageError
from kvcast.families.programs import StreamedSource

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Tokens: TypeAlias = Sequence[Int64] | Int64
"""Tokens [S] for each row; an array [rows, S] where all have as many."""


class TokenProbabilityQuery(NamedTuple):
    positions: Sequence[int]
    """[p]: offsets of the tokens that come before them, as in `RuntimeOf.decode`."""
    tokens_p: Int64
    """Each has a 0 in `among_v`."""
    among_v: Float32
    """[vocab]: 0 for tokens that count, -inf for all other tokens."""


class Alignment(NamedTuple):
    """Cross-attention weights of tokens over their row's input, and some tokens' probabilities."""

    scores_hst: Float32
    """[alignment heads, s, t]: scaled products of queries and keys, before any softmax.

    The runtime's own memory, valid until the cache's next alignment.
    """
    probabilities_p: Float32
    """[p]: of the requested tokens, given all tokens before them."""


class InputStream(ABC):
    """An input whose audio is still arriving, in a slot of a cache.

    `held` counts its positions; the next audio replaces positions that `finish` added.
    """

    def __init__(self) -> None:
        self.done = self.held = 0

    @abstractmethod
    def listen(self, samples: Float32) -> None:
        """Encode samples [n, samples per position]; the first call needs one complete position."""

    @abstractmethod
    def finish(self) -> None:
        """Encode the last positions as if the audio ended here; more may follow."""

    @abstractmethod
    def forget(self) -> None:
        """Drop the positions that `finish` added."""


class Cache(Protocol):
    """The self-attention cache of `rows` sequences, and slots for encoded inputs that rows read."""

    @property
    def lengths(self) -> Int32:
        """[rows]: number of positions that each row has seen."""

    @property
    def capacity(self) -> int:
        """Longest sequence that a row can hold."""

    def revocable(self, row: int, kept: int, most: int) -> int:
        """Return how many drafts after `kept` tokens `truncate` could remove, at most `most`."""

    @property
    def has_snapshots(self) -> bool:
        """Whether rows are truncated to snapshots (`RuntimeOf.take_snapshots`)."""

    def reachable(self, row: int, most: int) -> int:
        """Return the longest length, up to `most`, to truncate a row to; 0: only `reset` can."""


CacheT = TypeVar("CacheT", bound=Cache)


class RuntimeOf(Protocol[CacheT]):
    """A runtime of any model, over its own cache type.

    Rows are independent: any of them may take part in a call, each with its own number of tokens.
    A ring's older handle is invalid once it has evicted positions; `truncate` then raises.

    `prompts_differ`: `prefill` uses a narrower dtype than `decode`, so a prompt may only continue
    positions that `prefill` computed.
    """

    prompts_differ: bool

    def new_cache(self, rows: int, capacity: int, inputs: int = 0) -> CacheT:
        """Return an empty cache of `rows` sequences of up to `capacity` positions.

        An encoder-decoder model's has `inputs` free slots, and no more positions than it was
        trained for.
        """

    def row_bytes(self, capacity: int) -> int:
        """Return the bytes of one row of such a cache, without encoded inputs."""

    def decode(
        self,
        tokens: Tokens,
        cache: CacheT,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, CacheT]:
        """Append tokens to rows: one, or several with the same results as single steps.

        Args:
            tokens: the new tokens [S] of each row, S >= 1, which may differ; copied.
            cache: grows.
            rows: which rows take part, ascending, without repeats; None is all.
            positions: offsets into each row's new tokens (negative counts from its end).

        Returns:
            fp32 logits [len(tokens), len(positions), vocab], in the runtime's memory, valid until
            its next call (the caller may overwrite them), and the grown cache.

        """

    def prefill(
        self,
        tokens: Tokens,
        cache: CacheT,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, CacheT]:
        """Append a chunk of a prompt to each row; arguments and results as for `decode`.

        The results do not depend on the chunks, but may differ from steps: see `prompts_differ`.
        """

    def reorder(self, cache: CacheT, parents: Sequence[int]) -> CacheT:
        """Return a cache whose row i continues old row `parents[i]` and reads its input.

        In place: only positions that differ are copied.
        """

    def fork(self, cache: CacheT, parents: Sequence[int], capacity: int | None = None) -> CacheT:
        """Return a new cache whose row i copies row `parents[i]`; the old one is unchanged."""

    def adopt(
        self, cache: CacheT, rows: Sequence[int], other: CacheT, parents: Sequence[int]
    ) -> CacheT:
        """Return a cache whose row `rows[i]` copies row `parents[i]` of `other`, left unchanged."""

    def reset(
        self, cache: CacheT, rows: Sequence[int], inputs: Sequence[int] | None = None
    ) -> CacheT:
        """Return a cache whose given rows are empty; stale contents are never read.

        Row `rows[i]` then reads the encoded input in slot `inputs[i]`, or none without `inputs`.
        """

    def take_snapshots(self, cache: CacheT, rows: Sequence[int]) -> CacheT:  # noqa: ARG002
        """Make rows truncatable to their present length; a row keeps its last few snapshots."""
        return cache

    def truncate(self, cache: CacheT, rows: Sequence[int], lengths: Sequence[int]) -> CacheT:
        """Return a cache whose row `rows[i]` holds only its first `lengths[i]` positions.

        The row still reads its input. A prefix LM's source is not cut. Raises ValueError if a row
        holds fewer, or a ring has evicted positions that it would need (see `Cache.revocable`).
        """


class EncoderDecoderOf(RuntimeOf[CacheT], Protocol[CacheT]):
    """A runtime of an encoder-decoder model: rows read inputs encoded into slots."""

    def encode(self, cache: CacheT, slots: Sequence[int], *source: NDArray[Any]) -> CacheT:
        """Encode inputs once, into slots of the cache that no row reads any more.

        Args:
            cache: with slots for inputs.
            slots: which slots to fill, one for each input.
            source: arguments of the encode program, each [len(slots), ...]. Whisper: log-mel
                features fp32 [n, n_mels, frames]. T5: tokens int64 [n, t], padded at their ends
                with any token, and their lengths, int32 [n]. Moonshine: samples, and the number of
                encoded positions of each (`kvcast.families.moonshine.source_of`). Canary: features
                fp32 [n, frames, n_mels] of equal length, and their numbers of encoded positions,
                int32 [n].

        """

    def stream(
        self,
        cache: CacheT,  # noqa: ARG002
        slot: int,  # noqa: ARG002
        source: StreamedSource,  # noqa: ARG002
        positions: int,  # noqa: ARG002
    ) -> InputStream:
        """Return a stream into a slot that no row reads, with room for `positions`.

        Raises UsageError if the runtime only encodes whole inputs.
        """
        raise UsageError("audio streams only on kvcast's own kernels: runtime native")

    def align(
        self, tokens_s: Int64, cache: CacheT, row: int, scored: TokenProbabilityQuery | None = None
    ) -> Alignment:
        """Return the cross-attention of new tokens of a row; Whisper only.

        The tokens [s], s >= 1, are computed in one call and discarded: `cache` stays the newest
        handle. Probabilities are returned of the tokens `scored`. Raises ValueError without
        alignment heads.
        """

    def attention_by_token(self, scores_hst: Float32, frames: int) -> Float32:
        """Return a weight of each token at each frame, fp32 [s, frames], from scores of all tokens.

        Attention is standardized over tokens, median-filtered over frames and averaged over heads.
        `frames` are recording, not padding; clamped to 1 .. t.
        """

    def dtw(self, weights_nt: Float32) -> Int64:
        """Return the frame at which each row begins on the best monotonic path, [n], ascending.

        `weights_nt` are consecutive rows of `attention_by_token`. The path leads from the first
        frame of the first row to the last frame of the last, in steps of one row, one frame or
        both, with the greatest sum of weights. As in openai-whisper's `dtw_cpu`, a tie between a
        step of one row and a step of both takes neither.
        """


class PrefixRuntimeOf(RuntimeOf[CacheT], Protocol[CacheT]):
    """A prefix LM runtime: the first call on an empty row is the whole source, bidirectional."""

    def embed(self, sources: Sequence[Int64]) -> Float32:
        """Return the pooled vectors fp32 [len(sources), width].

        Raises KvcastError for a source that is empty or longer than the model takes.
        """


# Callers treat a runtime's caches as opaque.
Runtime: TypeAlias = RuntimeOf[Any]
EncoderDecoder: TypeAlias = EncoderDecoderOf[Any]
PrefixRuntime: TypeAlias = PrefixRuntimeOf[Any]


_NAME = "_exclusive"
_locks: "weakref.WeakSet[ForkSafeLock]" = weakref.WeakSet()


class ForkSafeLock:
    """A reentrant lock that is free, or held by the caller, in a forked process."""

    def __init__(self) -> None:
        self._lock = RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Replace the lock if another thread holds it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = RLock()


def exclusive(runtime: Any) -> ForkSafeLock:
    held = vars(runtime)
    # Only the first caller makes one; of two at once, both get the one that was set first.
    lock: ForkSafeLock = held.get(_NAME) or held.setdefault(_NAME, ForkSafeLock())
    return lock


def close_runtime(runtime: Any) -> None:
    """Release a runtime's weights, threads and files, whoever still refers to it.

    Every later use of it raises KvcastError.
    """
    with exclusive(runtime):
        if not is_closed(runtime):
            kind = type(runtime)
            vars(runtime).clear()
            # A class of the same layout, which an object can change to.
            runtime.__class__ = type(kind.__name__, (kind,), {"__getattribute__": _refused})
    gc.collect()  # caches refer to their runtime, in circles


def is_closed(runtime: Any) -> bool:
    return vars(type(runtime)).get("__getattribute__") is _refused


def _refused(runtime: Any, name: str) -> Any:
    if name.startswith("__"):  # Python asks for these
        return object.__getattribute__(runtime, name)
    raise KvcastError("the model is closed: load it again")


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
