"""Decoding of 30-second windows as openai/whisper's decoding.py does it.

Puts together the prompt, the filters and the strategy that the options ask for. Knows nothing of
recordings, seeking or fallback; a window may be decoded several times.
"""

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from typing_extensions import override

from kvcast.decoding.filters import LogitFilter, NoRepeatNgram, RepetitionPenalty, SuppressTokens
from kvcast.decoding.numerics import softmax
from kvcast.decoding.sampling import check_numbers
from kvcast.decoding.speculation import DraftCounts, Speculation, Speculations
from kvcast.engine.loop import Loop
from kvcast.engine.requests import OVER, Continuations, Input, Prompt, Request
from kvcast.errors import UsageError
from kvcast.options import Bounds, Option
from kvcast.runtimes.base import EncoderDecoder, Float32
from kvcast.whisper.filters import Continued, FinishSegments, SuppressBlank, TimestampRules
from kvcast.whisper.params import SEARCH, WindowParams
from kvcast.whisper.repetition import Repetition, repetition, without_repetition
from kvcast.whisper.strategies import (
    BeamSearch,
    Candidate,
    Greedy,
    MaximumLikelihood,
    Sampling,
    SearchRequest,
    Strategy,
)
from kvcast.whisper.tokenizer import SECONDS_PER_TIMESTAMP, WhisperTokenizer
from kvcast.whisper.window_prompt import WindowPrompt, check_prompt

_SHOWN = 60
"""Characters of a repeated text that are shown."""

NON_SPEECH = -1
"""In `suppress_tokens`, stands for the tokenizer's non-speech tokens."""


@dataclass(frozen=True, kw_only=True)
class DecodingOptions(WindowParams):
    """What decides a window's tokens, apart from the sound and the prompt.

    Attributes:
        temperature: 0 takes the likeliest tokens, more samples.
        max_initial_timestamp: latest start of the first segment in seconds; None is any.
        latest_start: segments that begin up to here, in seconds of the window, are written to their
            ends; None leaves the last one to the next window, if the model wants that.

    Raises:
        UsageError: for a value out of range or options that exclude each other.

    """

    temperature: Annotated[
        float, Option(group=SEARCH, help="0 is a search, more samples", check=Bounds(least=0))
    ] = 0.0
    max_initial_timestamp: float | None = 1.0
    latest_start: float | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature == 0 and self.best_of > 1:
            raise UsageError("best_of needs a temperature above 0: at 0 all samples are the same")
        if self.temperature > 0 and self.beam > 1:
            raise UsageError("beam needs temperature 0: above it best_of samples are drawn")
        self.strategy()

    def check(self, tokenizer: WhisperTokenizer, context: int) -> None:
        """Raise UsageError for what a model of this tokenizer and context cannot do."""
        check_prompt(self, tokenizer, context)
        if self.task == "translate" and not tokenizer.is_multilingual:
            raise UsageError("this model knows English only and cannot translate")
        for token in self.suppressed_ids():
            if not NON_SPEECH <= token < tokenizer.vocab_size:
                raise UsageError(
                    f"suppress_tokens: {token} is no token; give -1 or ids below "
                    f"{tokenizer.vocab_size}"
                )

    def strategy(self, stream: int = 0) -> Strategy:
        """Return the search; `stream` keeps random numbers of different windows apart."""
        if self.temperature > 0:
            seed = (self.seed, stream, round(1000 * self.temperature))
            return Sampling(self.temperature, self.best_of, seed)
        if self.beam > 1:
            return BeamSearch(self.beam, self.patience or 1.0)
        return Greedy()

    def filters(self, tokenizer: WhisperTokenizer) -> list[LogitFilter]:
        """Return the logit filters in the order in which they apply."""
        filters: list[LogitFilter] = []
        if self.repetition_penalty != 1:
            filters.append(RepetitionPenalty(self.repetition_penalty))
        if self.no_repeat_ngram:
            filters.append(NoRepeatNgram(self.no_repeat_ngram))
        filters.append(SuppressBlank(tokenizer.blank))
        if ids := set(self.suppressed_ids()):
            if NON_SPEECH in ids:
                ids = ids - {NON_SPEECH} | set(tokenizer.non_speech_tokens)
            ids |= set(tokenizer.control_tokens)
        if ids := ids | set(tokenizer.unused_tokens):
            filters.append(SuppressTokens(sorted(ids)))
        if self.timestamps:
            latest = self.max_initial_timestamp
            filters.append(
                TimestampRules(
                    begin=tokenizer.timestamp_begin,
                    end=tokenizer.timestamp_end,
                    eot=tokenizer.eot,
                    no_timestamps=tokenizer.no_timestamps,
                    latest_initial=round(latest / SECONDS_PER_TIMESTAMP) if latest else None,
                )
            )
            if self.latest_start is not None:
                begin = tokenizer.timestamp_begin
                last = begin + round(self.latest_start / SECONDS_PER_TIMESTAMP)
                filters.append(FinishSegments(begin=begin, eot=tokenizer.eot, latest=last))
        return filters


@dataclass(frozen=True, kw_only=True)
class DecodingResult:
    """What a window says.

    Attributes:
        language: code.
        tokens: ids with timestamps, without prompt and end.
        text: decoded and stripped.
        avg_logprob: mean log-probability of the tokens and the end.
        no_speech_prob: probability that the window holds no speech.
        temperature: at which it was decoded.
        compression_ratio: bytes of text over bytes compressed; high if it repeats itself.
        complete: whether the model ended the text, and not the limit of tokens.
        draft: what became of drafted tokens; None without them.
        repetition: what the model wrote over and over until it was stopped, as in
            'repeats " you" 48 times'; this is not in the tokens and the text, or only once.

    """

    language: str
    tokens: tuple[int, ...]
    text: str
    avg_logprob: float
    no_speech_prob: float
    temperature: float
    compression_ratio: float
    complete: bool = True
    repetition: str | None = None
    draft: DraftCounts | None = None


@dataclass(frozen=True, eq=False)
class Features(Input):
    """Log-mel features [n_mels, frames] of 30 seconds."""

    features_mt: Float32

    # A window alone fills the encoder's products. Several would take no less time and as many times
    # the memory, and in int8 they would share scales.
    most_together: ClassVar[int | None] = 1

    @property
    @override
    def positions(self) -> int:
        return int(self.features_mt.shape[1]) // 2

    @classmethod
    @override
    def batch(cls, inputs: Sequence[Self]) -> tuple[Float32]:
        return (np.stack([window.features_mt for window in inputs]),)


class _LanguageRequest(Request):
    """Takes the probability of each language in one call."""

    def __init__(self, window: Features, tokenizer: WhisperTokenizer) -> None:
        super().__init__(Prompt(np.array([tokenizer.sot], np.int64), input=window), capacity=1)
        self._tokenizer = tokenizer
        self.probabilities: dict[str, float] = {}

    @override
    def advance(self, logits_rv: Float32) -> Continuations:
        languages_rl = softmax(logits_rv[:, self._tokenizer.language_tokens])
        check_numbers(languages_rl)
        codes = self._tokenizer.languages
        self.probabilities = dict(zip(codes, languages_rl[0].tolist(), strict=True))
        return OVER


class Job(ABC):
    """Something to find out about a window; jobs are equal if they are the same."""

    @abstractmethod
    def start(self, decoder: "WindowDecoder") -> None:
        """Let what it takes wait for its turn; raises as `WindowDecoder.submit`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowJob(Job):
    """A window to decode once, in one way.

    Attributes:
        window: what is heard.
        options: how; without a language the window's is detected first.
        prompt: tokens of the text before; its end is kept if it is too long.
        prompt_language: the language of that text, if it is known; a window in another does not
            read it.
        written: tokens of the window's own text that are known, timestamps among them. The result
            is what follows them.
        stream: tells the random numbers of one window from another's.

    """

    window: Features
    options: DecodingOptions
    prompt: Sequence[int] = ()
    prompt_language: str | None = None
    written: Sequence[int] = ()
    stream: int = 0

    @override
    def start(self, decoder: "WindowDecoder") -> None:
        decoder.hear(self)


@dataclass(frozen=True)
class _Repetition:
    """Tells whether the best text so far repeats itself.

    No method of the request, which would hold itself, and its window until Python looks for cycles.
    """

    ranking: MaximumLikelihood
    eot: int

    def __call__(self, candidates: Sequence[Candidate]) -> bool:
        return repetition(self.ranking.best(candidates).tokens, self.eot) is not None


class _WindowRequest(SearchRequest):
    """Writes a window's text, or gives up if it only repeats itself."""

    def __init__(
        self,
        job: WindowJob,
        prompt: WindowPrompt,
        language: str,
        tokenizer: WhisperTokenizer,
        room: int,
        speculations: Speculations | None,
    ) -> None:
        options = job.options
        ranking = MaximumLikelihood(options.length_penalty)
        filters = options.filters(tokenizer)
        if prompt.written:
            filters = [Continued(one, prompt.written) for one in filters]
        super().__init__(
            Prompt(np.array(prompt.tokens, np.int64), input=job.window),
            strategy=options.strategy(job.stream),
            filters=filters,
            eot=tokenizer.eot,
            max_new_tokens=min(options.max_new_tokens or room, room),
            probe=len(prompt.before),  # start of transcript
            hopeless=_Repetition(ranking, tokenizer.eot) if options.stop_repetition else None,
        )
        self.drafts: Speculation | None = None
        if speculations is not None and self.width == 1:
            self.drafts = speculations.begin(self.prompt, self.capacity, filters)
        self._options = options
        self._language = language
        # Of what was written before, the caller knows all but a prefix.
        self._prefix = prompt.written[: len(prompt.written) - len(job.written)]
        self._tokenizer = tokenizer
        self._ranking = ranking

    def result(self) -> DecodingResult:
        """Return what the window says."""
        tokenizer = self._tokenizer
        best = self._ranking.best(self.search.candidates())
        tokens = (*self._prefix, *best.tokens)
        again = repetition(tokens, tokenizer.eot) if self._options.stop_repetition else None
        kept = without_repetition(tokens, again, tokenizer.timestamp_begin) if again else tokens
        return DecodingResult(
            language=self._language,
            tokens=kept,
            text=tokenizer.decode(kept).strip(),
            avg_logprob=best.sum_logprob / (len(best.tokens) + 1),
            no_speech_prob=float(softmax(self.probed_v[None])[0, tokenizer.no_speech]),
            temperature=self._options.temperature,
            compression_ratio=compression_ratio(tokenizer.decode(tokens).strip()),
            complete=again is None and len(best.tokens) < self.max_new_tokens,
            repetition=self._told(tokens, again) if again else None,
            draft=None if self.drafts is None else self.drafts.counts(),
        )

    def _told(self, tokens: Sequence[int], again: Repetition) -> str:
        text = self._tokenizer.decode(tokens[again.begin : again.end])
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        return f"repeats {json.dumps(shown, ensure_ascii=False)} {again.copies} times"


class WindowDecoder:
    """Decodes windows over one cache, as many together as it has rows for.

    Windows do not depend on each other. A window stays encoded, so it can be decoded again, until
    as many others were decoded as the cache has slots for.
    """

    def __init__(
        self,
        runtime: EncoderDecoder,
        tokenizer: WhisperTokenizer,
        context: int,
        *,
        rows: int = 1,
        windows: int = 1,
        speculations: Speculations | None = None,
        turn: int | None = None,
    ) -> None:
        """Prepare.

        Args:
            runtime: runs the model.
            tokenizer: of the model.
            context: positions of its decoder.
            rows: most beams or samples at once, those of all windows together.
            windows: most windows at once.
            speculations: drafts tokens of windows that take one row; None for no drafts.
            turn: as a `Loop` takes it.

        """
        self.tokenizer = tokenizer
        self.context = context
        self._speculations = speculations
        self._loop = Loop(runtime, rows=rows, capacity=context, inputs=windows, turn=turn)
        self._listening: dict[Request, tuple[WindowJob, _LanguageRequest]] = {}
        self._running: dict[Request, tuple[Job, Callable[[], Any]]] = {}
        self._finished: list[tuple[Job, Any]] = []

    @property
    def room(self) -> int:
        """Most tokens of a window's own text, timestamps among them."""
        return self.context // 2

    @property
    def lengths(self) -> list[int]:
        """How many positions each row of the cache holds."""
        return self._loop.lengths

    @property
    def busy(self) -> list[int]:
        """Rows that are in use."""
        return self._loop.busy

    def submit(self, job: Job) -> None:
        """Let a job wait for its turn.

        Raises:
            UsageError: the model cannot do what the options ask for.

        """
        job.start(self)

    def hear(self, job: WindowJob) -> None:
        """Let a window wait to be decoded, and its language first if that is not known."""
        job.options.check(self.tokenizer, self.context)
        if job.options.language is None and self.tokenizer.is_multilingual:
            request = _LanguageRequest(job.window, self.tokenizer)
            self._listening[request] = job, request
            self._loop.add(request)
        else:
            self._write(job, self._language(job.options))

    def run(self, job: Job, request: Request, result: Callable[[], Any]) -> None:
        """Let a request wait for its turn; `result` gives that of the job when it is done."""
        self._running[request] = job, result
        self._loop.add(request)

    def step(self) -> list[tuple[Job, Any]]:
        """Take all that are under way a token further; return those that are finished."""
        if (self._listening or self._running) and not self._finished:
            self._advance()
        finished, self._finished = self._finished, []
        return finished

    def cancel(self, job: Job) -> None:
        """End a job without a result; nothing happens if it is finished or unknown."""
        for requests in (self._listening, self._running):
            for request in [request for request, (one, _) in requests.items() if one is job]:
                requests.pop(request)
                self._loop.cancel(request)

    def detect_languages(self, windows: Sequence[Features]) -> list[dict[str, float]]:
        """Return the probability of each language for each window; all else goes on meanwhile."""
        if not self.tokenizer.is_multilingual:
            raise UsageError("this model knows English only: there is no language to detect")
        requests = [_LanguageRequest(window, self.tokenizer) for window in windows]
        for request in requests:
            self._loop.add(request)
        while not all(request.done for request in requests):
            self._advance()
        return [request.probabilities for request in requests]

    def answer(self, job: Job) -> Any:
        """Return a job's result; for a caller who has no other jobs under way."""
        self.submit(job)
        while not (finished := self.step()):
            pass
        [(_, result)] = finished
        return result

    def decode(
        self,
        windows: Sequence[Features],
        options: DecodingOptions,
        *,
        prompt: Sequence[int] = (),
        stream: int = 0,
    ) -> list[DecodingResult]:
        """Decode windows, each after the same prompt, to their ends.

        Args:
            windows: one or more.
            options: see there; without a language each window's is detected.
            prompt: tokens of the text before; its end is kept if it is too long.
            stream: tells the random numbers of one window from another's.

        Raises:
            UsageError: the model cannot do what the options ask for.

        """
        jobs = [
            WindowJob(window=window, options=options, prompt=prompt, stream=stream)
            for window in windows
        ]
        for job in jobs:
            self.submit(job)
        results: dict[Job, DecodingResult] = {}
        while len(results) < len(jobs):
            results.update(self.step())
        return [results[job] for job in jobs]

    def _advance(self) -> None:
        """Take the loop a step further."""
        for request in filter(attrgetter("done"), self._loop.step()):
            if request.error is not None:
                raise request.error
            if request in self._listening:
                job, heard = self._listening.pop(request)
                self._write(job, likeliest(heard.probabilities))
            elif request in self._running:
                done, result = self._running.pop(request)
                self._finished.append((done, result()))

    def _write(self, job: WindowJob, language: str) -> None:
        """Let a window whose language is known wait for its turn."""
        prompt = self._prompt(job, language)
        room = min(self.room - len(job.written), self.context + 1 - len(prompt.tokens))
        request = _WindowRequest(job, prompt, language, self.tokenizer, room, self._speculations)
        self.run(job, request, request.result)

    def _prompt(self, job: WindowJob, language: str) -> WindowPrompt:
        is_read = job.prompt_language in (None, language)
        return WindowPrompt.of(
            job.options,
            language,
            previous=job.prompt if is_read else (),
            written=job.written,
            tokenizer=self.tokenizer,
            context=self.context,
        )

    def _language(self, options: DecodingOptions) -> str:
        return "en" if options.language is None else self.tokenizer.language_code(options.language)


def likeliest(probabilities: Mapping[str, float]) -> str:
    """Return the code with the highest probability; of equals the first."""
    return max(probabilities, key=probabilities.__getitem__)


def compression_ratio(text: str) -> float:
    """Return bytes of text over bytes that zlib needs for it."""
    encoded = text.encode()
    return len(encoded) / len(zlib.compress(encoded))
