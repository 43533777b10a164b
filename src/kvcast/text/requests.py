"""Requests for sampled texts (`beam_search.py` has beams), and their caller in an engine."""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from kvcast.decoding.logits_processors import Sampler
from kvcast.decoding.params import SamplingParams
from kvcast.decoding.sampling import likeliest, log_probabilities
from kvcast.decoding.speculative_decoding import Speculation, Speculations
from kvcast.engine.callers import JobCaller
from kvcast.engine.jobs import Job
from kvcast.engine.requests import OVER, Continuations, Prompt, Request
from kvcast.errors import KvcastError
from kvcast.runtimes.base import Float32
from kvcast.text.logits_pipeline import LogitsProcessors, ReasoningBudget
from kvcast.text.params import PromptParams
from kvcast.text.structured_output import GrammarPlace, GrammarProcessor
from kvcast.text.texts import (
    Alternatives,
    GeneratedText,
    StoppingCriteria,
    Stopwatch,
    TextGeneration,
)
from kvcast.tokenizers.base import TextTokenizer


@dataclass(frozen=True, kw_only=True)
class TextSpec:
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
        """Most positions of a row: the last token is never fed."""
        return self.prompt.length + self.criteria.max_new_tokens - 1

    def begin(self) -> GeneratedText:
        return GeneratedText(self.criteria, self.tokenizer, after=self.prompt.last)

    def constraint(self) -> GrammarProcessor | None:
        return None if self.grammar is None else GrammarProcessor(self.grammar)

    def reasoning_budget(self) -> ReasoningBudget | None:
        """Return the filter that limits a text's reasoning; None with a grammar."""
        most = self.params.reasoning_budget
        if most is None or self.grammar is not None:
            return None
        return ReasoningBudget(most, self.tokenizer, self.prompt.sequence)

    def speculate(self) -> Speculation | None:
        if self.speculations is None:
            return None
        return self.speculations.begin(self.prompt, self.capacity)

    def finish(
        self,
        text: GeneratedText,
        watch: Stopwatch,
        score: float | None = None,
        drafts: Speculation | None = None,
    ) -> TextGeneration:
        """Return a finished text; raises KvcastError for an unfinished one."""
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
        super().__init__(spec, width=1)
        self.text = spec.begin()
        self.drafts: Speculation | None = spec.speculate()
        self._processors = LogitsProcessors(spec.params)
        self._sampler = Sampler(spec.params, stream)
        self._constraint = spec.constraint()
        self._budget = spec.reasoning_budget()
        self._seen = self._processors.histories(spec.criteria.max_new_tokens, spec.prompt)

    @override
    def advance(self, logits_rv: Float32) -> Continuations:
        params = self.spec.params
        given_rv = logits_rv.copy() if params.logprobs or params.top_logprobs else logits_rv
        if withheld := self.spec.criteria.withheld(self._seen.length):
            logits_rv[:, withheld] = -np.inf
        self._processors.apply(logits_rv, self._seen)
        if self._constraint is not None:
            self._constraint.apply(logits_rv, self._seen.generated_rn)
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
            self._budget.record("".join(self.text.pieces[certain:]))
        return OVER if self.text.finish_reason else Continuations([0], [0], [token])

    @override
    def generations(self) -> list[TextGeneration]:
        return [self.spec.finish(self.text, self.watch, drafts=self.drafts)]

    def _probabilities(self, token: int, logits_rv: Float32) -> tuple[float | None, Alternatives]:
        params = self.spec.params
        logprob: float | None = None
        top: Alternatives = ()
        if params.logprobs:
            logprob = float(log_probabilities(logits_rv, np.array([[token]]))[0, 0])
        if params.top_logprobs:
            [top] = alternatives(logits_rv, params.top_logprobs)
        return logprob, top


def alternatives(logits_rv: Float32, count: int) -> list[Alternatives]:
    tokens_rk, logprobs_rk, _ = likeliest(logits_rv, count)
    pairs = zip(tokens_rk.tolist(), logprobs_rk.tolist(), strict=True)
    return [tuple(zip(tokens_k, values_k, strict=True)) for tokens_k, values_k in pairs]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The new part of a text after a step; `text` may be empty."""

    index: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    top_logprobs: tuple[Alternatives, ...] | None
    finish_reason: str | None  # None before the last part


TextJob = Job[TextDelta, "TextGeneration | list[TextGeneration]"]


class TextCaller(JobCaller):
    job: TextJob

    def __init__(
        self,
        requests: Sequence[TextRequest],
        params: PromptParams,
        finished: Callable[[list[TextGeneration]], list[TextGeneration]],
        parts: int = 1,
    ) -> None:
        """Take a request for each text, or one for a beam search; as many for each part.

        `parts` of the prompt are answered separately: with several, no text is streamed. `finished`
        returns the prompt's texts as clients get them, once all are over.
        """
        self._requests = list(requests)
        self._coming = deque(self._requests)
        self._each = len(self._requests) // parts
        # Beams compete to the end, and texts of later parts may be over before others.
        self._streams = params.beam == 1 and parts == 1
        self._running = len(self._requests)
        self._params = params
        self._finished = finished
        self._shown = [(0, 0)] * len(self._requests)  # pieces and tokens that the job has
        self._result: TextGeneration | list[TextGeneration] | None = None
        self._error: Exception | None = None

    @property
    @override
    def ending(self) -> str | None:
        if self._error is not None:
            return "error"
        if self._result is None:
            return None
        whole = self._result[0] if isinstance(self._result, list) else self._result
        return whole.finish_reason

    @override
    def next_request(self) -> Request | None:
        if len(self._coming) == len(self._requests):
            parts = self._requests[:: self._each]
            self.totals.prompt_tokens += sum(part.spec.prompt_tokens for part in parts)
        return self._coming.popleft() if self._coming else None

    @override
    def take(self, request: Request) -> None:
        if request.error is not None:
            raise request.error
        self.job.cached_tokens = max(self.job.cached_tokens, request.reused)
        if self._streams and isinstance(request, SampledText):
            self._put_delta(request)
        self._running -= request.done
        if not self._running:
            self._finish()

    @override
    def fail(self, error: Exception) -> None:
        self._error = error
        self.totals.cached_tokens += self.job.cached_tokens

    @override
    def settle(self) -> None:
        if self._error is not None:
            self.job.fail(self._error)
        elif self._result is not None:
            self.job.finish(self._result)

    def _put_delta(self, request: SampledText) -> None:
        index = self._requests.index(request)
        text, (pieces, tokens) = request.text, self._shown[index]
        params = self._params
        self._shown[index] = len(text.pieces), len(text.tokens)
        delta = TextDelta(
            index,
            "".join(text.pieces[pieces:]),
            tuple(text.tokens[tokens:]),
            tuple(text.logprobs[tokens:]) if params.logprobs else None,
            tuple(text.top_logprobs[tokens:]) if params.top_logprobs else None,
            text.finish_reason,
        )
        if delta.text or delta.tokens or delta.finish_reason:
            self.job.put(delta)
        self.totals.generated_tokens += len(delta.tokens)

    def _finish(self) -> None:
        generated = [text for request in self._requests for text in request.generations()]
        texts = self._finished(generated)
        if not self._streams:
            self.totals.generated_tokens += sum(len(text.tokens) for text in generated)
            for index, text in enumerate(texts):
                self.job.put(_whole(index, text))
        self.totals.cached_tokens += self.job.cached_tokens
        self._result = texts if self._params.n > 1 else texts[0]


def _whole(index: int, text: TextGeneration) -> TextDelta:
    top = text.top_logprobs
    return TextDelta(index, text.text, text.tokens, text.logprobs, top, text.finish_reason)
