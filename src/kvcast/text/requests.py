"""Requests for texts: one that a sampler writes, or several that compete in a beam search.

The beam search is that of Hugging Face transformers (generation/utils.py, `_beam_search`), so that
its results are met token for token: finished sequences compete by log-probability over
length ** length_penalty. Knows no runtime.
"""

from abc import abstractmethod
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from typing_extensions import override

from kvcast.decoding.logits_processors import Sampler
from kvcast.decoding.numerics import (
    Likeliest,
    best_first,
    likeliest,
    log_probabilities,
    log_softmax,
    top_k,
)
from kvcast.decoding.params import SamplingParams
from kvcast.decoding.speculative_decoding import Speculation, Speculations
from kvcast.engine.requests import OVER, Continuations, Prompt, Request
from kvcast.errors import KvcastError
from kvcast.runtimes.base import Float32
from kvcast.text.logits_processors import Preferences, ReasoningBudget
from kvcast.text.structured_output import GrammarFilter, GrammarPlace
from kvcast.text.texts import (
    Alternatives,
    StoppingCriteria,
    Stopwatch,
    TextGeneration,
    WrittenText,
)
from kvcast.tokenizers.base import TextTokenizer


@dataclass(frozen=True, kw_only=True)
class TextSpec:
    """The specification of a text.

    Attributes:
        prompt: precedes the text.
        prompt_tokens: how many tokens users count in it.
        params: how tokens are chosen.
        criteria: when the text is over.
        tokenizer: of the model.
        watch: runs since the call.
        speculations: drafts tokens; None for no drafts.
        grammar: a text's first place in its grammar; None for any text.

    """

    prompt: Prompt
    prompt_tokens: int
    params: SamplingParams
    criteria: StoppingCriteria
    tokenizer: TextTokenizer
    watch: Stopwatch
    speculations: Speculations | None = None
    grammar: GrammarPlace | None = None

    @property
    def capacity(self) -> int:
        """Most positions that a row may need: the last token is never fed."""
        return self.prompt.length + self.criteria.max_new_tokens - 1

    def begin(self) -> WrittenText:
        """Return a text of no tokens yet."""
        return WrittenText(self.criteria, self.tokenizer, after=self.prompt.last)

    def constraint(self) -> GrammarFilter | None:
        """Return a filter that constrains the request's texts to the grammar."""
        return None if self.grammar is None else GrammarFilter(self.grammar)

    def reasoning_budget(self) -> ReasoningBudget | None:
        """Return what is left for a text's reasoning; a grammar leaves no room for any."""
        most = self.params.reasoning_budget
        if most is None or self.grammar is not None:
            return None
        return ReasoningBudget(most, self.tokenizer, self.prompt.sequence)

    def speculate(self) -> Speculation | None:
        """Return drafts for a text."""
        if self.speculations is None:
            return None
        return self.speculations.begin(self.prompt, self.capacity)

    def finish(
        self,
        text: WrittenText,
        watch: Stopwatch,
        score: float | None = None,
        drafts: Speculation | None = None,
    ) -> TextGeneration:
        """Return a text that is over; raises KvcastError for one that is not."""
        if text.finish_reason is None:
            raise KvcastError("the text is not finished: take all of its pieces first")
        return TextGeneration(
            text="".join(text.pieces),
            tokens=tuple(text.tokens),
            logprobs=tuple(text.logprobs) if self.params.logprobs else None,
            top_logprobs=tuple(text.top_logprobs) if self.params.top_logprobs else None,
            finish_reason=text.finish_reason,
            prompt_tokens=self.prompt_tokens,
            timings=watch.timings(),
            score=score,
            draft=None if drafts is None else drafts.counts(),
            generation_config=self.params.generation_config,
        )


class TextRequest(Request):
    """One or more texts after a prompt."""

    def __init__(self, spec: TextSpec, width: int) -> None:
        super().__init__(spec.prompt, capacity=spec.capacity, width=width)
        self.spec = spec
        self.watch = spec.watch.another()

    @abstractmethod
    def generations(self) -> list[TextGeneration]:
        """Return the texts, best first; raises KvcastError before they are over."""


class SampledText(TextRequest):
    """A text whose tokens a sampler draws one by one; `text` holds the tokens so far."""

    def __init__(self, spec: TextSpec, stream: int = 0) -> None:
        """Begin; texts of different streams draw different numbers."""
        super().__init__(spec, width=1)
        self.text = spec.begin()
        self.drafts: Speculation | None = spec.speculate()
        self._preferences = Preferences(spec.params)
        self._sampler = Sampler(spec.params, stream)
        self._constraint = spec.constraint()
        self._budget = spec.reasoning_budget()
        self._seen = self._preferences.histories(spec.criteria.max_new_tokens, spec.prompt)

    @override
    def advance(self, logits_rv: Float32) -> Continuations:
        params = self.spec.params
        given_rv = logits_rv.copy() if params.logprobs or params.top_logprobs else logits_rv
        if withheld := self.spec.criteria.withheld(self._seen.length):
            logits_rv[:, withheld] = -np.inf
        self._preferences.apply(logits_rv, self._seen)
        if self._constraint is not None:
            self._constraint.apply(logits_rv, self._seen.written_rn)
        token = self._sampler(logits_rv[0])
        if self._budget is not None and (forced := self._budget.forced()) is not None:
            token = forced
        logprob, top = self._probabilities(token, given_rv)
        self._seen.extend([0], [token])
        self.watch.tick()
        ending = None
        if self._constraint is not None:
            self._constraint.extend([0], [token])
            ending = self._constraint.ending
        certain = len(self.text.pieces)
        self.text.push(token, logprob, top, ending)
        if self._budget is not None:
            self._budget.wrote("".join(self.text.pieces[certain:]))
        return OVER if self.text.finish_reason else Continuations([0], [0], [token])

    @override
    def generations(self) -> list[TextGeneration]:
        return [self.spec.finish(self.text, self.watch, drafts=self.drafts)]

    def _probabilities(self, token: int, logits_rv: Float32) -> tuple[float | None, Alternatives]:
        """Return the token's log-probability and the likeliest tokens, if options ask for them."""
        params = self.spec.params
        logprob: float | None = None
        top: Alternatives = ()
        if params.logprobs:
            logprob = float(log_probabilities(logits_rv, np.array([[token]]))[0, 0])
        if params.top_logprobs:
            [top] = _alternatives(logits_rv, params.top_logprobs)
        return logprob, top


def _alternatives(logits_rv: Float32, count: int) -> list[Alternatives]:
    """Return the likeliest tokens of each row, with their log-probabilities."""
    tokens_rk, logprobs_rk, _ = likeliest(logits_rv, count)
    pairs = zip(tokens_rk.tolist(), logprobs_rk.tolist(), strict=True)
    return [tuple(zip(tokens_k, values_k, strict=True)) for tokens_k, values_k in pairs]


@dataclass(frozen=True)
class BeamHypothesis:
    """A finished sequence, with the token that ended it.

    Attributes:
        tokens: chosen.
        logprobs: of each token, as the model gave it; None unless requested.
        tops: the likeliest alternatives to each token; none unless requested.
        score: sum of the tokens' scores, over length ** length_penalty.

    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    tops: tuple[Alternatives, ...]
    score: float


class SearchedTexts(TextRequest):
    """The best `n` texts that a search with `beam` rows finds.

    Attributes:
        hypotheses: the best `beam` finished sequences, best first.

    """

    def __init__(self, spec: TextSpec) -> None:
        super().__init__(spec, width=spec.params.beam)
        self.hypotheses: list[BeamHypothesis] = []
        # Enough are left even if all end tokens are among the best of each row.
        self._considered = max(2, 1 + len(spec.criteria.end_tokens)) * self.width
        # Of each row; -inf only fills a place, when too few sequences go on.
        self._totals = [0.0]
        self._rows = list(range(self.width))
        self._preferences = Preferences(spec.params)
        self._constraint = spec.constraint()
        self._written = self._preferences.histories(spec.criteria.max_new_tokens, spec.prompt)
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
        if totals[0] == -np.inf:  # no row can go on as its grammar wants
            self._keep_what_there_is()
            return OVER
        written_rn, spec = self._written.written_rn, self.spec
        ended = spec.criteria.are_met(written_rn, parents, tokens, spec.tokenizer)
        for k in range(self.width):
            if ended[k] and totals[k] > -np.inf:
                logprob = given_rv[parents[k], tokens[k]] - log_sums_r[parents[k]]
                self._finish(totals[k], parents[k], tokens[k], float(logprob))
        # Those that ended only fill up, if too few others are left.
        going_on = sorted(range(len(ended)), key=ended.__getitem__)[: self.width]
        self._totals = [-np.inf if ended[k] else totals[k] for k in going_on]
        parents = [parents[k] for k in going_on]
        tokens = [tokens[k] for k in going_on]
        self._written.extend(parents, tokens)
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
        """Keep the likeliest tokens of each row, if they are wanted."""
        if k := self.spec.params.top_logprobs:
            tops = _alternatives(logits_rv, k)
            self._tops = [(*before, top) for before, top in zip(self._tops, tops, strict=False)]

    def _candidates(self, logits_rv: Float32) -> Likeliest:
        """Return the tokens that each row considers, as good as preferences make them.

        The logits may be overwritten.
        """
        withheld = self.spec.criteria.withheld(self._written.length)
        given = likeliest(logits_rv, self._considered + len(withheld))
        renormalised = self.spec.params.renormalize_logits
        if not self._preferences.matter(self._written) and self._constraint is None:
            if renormalised and withheld:
                lost_rk = np.exp(logits_rv[:, withheld] - given.log_sums_r[:, None])
                logprobs_rk = given.logprobs_rk - np.log1p(-lost_rk.sum(1, keepdims=True))
                given = given._replace(logprobs_rk=logprobs_rk)
            for token in withheld:
                given.logprobs_rk[given.tokens_rk == token] = -np.inf
            return given
        logits_rv -= given.log_sums_r[:, None]
        logits_rv[:, withheld] = -np.inf
        self._preferences.apply(logits_rv, self._written)
        if self._constraint is not None:
            self._constraint.apply(logits_rv, self._written.written_rn)
        if renormalised:
            log_softmax(logits_rv)
        return Likeliest(*top_k(logits_rv, self._considered), given.log_sums_r)

    def _finish(self, total: float, parent: int, token: int, logprob: float) -> None:
        """Add a finished sequence to the hypotheses, if it is among the best."""
        tokens = (*self._written.written_rn[parent].tolist(), token)
        logprobs = None
        if self.spec.params.logprobs:
            logprobs = (*self._logprobs_rn[parent].tolist(), logprob)
        score = self._score(total, len(tokens))
        self.hypotheses.append(BeamHypothesis(tokens, logprobs, self._tops[parent], score))
        self.hypotheses.sort(key=attrgetter("score"), reverse=True)
        del self.hypotheses[self.width :]

    def _keep_what_there_is(self) -> None:
        """Make the best unfinished row a hypothesis, if there is no other."""
        if not self.hypotheses:
            logprobs = None
            if self.spec.params.logprobs:
                logprobs = tuple(self._logprobs_rn[0].tolist())
            tokens = tuple(self._written.written_rn[0].tolist())
            tops = self._tops[0][: len(tokens)]
            score = self._score(self._totals[0], len(tokens))
            self.hypotheses = [BeamHypothesis(tokens, logprobs, tops, score)]

    def _score(self, total: float, length: int) -> float:
        return float(total / length**self.spec.params.length_penalty)

    def _can_improve(self) -> bool:
        """Tell whether the best row may still come among the finished sequences."""
        if self._totals[0] == -np.inf:
            return False
        if len(self.hypotheses) < self.width:
            return True
        if self.spec.params.early_stopping:
            return False
        best = self._score(self._totals[0], self._written.length)
        return best > self.hypotheses[-1].score
