"""Logits processors change logits in place; -inf bars a token, then the sampler chooses one.

Penalties are those of Hugging Face transformers (generation/logits_process.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from typing_extensions import override

from kvcast.decoding.params import SamplingParams
from kvcast.decoding.sampling import draw, likeliest_token, penalise
from kvcast.decoding.sampling_kernels import Distribution, Penalties
from kvcast.runtimes.base import Float32, Int64

_WEAKEST = 1e-6
"""Penalties below this, or above its inverse, would overflow in fp32; all of them say never."""


class LogitsProcessor(Protocol):
    def apply(self, logits_rv: Float32, generated_rn: Int64) -> None:
        """Change logits [rows, vocab], given the generated tokens [rows, n]."""


@dataclass(frozen=True)
class RepetitionPenalty(LogitsProcessor):
    """Divides positive logits of generated tokens, multiplies negative ones (arXiv:1909.05858)."""

    penalty: float

    @override
    def apply(self, logits_rv: Float32, generated_rn: Int64) -> None:
        penalty = min(max(self.penalty, _WEAKEST), 1 / _WEAKEST)
        penalise(logits_rv, generated_rn, Penalties(repetition=penalty))


@dataclass(frozen=True)
class OccurrencePenalties(LogitsProcessor):
    """OpenAI's penalties: `presence` is subtracted once, `frequency` once per occurrence."""

    presence: float
    frequency: float

    @override
    def apply(self, logits_rv: Float32, generated_rn: Int64) -> None:
        penalties = Penalties(presence=self.presence, frequency=self.frequency)
        penalise(logits_rv, generated_rn, penalties)


class LogitBias(LogitsProcessor):
    def __init__(self, biases: Mapping[int, float]) -> None:
        self._tokens = np.array(list(biases), np.intp)
        self._biases = np.array(list(biases.values()), np.float32)

    @override
    def apply(self, logits_rv: Float32, generated_rn: Int64) -> None:
        logits_rv[:, self._tokens] += self._biases


@dataclass(frozen=True)
class NoRepeatNgram(LogitsProcessor):
    """Bars tokens that would repeat `size` tokens of a row's text."""

    size: int

    @override
    def apply(self, logits_rv: Float32, generated_rn: Int64) -> None:
        if generated_rn.shape[1] < self.size:
            return
        ngrams_rnk = sliding_window_view(generated_rn, self.size, axis=1)
        begun_r1k = generated_rn[:, None, generated_rn.shape[1] - self.size + 1 :]
        again_rn = (ngrams_rnk[:, :, :-1] == begun_r1k).all(axis=2)
        rows, places = np.nonzero(again_rn)
        logits_rv[rows, ngrams_rnk[rows, places, -1]] = -np.inf


class NoSourceNgram(LogitsProcessor):
    """Bars tokens that would repeat `size` tokens of the source."""

    def __init__(self, size: int, source_t: Int64) -> None:
        self._begun = size - 1
        self._following: dict[tuple[int, ...], list[int]] = {}
        tokens = source_t.tolist()
        for *begun, last in zip(*(tokens[i:] for i in range(size)), strict=False):
            self._following.setdefault(tuple(begun), []).append(last)

    @override
    def apply(self, logits_rv: Float32, generated_rn: Int64) -> None:
        if generated_rn.shape[1] < self._begun:
            return
        last_rk = generated_rn[:, generated_rn.shape[1] - self._begun :]
        for row, begun in enumerate(map(tuple, last_rk.tolist())):
            logits_rv[row, self._following.get(begun, [])] = -np.inf


class SuppressSequences(LogitsProcessor):
    """Bars the last token of these sequences of two or more tokens."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._following: dict[int, dict[tuple[int, ...], list[int]]] = {}
        for *begun, last in sequences:
            of_length = self._following.setdefault(len(begun), {})
            of_length.setdefault(tuple(begun), []).append(last)

    @override
    def apply(self, logits_rv: Float32, generated_rn: Int64) -> None:
        for begun, following in self._following.items():
            if begun <= generated_rn.shape[1]:
                last_rk = generated_rn[:, generated_rn.shape[1] - begun :]
                for row, last in enumerate(map(tuple, last_rk.tolist())):
                    logits_rv[row, following.get(last, [])] = -np.inf


class SuppressTokens(LogitsProcessor):
    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = np.asarray(tokens, np.intp)

    @override
    def apply(self, logits_rv: Float32, generated_rn: Int64) -> None:
        logits_rv[:, self._tokens] = -np.inf


class Sampler:
    """Chooses the tokens of one sequence, from its own random stream."""

    def __init__(self, params: SamplingParams, stream: int = 0) -> None:
        """Begin a sequence; different streams give independent random values."""
        self._distribution: Distribution | None = None
        if params.temperature > 0:
            self._distribution = Distribution(
                params.temperature, params.top_k, params.top_p, params.min_p
            )
        self._rng = np.random.default_rng((params.seed, stream))

    def __call__(self, logits_v: Float32) -> int:
        """Choose from logits [vocab], unchanged; raises KvcastError if they are NaN or infinite."""
        if self._distribution is None:
            return likeliest_token(logits_v)
        return draw(logits_v, self._distribution, self._rng.random())
