"""Beam search as transformers' `_beam_search` (generation/utils.py), token for token."""

from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from typing_extensions import override

from kvcast.decoding.sampling import (
    Likeliest,
    best_first,
    likeliest,
    log_softmax,
    top_k,
)
from kvcast.engine.requests import OVER, Continuations
from kvcast.runtimes.base import Float32
from kvcast.text.logits_pipeline import LogitsProcessors
from kvcast.text.requests import TextRequest, TextSpec, alternatives
from kvcast.text.texts import (
    Alternatives,
    TextGeneration,
)


@dataclass(frozen=True)
class BeamHypothesis:
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    tops: tuple[Alternatives, ...]
    score: float  # sum of the tokens' scores, over length ** length_penalty


class SearchedTexts(TextRequest):
    """The best `n` texts of a search with `beam` rows."""

    def __init__(self, spec: TextSpec) -> None:
        super().__init__(spec, width=spec.params.beam)
        self.hypotheses: list[BeamHypothesis] = []
        # Enough are left even if all end tokens are among the best of each row.
        self._considered = max(2, 1 + len(spec.criteria.end_tokens)) * self.width
        # Of each row; -inf only fills a place when too few sequences continue.
        self._totals = [0.0]
        self._rows = list(range(self.width))
        self._processors = LogitsProcessors(spec.params)
        self._constraint = spec.constraint()
        self._histories = self._processors.histories(spec.criteria.max_new_tokens, spec.prompt)
        self._logprobs_rn = np.empty((1, 0), np.float32)
        self._tops: list[tuple[Alternatives, ...]] = [()] * self.width

    @override
    def advance(self, logits_rv: Float32) -> Continuations:
        self.watch.tick()
        self._note_tops(logits_rv)
        given_rv = logits_rv.copy() if self.spec.params.logprobs else logits_rv
        tokens_rk, logprobs_rk, log_sums_r = self._candidates(logits_rv)
        totals_rk = np.array(self._totals, np.float32)[:, None] + logprobs_rk
        totals, parents, tokens = best_first(totals_rk, tokens_rk, self._considered)
        if totals[0] == -np.inf:  # no row can continue within its grammar
            self._keep_what_there_is()
            return OVER
        generated_rn, spec = self._histories.generated_rn, self.spec
        ended = spec.criteria.are_met(generated_rn, parents, tokens, spec.tokenizer)
        for k in range(self.width):
            if ended[k] and totals[k] > -np.inf:
                logprob = given_rv[parents[k], tokens[k]] - log_sums_r[parents[k]]
                self._finish(totals[k], parents[k], tokens[k], float(logprob))
        # Finished rows only fill up, if too few others are left.
        going_on = sorted(range(len(ended)), key=ended.__getitem__)[: self.width]
        self._totals = [-np.inf if ended[k] else totals[k] for k in going_on]
        parents = [parents[k] for k in going_on]
        tokens = [tokens[k] for k in going_on]
        self._histories.extend(parents, tokens)
        if self._constraint is not None:
            self._constraint.extend(parents, tokens)
        if self.spec.params.logprobs:
            last_r = given_rv[parents, tokens] - log_sums_r[parents]
            before_rn = self._logprobs_rn[parents]
            self._logprobs_rn = np.concatenate([before_rn, last_r[:, None]], axis=1)
        self._tops = [self._tops[parent] for parent in parents]
        return Continuations(self._rows, parents, tokens) if self._can_improve() else OVER

    @override
    def generations(self) -> list[TextGeneration]:
        generations = []
        for hypothesis in self.hypotheses[: self.spec.params.n]:
            text = self.spec.begin()
            logprobs = hypothesis.logprobs or [None] * len(hypothesis.tokens)
            tops = hypothesis.tops or [()] * len(hypothesis.tokens)
            for token, logprob, top in zip(hypothesis.tokens, logprobs, tops, strict=True):
                text.push(token, logprob, top)
            if text.finish_reason is None:
                text.cut()
            generations.append(self.spec.finish(text, self.watch, hypothesis.score))
        return generations

    def _note_tops(self, logits_rv: Float32) -> None:
        if k := self.spec.params.top_logprobs:
            tops = alternatives(logits_rv, k)
            self._tops = [(*before, top) for before, top in zip(self._tops, tops, strict=False)]

    def _candidates(self, logits_rv: Float32) -> Likeliest:
        withheld = self.spec.criteria.withheld(self._histories.length)
        given = likeliest(logits_rv, self._considered + len(withheld))
        renormalised = self.spec.params.renormalize_logits
        if not self._processors.matter(self._histories) and self._constraint is None:
            if renormalised and withheld:
                lost_rk = np.exp(logits_rv[:, withheld] - given.log_sums_r[:, None])
                logprobs_rk = given.logprobs_rk - np.log1p(-lost_rk.sum(1, keepdims=True))
                given = given._replace(logprobs_rk=logprobs_rk)
            for token in withheld:
                given.logprobs_rk[given.tokens_rk == token] = -np.inf
            return given
        logits_rv -= given.log_sums_r[:, None]
        logits_rv[:, withheld] = -np.inf
        self._processors.apply(logits_rv, self._histories)
        if self._constraint is not None:
            self._constraint.apply(logits_rv, self._histories.generated_rn)
        if renormalised:
            log_softmax(logits_rv)
        return Likeliest(*top_k(logits_rv, self._considered), given.log_sums_r)

    def _finish(self, total: float, parent: int, token: int, logprob: float) -> None:
        tokens = (*self._histories.generated_rn[parent].tolist(), token)
        logprobs = None
        if self.spec.params.logprobs:
            logprobs = (*self._logprobs_rn[parent].tolist(), logprob)
        score = self._score(total, len(tokens))
        self.hypotheses.append(BeamHypothesis(tokens, logprobs, self._tops[parent], score))
        self.hypotheses.sort(key=attrgetter("score"), reverse=True)
        del self.hypotheses[self.width :]

    def _keep_what_there_is(self) -> None:
        if not self.hypotheses:
            logprobs = None
            if self.spec.params.logprobs:
                logprobs = tuple(self._logprobs_rn[0].tolist())
            tokens = tuple(self._histories.generated_rn[0].tolist())
            tops = self._tops[0][: len(tokens)]
            score = self._score(self._totals[0], len(tokens))
            self.hypotheses = [BeamHypothesis(tokens, logprobs, tops, score)]

    def _score(self, total: float, length: int) -> float:
        return float(total / length**self.spec.params.length_penalty)

    def _can_improve(self) -> bool:
        if self._totals[0] == -np.inf:
            return False
        if len(self.hypotheses) < self.width:
            return True
        if self.spec.params.early_stopping:
            return False
        best = self._score(self._totals[0], self._histories.length)
        return best > self.hypotheses[-1].score
