"""Strategies: which token each row takes next, which rows go on, and what the candidates are.

A strategy is an immutable choice; `start` makes the search that holds one generation's state. At
the first step there is one row per input; a search answers with as many rows as it follows. Knows
neither runtimes nor filters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvcast.decoding.numerics import log_probabilities, top_k
from kvcast.errors import UsageError
from kvcast.runtimes.base import Float32


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A finished sequence without its end token, and the sum of its log-probabilities."""

    tokens: tuple[int, ...]
    sum_logprob: float


class Search(Protocol):
    """One generation under way."""

    @property
    def histories(self) -> list[list[int]]:
        """What each row has sampled, all of one length; rows of one input are adjacent."""

    @property
    def done(self) -> bool:
        """Whether more steps cannot change the candidates."""

    def advance(self, logits_rv: Float32) -> list[int]:
        """Sample one token for each row from filtered logits [rows, vocab].

        Returns, for each row that goes on, the old row that it continues.
        """

    def candidates(self) -> list[list[Candidate]]:
        """Return each input's candidates; ask once, at the end."""


class Strategy(Protocol):
    """How to search."""

    def start(self, inputs: int, eot: int) -> Search:
        """Begin with one row for each of `inputs` inputs; `eot` ends a sequence."""


@dataclass(frozen=True)
class Greedy:
    """The likeliest token, always; of equals the first."""

    def start(self, inputs: int, eot: int) -> Search:
        """See the protocol."""
        return _IndependentRows(_likeliest, inputs, 1, eot)


@dataclass(frozen=True)
class Sampling:
    """`samples` rows for each input, drawn at a temperature above 0."""

    temperature: float
    samples: int
    seed: tuple[int, ...]

    def start(self, inputs: int, eot: int) -> Search:
        """See the protocol."""
        draw = _Draw(self.temperature, np.random.default_rng(self.seed))
        return _IndependentRows(draw, inputs, self.samples, eot)


@dataclass(frozen=True)
class BeamSearch:
    """OpenAI's beam search (openai/whisper, decoding.py) with patience (arXiv:2204.05424).

    Finished sequences leave and the beams refill, until round(beams * patience) have finished.
    """

    beams: int
    patience: float = 1.0

    def __post_init__(self) -> None:
        if self.finished_wanted < 1:
            raise UsageError(
                f"patience {self.patience:g} with {self.beams} beams rounds to no finished beam: "
                "raise it"
            )

    @property
    def finished_wanted(self) -> int:
        """Finished sequences that end the search of an input."""
        return round(self.beams * self.patience)

    def start(self, inputs: int, eot: int) -> Search:
        """See the protocol."""
        return _Beams(self, inputs, eot)


@dataclass(frozen=True)
class MaximumLikelihood:
    """Ranks candidates by log-probability over length, or over Google NMT's length penalty.

    The penalty is ((5 + length) / 6) ** alpha (arXiv:1609.08144, section 7).
    """

    length_penalty: float | None = None

    def best(self, candidates: Sequence[Candidate]) -> Candidate:
        """Return the best; of equals the first."""
        return max(candidates, key=self._score)

    def _score(self, candidate: Candidate) -> float:
        length = max(1, len(candidate.tokens))
        if self.length_penalty is None:
            return candidate.sum_logprob / length
        return float(candidate.sum_logprob / ((5 + length) / 6) ** self.length_penalty)


class _Chooser(Protocol):
    def __call__(self, logits_rv: Float32, count: int) -> NDArray[np.intp]:
        """Choose `count` tokens for each row, [rows, count]."""


def _likeliest(logits_rv: Float32, count: int) -> NDArray[np.intp]:
    likeliest_r1: NDArray[np.intp] = logits_rv.argmax(axis=1, keepdims=True)
    return np.repeat(likeliest_r1, count, axis=1)


class _Draw:
    """Draws by inverting the cumulative distribution."""

    def __init__(self, temperature: float, rng: np.random.Generator) -> None:
        self._temperature = temperature
        self._rng = rng

    def __call__(self, logits_rv: Float32, count: int) -> NDArray[np.intp]:
        return np.stack([self._from_row(row_v, count) for row_v in logits_rv])

    def _from_row(self, row_v: Float32, count: int) -> NDArray[np.intp]:
        cumulative = np.exp((row_v - row_v.max()) / self._temperature).cumsum(dtype=np.float64)
        # Rounding must not carry a draw to the very end, past the last token that has any weight.
        end = np.nextafter(cumulative[-1], 0)
        draws = np.minimum(self._rng.random(count) * cumulative[-1], end)
        drawn: NDArray[np.intp] = cumulative.searchsorted(draws, side="right")
        return drawn


class _IndependentRows:
    """Rows that never meet: greedy, or several samples. A row that ended keeps its end token."""

    def __init__(self, choose: _Chooser, inputs: int, group: int, eot: int) -> None:
        self._choose = choose
        self._inputs = inputs
        self._group = group
        self._eot = eot
        self._sums_r = np.zeros(inputs, np.float32)
        self.histories: list[list[int]] = [[] for _ in range(inputs)]
        self.done = False

    def advance(self, logits_rv: Float32) -> list[int]:
        fan_out = self._inputs * self._group // len(self.histories)
        tokens_rf = self._choose(logits_rv, fan_out)
        logprobs = log_probabilities(logits_rv, tokens_rf).ravel()
        sources = [row for row in range(len(self.histories)) for _ in range(fan_out)]
        ended = [self._has_ended(self.histories[row]) for row in sources]
        logprobs[ended] = 0
        tokens = [
            self._eot if over else token
            for over, token in zip(ended, tokens_rf.ravel().tolist(), strict=True)
        ]
        self._sums_r = self._sums_r[sources] + logprobs
        self.histories = _extended(self.histories, sources, tokens)
        self.done = all(token == self._eot for token in tokens)
        return sources

    def candidates(self) -> list[list[Candidate]]:
        found = [
            Candidate(tokens=_before(history, self._eot), sum_logprob=sum_logprob)
            for history, sum_logprob in zip(self.histories, self._sums_r.tolist(), strict=True)
        ]
        size = len(found) // self._inputs
        return [found[i : i + size] for i in range(0, len(found), size)]

    def _has_ended(self, history: list[int]) -> bool:
        return bool(history) and history[-1] == self._eot


class _Beams:
    """The live beams of all inputs, and what has finished."""

    def __init__(self, strategy: BeamSearch, inputs: int, eot: int) -> None:
        self._beams = strategy.beams
        self._wanted = strategy.finished_wanted
        self._eot = eot
        self._finished: list[list[Candidate]] = [[] for _ in range(inputs)]
        # What an input came to when its search ended; the others of its batch go on.
        self._settled: dict[int, list[Candidate]] = {}
        self._sums_r = np.zeros(inputs, np.float32)
        self.histories: list[list[int]] = [[] for _ in range(inputs)]

    @property
    def done(self) -> bool:
        return len(self._settled) == len(self._finished)

    def advance(self, logits_rv: Float32) -> list[int]:
        # One more than there are beams: even if each beam's best is its end, the beams refill.
        tokens_rk = np.stack([top_k(row_v, self._beams + 1) for row_v in logits_rv])
        scores_rk = self._sums_r[:, None] + log_probabilities(logits_rv, tokens_rk)
        size = len(self.histories) // len(self._finished)
        live: list[tuple[float, int, int]] = []
        for i, finished in enumerate(self._finished):
            rows = range(i * size, (i + 1) * size)
            live += self._survivors(finished, rows, scores_rk.tolist(), tokens_rk.tolist())
        scores, sources, tokens = (list(column) for column in zip(*live, strict=True))
        self._sums_r = np.asarray(scores, np.float32)
        self.histories = _extended(self.histories, sources, tokens)
        for i, finished in enumerate(self._finished):
            if len(finished) >= self._wanted and i not in self._settled:
                self._settled[i] = self._filled_up(i)
        return sources

    def candidates(self) -> list[list[Candidate]]:
        inputs = range(len(self._finished))
        return [self._settled[i] if i in self._settled else self._filled_up(i) for i in inputs]

    def _filled_up(self, i: int) -> list[Candidate]:
        """Return an input's finished sequences; if too few, the best under way stand in."""
        size = len(self.histories) // len(self._finished)
        sums_g = self._sums_r[i * size : (i + 1) * size]
        best_first = sums_g.argsort(kind="stable")[::-1]
        missing = max(0, self._beams - len(self._finished[i]))
        return self._finished[i] + [
            Candidate(tokens=tuple(self.histories[i * size + j]), sum_logprob=float(sums_g[j]))
            for j in best_first[:missing]
        ]

    def _survivors(
        self,
        finished: list[Candidate],
        rows: range,
        scores_rk: list[list[float]],
        tokens_rk: list[list[int]],
    ) -> list[tuple[float, int, int]]:
        """Take the best continuations (score, row, token) of one input; ended ones finish."""
        continuations = [
            (score, row, token)
            for row in rows
            for score, token in zip(scores_rk[row], tokens_rk[row], strict=True)
        ]
        continuations.sort(key=itemgetter(0), reverse=True)
        live: list[tuple[float, int, int]] = []
        for score, row, token in continuations:
            if token != self._eot:
                live.append((score, row, token))
            elif len(finished) < self._wanted:
                tokens = tuple(self.histories[row])
                finished.append(Candidate(tokens=tokens, sum_logprob=score))
            if len(live) == self._beams:
                break
        return live


def _extended(histories: list[list[int]], sources: list[int], tokens: list[int]) -> list[list[int]]:
    return [[*histories[row], token] for row, token in zip(sources, tokens, strict=True)]


def _before(history: list[int], eot: int) -> tuple[int, ...]:
    return tuple(history[: history.index(eot)] if eot in history else history)
