"""Decoding of 30-second windows as openai/whisper's decoding.py does it.

Puts together the prompt, the filters and the strategy that the options ask for. Knows nothing of
recordings, seeking or fallback; a window may be decoded several times.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import numpy as np
from typing_extensions import override

from kvcast.decoding.filters import (
    Continued,
    FinishSegments,
    LogitFilter,
    SuppressBlank,
    SuppressTokens,
    TimestampRules,
)
from kvcast.decoding.loop import Loop
from kvcast.decoding.numerics import softmax
from kvcast.decoding.params import SEARCH, WindowParams
from kvcast.decoding.requests import OVER, Continuations, Input, Prompt, Request
from kvcast.decoding.strategies import (
    BeamSearch,
    Greedy,
    MaximumLikelihood,
    Sampling,
    SearchRequest,
    Strategy,
)
from kvcast.errors import UsageError
from kvcast.runtimes.base import EncoderDecoder, Float32
from kvcast.spec.options import Bounds, Option
from kvcast.text.whisper import SECONDS_PER_TIMESTAMP, WhisperTokenizer

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

    def check(self, tokenizer: WhisperTokenizer) -> None:
        """Raise UsageError for what this tokenizer's model cannot do."""
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
        filters: list[LogitFilter] = [SuppressBlank(tokenizer.blank)]
        if ids := set(self.suppressed_ids()):
            if NON_SPEECH in ids:
                ids = ids - {NON_SPEECH} | set(tokenizer.non_speech_tokens)
            filters.append(SuppressTokens(sorted(ids | set(tokenizer.control_tokens))))
        if self.timestamps:
            latest = self.max_initial_timestamp
            filters.append(
                TimestampRules(
                    begin=tokenizer.timestamp_begin,
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

    """

    language: str
    tokens: tuple[int, ...]
    text: str
    avg_logprob: float
    no_speech_prob: float
    temperature: float
    compression_ratio: float
    complete: bool = True


@dataclass(frozen=True, eq=False)
class Features(Input):
    """Log-mel features [n_mels, frames] of 30 seconds."""

    features_mt: Float32

    # A window alone fills the encoder's products. Several would take no less time and as many times
    # the memory, and in int8 they would share scales.
    most_together: ClassVar[int | None] = 1

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
        codes = self._tokenizer.languages
        self.probabilities = dict(zip(codes, languages_rl[0].tolist(), strict=True))
        return OVER


class _EndRequest(Request):
    """Takes the likeliest timestamp that may follow what is written, in one call."""

    def __init__(self, prompt: Prompt, earliest: int) -> None:
        super().__init__(prompt, capacity=prompt.length)
        self._earliest = earliest
        self.token = earliest

    @override
    def advance(self, logits_rv: Float32) -> Continuations:
        self.token = self._earliest + int(logits_rv[0, self._earliest :].argmax())
        return OVER


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowJob:
    """A window to decode once, in one way.

    Attributes:
        window: what is heard.
        options: how; a multilingual model wants its `language`.
        prompt: tokens of the text before; its end is kept if it is too long.
        written: tokens of the window's own text that are known, timestamps among them. The result
            is what follows them.
        stream: tells the random numbers of one window from another's.

    """

    window: Features
    options: DecodingOptions
    prompt: Sequence[int] = ()
    written: Sequence[int] = ()
    stream: int = 0


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
    ) -> None:
        """Prepare.

        Args:
            runtime: runs the model.
            tokenizer: of the model.
            context: positions of its decoder.
            rows: most beams or samples at once, those of all windows together.
            windows: most windows at once.

        """
        self.tokenizer = tokenizer
        self._context = context
        self._loop = Loop(runtime, rows=rows, capacity=context, inputs=windows)
        self._jobs: dict[Request, tuple[WindowJob, SearchRequest]] = {}
        self._finished: list[tuple[WindowJob, DecodingResult]] = []

    @property
    def room(self) -> int:
        """Most tokens of a window's own text, timestamps among them."""
        return self._context // 2

    def submit(self, job: WindowJob) -> None:
        """Let a window wait for its turn.

        Raises:
            UsageError: the model cannot do what the options ask for.

        """
        job.options.check(self.tokenizer)
        request = self._request(job)
        self._jobs[request] = job, request
        self._loop.add(request)

    def step(self) -> list[tuple[WindowJob, DecodingResult]]:
        """Take all that are under way a token further; return those that are finished."""
        if self._jobs and not self._finished:
            self._advance()
        finished, self._finished = self._finished, []
        return finished

    def cancel(self, job: WindowJob) -> None:
        """End a window without a result; nothing happens if it is finished or unknown."""
        for request in [request for request, (one, _) in self._jobs.items() if one is job]:
            del self._jobs[request]
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

    def end_of_written(self, job: WindowJob) -> int:
        """Return when what is written of a job ends, in steps of 20 ms from the window's start.

        It is where the model would end a segment. All else goes on meanwhile.
        """
        begin = self.tokenizer.timestamp_begin
        tokens, _ = self._begun(job)
        earliest = max((token for token in job.written if token >= begin), default=begin)
        request = _EndRequest(Prompt(np.array(tokens, np.int64), input=job.window), earliest)
        self._loop.add(request)
        while not request.done:
            self._advance()
        return request.token - begin

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
        options.check(self.tokenizer)
        jobs = [
            WindowJob(window=window, options=spoken, prompt=prompt, stream=stream)
            for window, spoken in zip(windows, self._spoken(windows, options), strict=True)
        ]
        for job in jobs:
            self.submit(job)
        results: dict[WindowJob, DecodingResult] = {}
        while len(results) < len(jobs):
            results.update(self.step())
        return [results[job] for job in jobs]

    def _advance(self) -> None:
        """Take the loop a step further."""
        for request in self._loop.step():
            if request.done and request in self._jobs:
                job, search = self._jobs.pop(request)
                self._finished.append((job, self._result(search, job.options)))

    def _spoken(
        self, windows: Sequence[Features], options: DecodingOptions
    ) -> list[DecodingOptions]:
        """Return the options of each window, with its language."""
        if options.language is not None or not self.tokenizer.is_multilingual:
            return [options] * len(windows)
        found = self.detect_languages(windows)
        return [replace(options, language=likeliest(probabilities)) for probabilities in found]

    def _language(self, options: DecodingOptions) -> str:
        return "en" if options.language is None else self.tokenizer.language_code(options.language)

    def _begun(self, job: WindowJob) -> tuple[list[int], int]:
        """Return what a window begins with, and the place of the start of its transcript."""
        options, previous = job.options, list[int]()
        if job.prompt:
            previous = [self.tokenizer.sot_prev, *job.prompt[-(self._context // 2 - 1) :]]
        task = self.tokenizer.sot_sequence(
            self._language(options), options.task, timestamps=options.timestamps
        )
        return [*previous, *task, *job.written], len(previous)

    def _request(self, job: WindowJob) -> SearchRequest:
        options = job.options
        tokens, start_of_transcript = self._begun(job)
        filters = options.filters(self.tokenizer)
        if job.written:
            filters = [Continued(one, job.written) for one in filters]
        most = min(options.max_new_tokens or self.room, self.room - len(job.written))
        return SearchRequest(
            Prompt(np.array(tokens, np.int64), input=job.window),
            strategy=options.strategy(job.stream),
            filters=filters,
            eot=self.tokenizer.eot,
            max_new_tokens=min(most, self._context + 1 - len(tokens)),
            probe=start_of_transcript,
        )

    def _result(self, request: SearchRequest, options: DecodingOptions) -> DecodingResult:
        best = MaximumLikelihood(options.length_penalty).best(request.search.candidates())
        text = self.tokenizer.decode(best.tokens).strip()
        return DecodingResult(
            language=self._language(options),
            tokens=best.tokens,
            text=text,
            avg_logprob=best.sum_logprob / (len(best.tokens) + 1),
            no_speech_prob=float(softmax(request.probed_v[None])[0, self.tokenizer.no_speech]),
            temperature=options.temperature,
            compression_ratio=compression_ratio(text),
            complete=len(best.tokens) < request.max_new_tokens,
        )


def likeliest(probabilities: dict[str, float]) -> str:
    """Return the code with the highest probability; of equals the first."""
    return max(probabilities, key=probabilities.__getitem__)


def compression_ratio(text: str) -> float:
    """Return bytes of text over bytes that zlib needs for it."""
    encoded = text.encode()
    return len(encoded) / len(zlib.compress(encoded))
