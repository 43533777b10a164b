"""A runtime without a model: its logits are a function of an input and what was written after it.

It holds its caller to the interface: rows read inputs that were encoded, slots are not filled while
rows read them, the context is not exceeded, and nothing is reordered without need.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.recomputing_runtime import Recomputed, RecomputingRuntime, Written
from kvcast.runtimes.base import Alignment, TokenProbabilityQuery
from kvcast.whisper.requests import Features

Script = Callable[[int, tuple[int, ...]], NDArray[np.float32]]
"""Input's number and all its tokens so far, prompt included, to logits [vocab]."""


class ScriptedRuntime(RecomputingRuntime):
    """`encoded` lists, for each encode, what was in its slots; `aligned` inputs and tokens."""

    def __init__(self, script: Script, context: int = 448) -> None:
        super().__init__(lambda _: np.empty((0, 0), np.float32))
        self.script = script
        self.context = context
        self.encoded: list[list[int]] = []
        self.aligned: list[tuple[int, Written]] = []

    def new_cache(self, rows: int, capacity: int, inputs: int = 0) -> Recomputed:
        assert capacity <= self.context
        assert inputs >= 1
        return super().new_cache(rows, capacity, inputs)

    def encode(self, cache: Recomputed, slots: Sequence[int], *source: NDArray[Any]) -> Recomputed:
        encoded = self.numbers(*source)
        assert len(slots) == len(set(slots)) == len(encoded)
        assert not set(slots) & set(cache.reads), "a row reads the input"
        inputs = list(cache.inputs)
        for slot, number in zip(slots, encoded, strict=True):
            inputs[slot] = number
        self.encoded.append(encoded)
        return replace(cache, inputs=tuple(inputs))

    def numbers(self, *source: NDArray[Any]) -> list[int]:
        """The first number of an input says which it is."""
        (features_bmt,) = source
        return [int(features_mt.flat[0]) for features_mt in features_bmt]

    def align(
        self, tokens_s: NDArray[np.int64], cache: Recomputed, row: int, asked: TokenProbabilityQuery
    ) -> Alignment:
        """The only head's scores of a token are the input's number and the token."""
        assert not cache.written[row]
        written = tuple(tokens_s.tolist())
        logits_pv = self.logits(cache, row, written, len(written), asked.positions)
        number = cache.inputs[cache.reads[row] or 0]
        self.aligned.append((number, written))
        scores_hst = np.array([[(number, token) for token in written]], np.float32)
        weights_pv = np.exp(logits_pv + asked.among_v)
        chosen_p = weights_pv[range(len(weights_pv)), asked.tokens_p]
        return Alignment(scores_hst, chosen_p / weights_pv.sum(axis=1))

    def attention_by_token(
        self, scores_hst: NDArray[np.float32], frames: int
    ) -> NDArray[np.float32]:
        """Those of the only head as they are, so that they can be told apart."""
        return scores_hst[0, :, :frames]

    def dtw(self, weights_nt: NDArray[np.float32]) -> NDArray[np.int64]:
        """Each row begins at a frame of its own."""
        return np.arange(len(weights_nt))

    def logits(
        self, cache: Recomputed, row: int, written: Written, new: int, positions: Sequence[int]
    ) -> NDArray[np.float32]:
        slot = cache.reads[row]
        assert slot is not None, "the row reads no input"
        number = cache.inputs[slot]
        assert number is not None, "the input was not encoded"
        ends = [len(written) - new + position % new + 1 for position in positions]
        return np.stack([self.script(number, written[:end]) for end in ends])


def windows(*inputs: int) -> list[Features]:
    """What `encode` turns into these inputs."""
    return [Features(np.full((1, 1), number, np.float32)) for number in inputs]


def random_script(vocab: int, seed: int, bias: Callable[[int], dict[int, float]]) -> Script:
    """Normally distributed logits, and what `bias` adds to some tokens at each length."""

    @cache
    def logits(number: int, written: tuple[int, ...]) -> NDArray[np.float32]:
        logits_v = np.random.default_rng((seed, number, *written)).normal(0, 2, vocab)
        for token, more in bias(len(written)).items():
            logits_v[token] += more
        return logits_v.astype(np.float32)

    return logits
