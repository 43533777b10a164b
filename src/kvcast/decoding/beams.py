"""Beam search in which finished sequences compete by score: log-probability over length ** penalty.

The rules are those of Hugging Face transformers (generation/utils.py, `_beam_search`), so that its
results are met token for token. Knows neither runtimes nor what tokens mean,
and searches any number of inputs in step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter

import numpy as np

from kvcast.decoding.numerics import top_k
from kvcast.errors import UsageError
from kvcast.runtimes.base import Float32

Ended = Callable[[Sequence[int]], bool]
"""Tells of all tokens that were sampled whether the last of them ends the sequence."""


@dataclass(frozen=True)
class Hypothesis:
    """A finished sequence, with the token that ended it.

    Attributes:
        tokens: sampled.
        logprobs: of each token, as the model gave it.
        score: sum of what the tokens were chosen by, over length ** length_penalty.

    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    score: float


@dataclass(frozen=True)
class NormalisedBeamSearch:
    """The `beams` best sequences of each input.

    Attributes:
        beams: sequences followed at once, and kept once finished.
        length_penalty: above 0 favours long sequences, below 0 short ones.
        early_stopping: whether an input is over as soon as `beams` sequences have finished;
            otherwise once the best under way, were it to end now, would not be among them.

    """

    beams: int
    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise UsageError(f"beam must be 1 or more, not {self.beams}")
        if not -np.inf < self.length_penalty < np.inf:
            raise UsageError(f"length_penalty must be a finite number, not {self.length_penalty}")

    def score(self, total: float, length: int) -> float:
        """Return what finished sequences are ranked by."""
        return float(total / length**self.length_penalty)

    def start(self, ended: Sequence[Ended], end_tokens: int = 1) -> "BeamsUnderWay":
        """Begin with one row for each input.

        `ended`, one for each input, must be true of sequences as long as may be; `end_tokens` is
        how many tokens can end a sequence, so that enough others are considered beside them.
        """
        return BeamsUnderWay(self, ended, end_tokens)


@dataclass(frozen=True)
class _Beam:
    """One row; a total of -inf only fills a place, when too few sequences go on."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    total: float = 0.0

    def extended(self, token: int, logprob: float, total: float) -> "_Beam":
        return _Beam((*self.tokens, token), (*self.logprobs, logprob), total)


class BeamsUnderWay:
    """Live beams and finished sequences of all inputs.

    An input has one row before the first step, and `beams` rows after it; once no step can change
    what it found, its rows take no part.
    """

    def __init__(
        self, search: NormalisedBeamSearch, ended: Sequence[Ended], end_tokens: int
    ) -> None:
        self._search = search
        self._ended = ended
        self._considered = max(2, 1 + end_tokens) * search.beams
        self._size = 1
        self._live = {i: [_Beam()] for i in range(len(ended))}
        self._finished: list[list[Hypothesis]] = [[] for _ in ended]

    @property
    def inputs(self) -> list[int]:
        """Those that are not over."""
        return list(self._live)

    @property
    def rows(self) -> list[int]:
        """Rows of these inputs, ascending; those of input i begin at i * beams."""
        return [i * self._size + k for i in self._live for k in range(self._size)]

    @property
    def histories(self) -> list[tuple[int, ...]]:
        """What each of these rows has sampled, all of one length."""
        return [beam.tokens for beams in self._live.values() for beam in beams]

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return up to `beams` finished sequences of each input, best first."""
        return self._finished

    def advance(self, scores_rv: Float32, logprobs_rv: Float32) -> list[int]:
        """Choose continuations of each input's rows.

        Args:
            scores_rv: [len(rows), vocab], to choose by: log-probabilities, or what filters made of
                them. The vocabulary must be as large as the number of beams.
            logprobs_rv: the same shape, to remember: the same array if there are no filters.

        Returns:
            For each row of all inputs, the old row that it continues: itself where it takes no
            part.

        """
        beams, size = self._search.beams, self._size
        sources = list(range(len(self._finished) * beams))
        live: dict[int, list[_Beam]] = {}
        for number, (i, rows) in enumerate(self._live.items()):
            part = slice(number * size, (number + 1) * size)
            considered = self._continuations(rows, scores_rv[part], logprobs_rv[part])
            ended = [self._ended[i](beam.tokens) for _, beam in considered]
            # Those that ended only fill up, if too few others are left.
            going_on = sorted(range(len(considered)), key=ended.__getitem__)[:beams]
            sources[i * beams : (i + 1) * beams] = [i * size + considered[k][0] for k in going_on]
            best_first = [
                replace(considered[k][1], total=-np.inf) if ended[k] else considered[k][1]
                for k in going_on
            ]
            self._finish(i, [beam for k, (_, beam) in enumerate(considered[:beams]) if ended[k]])
            if self._can_improve(i, best_first[0]):
                live[i] = best_first
        self._live, self._size = live, beams
        return sources

    def _continuations(
        self, beams: Sequence[_Beam], scores_rv: Float32, logprobs_rv: Float32
    ) -> list[tuple[int, _Beam]]:
        """Return the best continuations of one input, best first, each with its beam's number."""
        found: list[tuple[float, int, int]] = []
        for k, (beam, scores_v) in enumerate(zip(beams, scores_rv, strict=True)):
            tokens_k = top_k(scores_v, min(self._considered, scores_v.size))
            totals_k = np.float32(beam.total) + scores_v[tokens_k]
            pairs = zip(totals_k.tolist(), tokens_k.tolist(), strict=True)
            found += [(total, k, token) for total, token in pairs]
        found.sort(key=itemgetter(0), reverse=True)
        return [
            (k, beams[k].extended(token, float(logprobs_rv[k, token]), total))
            for total, k, token in found[: self._considered]
        ]

    def _finish(self, i: int, beams: list[_Beam]) -> None:
        """Let sequences that ended compete with those that ended before."""
        for beam in beams:
            if beam.total > -np.inf:
                score = self._search.score(beam.total, len(beam.tokens))
                self._finished[i].append(Hypothesis(beam.tokens, beam.logprobs, score))
        self._finished[i].sort(key=attrgetter("score"), reverse=True)
        del self._finished[i][self._search.beams :]

    def _can_improve(self, i: int, best: _Beam) -> bool:
        """Tell whether an input's best live beam may still come among its finished ones."""
        if best.total == -np.inf:
            return False
        if len(self._finished[i]) < self._search.beams:
            return True
        if self._search.early_stopping:
            return False
        return self._search.score(best.total, len(best.tokens)) > self._finished[i][-1].score
