"""Strategies of openai/whisper: they choose the tokens of a request's rows, and rank candidates.

A strategy is an immutable choice; `start` makes the search that holds one request's state. At the
first step there is one row; a search returns the rows to continue.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from typing_extensions import override

from kvcast.decoding.logits_processors import LogitsProcessor
from kvcast.decoding.sampling import (
    best_first,
    draw,
    likeliest,
    log_probabilities,
)
from kvcast.decoding.sampling_kernels import Distribution
from kvcast.engine.requests import OVER, Continuations, Histories, Prompt, Request
from kvcast.errors import UsageError
from kvcast.runtimes.base import Float32, Int64


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A finished sequence without its end token, and the sum of its log-probabilities."""

    tokens: tuple[int, ...]
    sum_logprob: float


class Search(Protocol):
    @property
    def generated_rn(self) -> Int64:
        """[rows, n]: the tokens of each live row."""

    def advance(self, logits_rv: Float32) -> Continuations:
        """Take one token for each row from filtered logits [rows, vocab]; `OVER` at the end."""

    def candidates(self) -> list[Candidate]:
        """Return all candidates so far, unfinished ones included."""


class Strategy(Protocol):
    @property
    def width(self) -> int:
        """Most rows of a search."""

    def start(self, eot: int, room: int) -> Search:
        """Begin with one row; `eot` ends a sequence, and so do `room` tokens."""


@dataclass(frozen=True)
class Greedy(Strategy):
    """The likeliest token, always; of equals the first."""

    @property
    @override
    def width(self) -> int:
        return 1

    @override
    def start(self, eot: int, room: int) -> Search:
        return _IndependentRows(_Likeliest(), 1, eot, room)


@dataclass(frozen=True)
class Sampling(Strategy):
    """`samples` rows, drawn at a temperature above 0."""

    temperature: float
    samples: int
    seed: tuple[int, ...]

    @property
    @override
    def width(self) -> int:
        return self.samples

    @override
    def start(self, eot: int, room: int) -> Search:
        draws = _Draws(self.temperature, np.random.default_rng(self.seed), self.samples)
        return _IndependentRows(draws, self.samples, eot, room)


@dataclass(frozen=True)
class BeamSearch(Strategy):
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
        return round(self.beams * self.patience)

    @property
    @override
    def width(self) -> int:
        return self.beams

    @override
    def start(self, eot: int, room: int) -> Search:
        return _Beams(self, eot, room)


@dataclass(frozen=True)
class MaximumLikelihood:
    """Ranks candidates by log-probability over length, or over Google NMT's length penalty.

    The penalty is ((5 + length) / 6) ** alpha (arXiv:1609.08144, section 7).
    """

    length_penalty: float | None = None

    def best(self, candidates: Sequence[Candidate]) -> Candidate:
        return max(candidates, key=self._score)

    def _score(self, candidate: Candidate) -> float:
        length = max(1, len(candidate.tokens))
        if self.length_penalty is None:
            return candidate.sum_logprob / length
        return float(candidate.sum_logprob / ((5 + length) / 6) ** self.length_penalty)


_ASKED_EVERY = 8  # tokens between two questions whether a search is hopeless


class SearchRequest(Request):
    def __init__(
        self,
        prompt: Prompt,  # one token or more
        *,
        strategy: Strategy,
        filters: Sequence[LogitsProcessor],  # in the order in which they apply
        eot: int,
        max_new_tokens: int,  # 1 or more
        probe: int | None = None,  # offset into the prompt whose unprocessed logits to keep
        hopeless: Callable[[Sequence[Candidate]], bool] | None = None,
    ) -> None:
        """Begin; `hopeless`, called now and then, returns whether to stop with the candidates."""
        # The last token is chosen and never fed.
        capacity = prompt.length + max_new_tokens - 1
        super().__init__(prompt, capacity=capacity, width=strategy.width, probe=probe)
        self.search = strategy.start(eot, max_new_tokens)
        self.max_new_tokens = max_new_tokens
        self._filters = filters
        self._hopeless = hopeless

    @override
    def advance(self, logits_rv: Float32) -> Continuations:
        generated_rn = self.search.generated_rn
        for logit_filter in self._filters:
            logit_filter.apply(logits_rv, generated_rn)
        chosen = self.search.advance(logits_rv)
        if not chosen.rows or self._hopeless is None:
            return chosen
        due = self.search.generated_rn.shape[1] % _ASKED_EVERY == 0
        return OVER if due and self._hopeless(self.search.candidates()) else chosen


class _Sampler(Protocol):
    def __call__(
        self, logits_rv: Float32, rows: Sequence[int], places: Sequence[int]
    ) -> tuple[list[int], Float32]:
        """Return a token and its log-probability for each row, from `logits_rv` [places, vocab].

        Raises KvcastError for NaN or infinite logits.
        """


class _Likeliest(_Sampler):
    @override
    def __call__(
        self, logits_rv: Float32, rows: Sequence[int], places: Sequence[int]
    ) -> tuple[list[int], Float32]:
        tokens_r1, logprobs_r1, _ = likeliest(logits_rv, 1)
        return tokens_r1[places, 0].tolist(), logprobs_r1[places, 0]


class _Draws(_Sampler):
    def __init__(self, temperature: float, rng: "np.random.Generator", count: int) -> None:
        self._distribution = Distribution(temperature)
        self._rng = rng
        self._count = count

    @override
    def __call__(
        self, logits_rv: Float32, rows: Sequence[int], places: Sequence[int]
    ) -> tuple[list[int], Float32]:
        uniform = self._rng.random(self._count)
        tokens = [
            draw(logits_rv[place], self._distribution, uniform[row])
            for row, place in zip(rows, places, strict=True)
        ]
        tokens_rk = np.array(tokens).reshape(len(logits_rv), -1)
        return tokens, log_probabilities(logits_rv, tokens_rk).ravel()


class _IndependentRows(Search):
    """Independent rows (greedy or n samples); a finished row is dropped."""

    def __init__(self, sample: _Sampler, count: int, eot: int, room: int) -> None:
        self._sample = sample
        self._count = count
        self._eot = eot
        self._room = room
        self._live = [0]
        self._sums_l = np.zeros(1, np.float32)
        self._histories = Histories(room)
        self._ended: dict[int, Candidate] = {}

    @property
    @override
    def generated_rn(self) -> Int64:
        return self._histories.generated_rn

    @override
    def advance(self, logits_rv: Float32) -> Continuations:
        rows, places = self._live, list(range(len(self._live)))
        if not self._histories.length:  # all begin in the row that read the prompt
            rows, places = list(range(self._count)), [0] * self._count
        tokens, logprobs_l = self._sample(logits_rv, rows, places)
        sums_l = logprobs_l + self._sums_l[places]
        if self._eot in tokens:
            going_on = []
            for i, token in enumerate(tokens):
                if token != self._eot:
                    going_on.append(i)
                    continue
                generated = tuple(self._histories.generated_rn[places[i]].tolist())
                self._ended[rows[i]] = Candidate(tokens=generated, sum_logprob=float(sums_l[i]))
            rows, places, tokens = (
                [values[i] for i in going_on] for values in (rows, places, tokens)
            )
            sums_l = sums_l[going_on]
        parents = [self._live[place] for place in places]
        self._histories.extend(places, tokens)
        self._live, self._sums_l = rows, sums_l
        return (
            OVER if self._histories.length == self._room else Continuations(rows, parents, tokens)
        )

    @override
    def candidates(self) -> list[Candidate]:
        generated, sums = self._histories.generated_rn.tolist(), self._sums_l.tolist()
        candidates = self._ended | {
            row: Candidate(tokens=tuple(tokens), sum_logprob=sum_logprob)
            for row, tokens, sum_logprob in zip(self._live, generated, sums, strict=True)
        }
        return [candidates[row] for row in sorted(candidates)]


class _Beams(Search):
    def __init__(self, strategy: BeamSearch, eot: int, room: int) -> None:
        self._beams = strategy.beams
        self._rows = list(range(strategy.beams))
        self._wanted = strategy.finished_wanted
        self._eot = eot
        self._room = room
        self._finished: list[Candidate] = []
        self._sums_r = np.zeros(1, np.float32)
        self._histories = Histories(room)

    @property
    @override
    def generated_rn(self) -> Int64:
        return self._histories.generated_rn

    @override
    def advance(self, logits_rv: Float32) -> Continuations:
        # One more than there are beams: even if each beam's best is its end, the beams refill.
        tokens_rk, logprobs_rk, _ = likeliest(logits_rv, self._beams + 1)
        scores_rk = self._sums_r[:, None] + logprobs_rk
        sums, parents, tokens = [], [], []
        best = best_first(scores_rk, tokens_rk, 2 * self._beams)
        for score, parent, token in zip(*best, strict=True):
            if token != self._eot:
                sums.append(score)
                parents.append(parent)
                tokens.append(token)
            elif len(self._finished) < self._wanted:
                generated = tuple(self._histories.generated_rn[parent].tolist())
                self._finished.append(Candidate(tokens=generated, sum_logprob=score))
            if len(sums) == self._beams:
                break
        self._sums_r = np.array(sums, np.float32)
        self._histories.extend(parents, tokens)
        if len(self._finished) >= self._wanted or self._histories.length == self._room:
            return OVER
        return Continuations(self._rows, parents, tokens)

    @override
    def candidates(self) -> list[Candidate]:
        """Return the finished sequences; if too few, the best live beams fill up."""
        missing = max(0, self._beams - len(self._finished))
        best = self._sums_r.argsort(kind="stable")[::-1][:missing]
        return self._finished + [
            Candidate(
                tokens=tuple(self._histories.generated_rn[row].tolist()),
                sum_logprob=float(self._sums_r[row]),
            )
            for row in best
        ]
