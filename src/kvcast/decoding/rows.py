"""Rows that a runtime continues in step, after prompts or sources that were read once.

What a decoding loop sees of a runtime: encoder-decoder and decoder-only models look alike. Knows
nothing of how tokens are chosen, or what they mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from kvcast.decoding.prefixes import Start, read
from kvcast.runtimes.base import DecoderOnly, EncoderDecoder, Float32, Int64

Tokens = Sequence[int]


class Rows(Protocol):
    """Sequences that grow by a token at a time."""

    def step(self, rows: Sequence[int], tokens_r: Int64) -> Float32:
        """Append a token to each of these rows, ascending; return logits [len(rows), vocab].

        A row that was left out once must not be continued.
        """

    def reorder(self, sources: Sequence[int]) -> None:
        """Let row i continue old row `sources[i]`, which must belong to the same prompt."""


class Beginning(Protocol):
    """Prompts that were read, each to be continued any number of times."""

    @property
    def preceding(self) -> Sequence[Tokens]:
        """What each sequence holds before the text."""

    @property
    def logits_bv(self) -> Float32:
        """[prompts, vocab], of each text's first token."""

    def rows(self, copies: int) -> Rows:
        """Return `copies` rows for each prompt, those of one prompt adjacent."""


@dataclass(frozen=True)
class ReadPrompts:
    """Prompts in a decoder-only model's cache; see `Beginning`."""

    runtime: DecoderOnly
    preceding: Sequence[Tokens]
    logits_bv: Float32 = field(repr=False)
    cache: Any = field(repr=False)
    capacity: int

    def rows(self, copies: int) -> "_IndependentRows":
        """See the protocol."""
        sources = _repeated(len(self.preceding), copies)
        return _IndependentRows(self.runtime, self.runtime.fork(self.cache, sources, self.capacity))


@dataclass(frozen=True)
class ReadSources:
    """Encoded sources, and the token that begins each target; see `Beginning`."""

    runtime: EncoderDecoder
    preceding: Sequence[Tokens]
    logits_bv: Float32 = field(repr=False)
    cache: Any = field(repr=False)

    def rows(self, copies: int) -> "_RowsOfSources":
        """See the protocol; all copies share the cross cache."""
        if copies == 1:
            return _RowsOfSources(self.runtime, self.cache)
        sources = _repeated(len(self.preceding), copies)
        return _RowsOfSources(self.runtime, self.runtime.reorder(self.cache, sources))


def read_prompts(
    start: Start, prompts: Sequence[Tokens], *, chunk: int, capacity: int
) -> ReadPrompts:
    """Compute prompts after a start, `chunk` tokens of each in one call.

    `capacity` is how many positions the longest sequence can come to.
    """
    logits_bv, cache = read(start, prompts, chunk)
    preceding = [(*start.tokens, *prompt) for prompt in prompts]
    return ReadPrompts(start.runtime, preceding, logits_bv, cache, capacity)


def read_sources(
    runtime: EncoderDecoder, sources: Sequence[Tokens], *, start_token: int, capacity: int
) -> ReadSources:
    """Encode sources, and decode the token that begins a target; `capacity` as above."""
    lengths_b = np.array([len(source) for source in sources], np.int32)
    tokens_bt = np.zeros((len(sources), lengths_b.max()), np.int64)
    for tokens_t, source in zip(tokens_bt, sources, strict=True):
        tokens_t[: len(source)] = source
    cache = runtime.new_cache(runtime.encode(tokens_bt, lengths_b), len(sources), capacity)
    logits_bpv, cache = runtime.decode(np.full((len(sources), 1), start_token, np.int64), cache)
    return ReadSources(runtime, [(start_token,)] * len(sources), logits_bpv[:, -1], cache)


class _IndependentRows:
    """Rows of a decoder-only model: those that are left out cost nothing."""

    def __init__(self, runtime: DecoderOnly, cache: Any) -> None:
        self._runtime = runtime
        self._cache = cache

    def step(self, rows: Sequence[int], tokens_r: Int64) -> Float32:
        tokens = list(tokens_r[:, None])
        logits_rpv, self._cache = self._runtime.decode(tokens, self._cache, list(rows))
        return logits_rpv[:, -1]

    def reorder(self, sources: Sequence[int]) -> None:
        self._cache = self._runtime.reorder(self._cache, sources)


class _RowsOfSources:
    """Rows of an encoder-decoder model: all grow in step, and some for nothing."""

    def __init__(self, runtime: EncoderDecoder, cache: Any) -> None:
        self._runtime = runtime
        self._cache = cache

    def step(self, rows: Sequence[int], tokens_r: Int64) -> Float32:
        tokens_rs = np.zeros((len(self._cache.lengths), 1), np.int64)
        tokens_rs[list(rows), 0] = tokens_r
        logits_rpv, self._cache = self._runtime.decode(tokens_rs, self._cache)
        logits_rv: Float32 = logits_rpv[:, -1]
        return logits_rv if len(rows) == len(tokens_rs) else logits_rv[list(rows)]

    def reorder(self, sources: Sequence[int]) -> None:
        self._cache = self._runtime.reorder(self._cache, sources)


def _repeated(count: int, copies: int) -> list[int]:
    return [i for i in range(count) for _ in range(copies)]
