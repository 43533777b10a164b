"""The interfaces that every runtime meets: one for encoder-decoder models, one for decoder-only.

The cache contract in short: a cache goes in and a cache comes out. What is valid follows from
`lengths` alone, so a fresh sequence is `lengths = 0` and stale contents never matter. Handles
are immutable; the buffers behind them are written in place, so only the newest handle of a
sequence, or an older and shorter one to roll back to, may be used.

Knows nothing of tokens' meaning, strategies or models.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


class CrossCache(Protocol):
    """Cross-attention keys and values of every decoder layer, filled once by `encode`."""

    @property
    def batch(self) -> int:
        """Number of encoded inputs."""


class Cache(Protocol):
    """Self-attention keys and values of `rows` sequences, and the cross cache they read.

    `rows` is a multiple of the cross cache's batch: row r reads input r // (rows // batch).
    """

    @property
    def lengths(self) -> Int32:
        """[rows]: number of positions that each row has seen."""


CrossT = TypeVar("CrossT", bound=CrossCache)
CacheT = TypeVar("CacheT", bound=Cache)


class EncoderDecoderOf(Protocol[CrossT, CacheT]):
    """What a runtime offers, over its own kinds of caches."""

    def encode(self, *source: NDArray[Any]) -> CrossT:
        """Encode inputs once.

        Args:
            source: as the encode program has them, each [batch, ...]. Whisper: log-mel features
                fp32 [batch, n_mels, frames]. T5: tokens int64 [batch, t], padded at their ends
                with any token, and how many there are of each, int32 [batch].

        """

    def new_cache(self, cross: CrossT, rows: int, capacity: int | None = None) -> CacheT:
        """Return an empty cache for `rows` sequences (a multiple of `cross.batch`).

        It holds `capacity` positions a row; None is as many as the model knows.
        """

    def decode(
        self, tokens_rs: Int64, cache: CacheT, positions: Sequence[int] = (-1,)
    ) -> tuple[Float32, CacheT]:
        """Append tokens [rows, S] to the cache; S = prompt length for prefill, 1 for a step.

        Returns fp32 logits [rows, len(positions), vocab] at the given offsets into the S new
        tokens (negative counts from the end), and the grown cache.
        """

    def reorder(self, cache: CacheT, sources: Sequence[int]) -> CacheT:
        """Return a cache whose row i continues old row `sources[i]`.

        `len(sources)` may differ from the old number of rows (1 prompt row fans out to beams,
        finished rows leave) but must stay a multiple of the cross cache's batch, and rows must
        stay with their input. Copies self-attention rows only, and only what differs.
        """

    def reset(self, cache: CacheT, rows: Sequence[int]) -> CacheT:
        """Return a cache whose given rows hold nothing; what was written there stays, unseen."""


class DecoderCache(Protocol):
    """Self-attention keys and values of `rows` sequences; layers with a window are rings."""

    @property
    def lengths(self) -> Int32:
        """[rows]: number of positions that each row has seen."""

    @property
    def capacity(self) -> int:
        """Longest sequence that a row can come to."""


DecoderCacheT = TypeVar("DecoderCacheT", bound=DecoderCache)


class DecoderOnlyOf(Protocol[DecoderCacheT]):
    """What a runtime offers for decoder-only models, over its own kind of cache.

    Rows are independent: any of them may take part in a call, with as many tokens as it has. A
    row that takes no part costs nothing. Where a layer is a ring, an older handle is of no use
    once more than a ring's spare positions were written.
    """

    def new_cache(self, rows: int, capacity: int) -> DecoderCacheT:
        """Return an empty cache of `rows` sequences of up to `capacity` positions."""

    def decode(
        self,
        tokens: Sequence[Int64],
        cache: DecoderCacheT,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, DecoderCacheT]:
        """Append tokens to rows: a chunk of a prompt, or one token for a step.

        Args:
            tokens: for each row that takes part its new tokens [S], S >= 1, of any length each.
            cache: grows.
            rows: which rows take part, ascending, without repeats; None is all.
            positions: offsets into each row's new tokens (negative counts from its end).

        Returns:
            fp32 logits [len(tokens), len(positions), vocab] and the grown cache.

        """

    def reorder(self, cache: DecoderCacheT, sources: Sequence[int]) -> DecoderCacheT:
        """Return a cache, of as many rows, whose row i continues old row `sources[i]`, in place."""

    def fork(
        self, cache: DecoderCacheT, sources: Sequence[int], capacity: int | None = None
    ) -> DecoderCacheT:
        """Return a cache of its own whose row i holds what row `sources[i]` holds.

        The old one stays as it is: a computed prefix can be continued many times.
        """

    def reset(self, cache: DecoderCacheT, rows: Sequence[int]) -> DecoderCacheT:
        """Return a cache whose given rows hold nothing; what was written there stays, unseen."""


# Whoever drives a runtime only hands its caches back to it.
EncoderDecoder: TypeAlias = EncoderDecoderOf[Any, Any]
DecoderOnly: TypeAlias = DecoderOnlyOf[Any]
