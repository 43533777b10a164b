"""The interface that every runtime meets, for all families of models.

The cache contract in short: a cache goes in and a cache comes out. Validity follows from
`lengths` alone, so a fresh sequence is `lengths = 0` and stale contents never matter. Handles
are immutable; the buffers behind them are written in place, so only the newest handle of a
sequence, or an older and shorter one to roll back to, may be used.
"""

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from threading import RLock
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import UsageError
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
    """How tokens attend to the input that their row reads, and how probable some were."""

    scores_hst: Float32
    """[alignment heads, s, t]: scaled products of queries and keys, before any softmax.

    The runtime's own memory, valid until the cache's next alignment.
    """
    probabilities_p: Float32
    """[p]: of the requested tokens, given all tokens before them."""


class InputStream(ABC):
    """An input whose sound is still arriving, in a slot of a cache.

    Attributes:
        held: positions in the slot: also those that `finish` gave, until more sound is heard.

    """

    def __init__(self) -> None:
        self.done = self.held = 0

    @abstractmethod
    def listen(self, samples: Float32) -> None:
        """Encode the samples of further positions, [n, samples of one].

        The first call needs so many that a position is complete.
        """

    @abstractmethod
    def finish(self) -> None:
        """Encode the last positions as if the sound ended here; more of it may follow."""

    @abstractmethod
    def forget(self) -> None:
        """Leave out the positions that `finish` gave."""


class Cache(Protocol):
    """Self-attention keys and values of `rows` sequences; layers with a window are rings.

    For an encoder-decoder model also slots for encoded inputs, which rows read.
    """

    @property
    def lengths(self) -> Int32:
        """[rows]: number of positions that each row has seen."""

    @property
    def capacity(self) -> int:
        """Longest sequence that a row can hold."""

    def revocable(self, row: int, kept: int, most: int) -> int:
        """Return how many positions a row can take on trial: `truncate` can take them off again.

        They follow `kept` new ones that stay; it is `most` where neither capacity nor a ring is in
        the way.
        """

    @property
    def has_snapshots(self) -> bool:
        """Whether rows are truncated to snapshots (`RuntimeOf.take_snapshots`)."""

    def reachable(self, row: int, most: int) -> int:
        """Return the longest length, up to `most`, that `RuntimeOf.truncate` can cut a row to.

        0: only `RuntimeOf.reset` can.
        """


CacheT = TypeVar("CacheT", bound=Cache)


class RuntimeOf(Protocol[CacheT]):
    """The interface of a runtime for any model, over its own kind of cache.

    Rows are independent: any of them may take part in a call, each with as many tokens as it has.
    Where a layer is a ring, an older handle is of no use once the ring has let positions go;
    `truncate` tells.

    Attributes:
        prompts_differ: whether `prefill` computes positions otherwise than `decode`. Then a prompt
            may only continue positions of a row that `prefill` computed, for its results would
            depend on what the row held before.

    """

    prompts_differ: bool

    def new_cache(self, rows: int, capacity: int, inputs: int = 0) -> CacheT:
        """Return an empty cache of `rows` sequences of up to `capacity` positions.

        An encoder-decoder model's has `inputs` free slots for encoded inputs as well, and no more
        positions than the model knows.
        """

    def row_bytes(self, capacity: int) -> int:
        """Return the memory of a row of such a cache, in bytes; inputs are not counted."""

    def decode(
        self,
        tokens: Tokens,
        cache: CacheT,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, CacheT]:
        """Append tokens to rows: one for a step, or several whose results are those of steps.

        Args:
            tokens: for each row that takes part its new tokens [S], S >= 1, of any length each;
                copied, so the caller may change them afterwards.
            cache: grows.
            rows: which rows take part, ascending, without repeats; None is all.
            positions: offsets into each row's new tokens (negative counts from its end).

        Returns:
            fp32 logits [len(tokens), len(positions), vocab] and the grown cache. The logits are
            the runtime's own memory, valid until its next call; the caller may overwrite them.

        """

    def prefill(
        self,
        tokens: Tokens,
        cache: CacheT,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, CacheT]:
        """Append a chunk of a prompt to each row; arguments and results are those of `decode`.

        The results do not depend on how a prompt is cut into chunks. A runtime may compute them
        with narrower numbers than steps; `prompts_differ` tells.
        """

    def reorder(self, cache: CacheT, parents: Sequence[int]) -> CacheT:
        """Return a cache whose row i continues old row `parents[i]`, in place.

        There are as many parents as rows. A row reads the input that its parent reads. Only what
        differs is copied.
        """

    def fork(self, cache: CacheT, parents: Sequence[int], capacity: int | None = None) -> CacheT:
        """Return a new cache whose row i is a copy of row `parents[i]`.

        The old one stays as it is: a computed prefix can be continued many times. Decoder-only.
        """

    def adopt(
        self, cache: CacheT, rows: Sequence[int], other: CacheT, parents: Sequence[int]
    ) -> CacheT:
        """Return a cache whose row `rows[i]` is a copy of row `parents[i]` of another cache.

        That cache stays as it is. Decoder-only.
        """

    def reset(
        self, cache: CacheT, rows: Sequence[int], inputs: Sequence[int] | None = None
    ) -> CacheT:
        """Return a cache whose given rows hold nothing; what was written there stays, unseen.

        Row `rows[i]` reads the encoded input in slot `inputs[i]` from now on; without `inputs`
        the rows read none and are free.
        """

    def take_snapshots(self, cache: CacheT, rows: Sequence[int]) -> CacheT:  # noqa: ARG002
        """Return a cache whose given rows can be truncated to what they hold now.

        For small layers that evict positions; a row keeps its last few snapshots.
        """
        return cache

    def truncate(self, cache: CacheT, rows: Sequence[int], lengths: Sequence[int]) -> CacheT:
        """Return a cache whose row `rows[i]` holds only its first `lengths[i]` positions.

        The row still reads its input. Nothing is computed or copied. A source read as a
        prefix is not cut.

        Raises:
            ValueError: a row holds fewer, or a ring has let positions go that the row would need;
                `Cache.revocable` says beforehand how many can be taken off.

        """


class EncoderDecoderOf(RuntimeOf[CacheT], Protocol[CacheT]):
    """A runtime of an encoder-decoder model: rows read inputs that were encoded into slots."""

    def encode(self, cache: CacheT, slots: Sequence[int], *source: NDArray[Any]) -> CacheT:
        """Encode inputs once, into slots of the cache that no row reads any more.

        Args:
            cache: from `new_cache`, with slots for inputs.
            slots: which slots to fill, one for each input.
            source: as the encode program has them, each [len(slots), ...]. Whisper: log-mel
                features fp32 [n, n_mels, frames]. T5: tokens int64 [n, t], padded at their ends
                with any token, and how many there are of each, int32 [n]. Moonshine: samples,
                and how many positions each sound becomes (`kvcast.families.moonshine.source_of`).
                Canary: features fp32 [n, frames, n_mels] of one length, and how many positions
                they become, int32 [n].

        """

    def stream(
        self,
        cache: CacheT,  # noqa: ARG002
        slot: int,  # noqa: ARG002
        source: StreamedSource,  # noqa: ARG002
        positions: int,  # noqa: ARG002
    ) -> InputStream:
        """Return a stream into a slot that no row reads, with room for so many positions.

        Raises UsageError where a runtime encodes whole inputs alone.
        """
        raise UsageError("sound is encoded as it comes on kvcast's own kernels: runtime native")

    def align(
        self, tokens_s: Int64, cache: CacheT, row: int, scored: TokenProbabilityQuery | None = None
    ) -> Alignment:
        """Return the attention of new tokens of a row to its input: Whisper's alone.

        The tokens are read in one call, and forgotten: the cache that was given stays the newest.

        Args:
            tokens_s: [s], s >= 1.
            cache: in which `row` reads an input.
            row: which.
            scored: one token or more whose probabilities are wanted; None if none are.

        Raises:
            ValueError: the model has no alignment heads.

        """

    def attention_by_token(self, scores_hst: Float32, frames: int) -> Float32:
        """Return how much each token stands out at each frame, fp32 [s, frames].

        Attention is normalised so that a token stands out where it attends more than the others,
        smoothed by medians over frames, and averaged over heads.

        Args:
            scores_hst: of all tokens of a call to `align`.
            frames: how many of the t frames are of the recording; the rest is padding. At least 1,
                at most t; others count as these.

        """

    def dtw(self, weights_nt: Float32) -> Int64:
        """Return the frame at which each row begins on the best monotonic path, [n], ascending.

        The path leads from the first frame of the first row to the last frame of the last, in
        steps of one row, one frame or both, over the greatest sum of weights. As in
        openai-whisper's `dtw_cpu`, where a step of one row is as good as one of both, neither is
        taken.

        Args:
            weights_nt: n consecutive rows of a result of `attention_by_token`.

        """


class PrefixRuntimeOf(RuntimeOf[CacheT], Protocol[CacheT]):
    """A runtime whose first call on an empty row reads a whole source, whose positions see it all.

    Everything after it is target. This follows from lengths, so callers drive it as any other.
    """

    def embed(self, sources: Sequence[Int64]) -> Float32:
        """Return the pooled vector of each source, fp32 [len(sources), width].

        Raises KvcastError for a source that is empty or longer than the model takes.
        """


# Callers treat a runtime's caches as opaque.
Runtime: TypeAlias = RuntimeOf[Any]
EncoderDecoder: TypeAlias = EncoderDecoderOf[Any]
PrefixRuntime: TypeAlias = PrefixRuntimeOf[Any]


_NAME = "_exclusive"
_locks: "weakref.WeakSet[ForkSafeLock]" = weakref.WeakSet()


class ForkSafeLock:
    """A lock that its thread may take again, and that a forked process finds free or its own."""

    def __init__(self) -> None:
        self._lock = RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Make the lock anew if another thread holds it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = RLock()


def exclusive(runtime: Any) -> ForkSafeLock:
    """Return the lock of a runtime, the same one for all callers."""
    held = vars(runtime)
    # Only the first caller makes one; of two at once, both get the one that was set first.
    lock: ForkSafeLock = held.get(_NAME) or held.setdefault(_NAME, ForkSafeLock())
    return lock


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
