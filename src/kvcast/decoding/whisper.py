"""Decoding of 30-second windows as openai/whisper's decoding.py does it.

Puts together the prompt, the filters and the strategy that the options ask for. Knows nothing of
recordings, seeking or fallback; a window may be decoded several times.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from typing_extensions import override

from kvcast.decoding.filters import LogitFilter, SuppressBlank, SuppressTokens, TimestampRules
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

    Raises:
        UsageError: for a value out of range or options that exclude each other.

    """

    temperature: Annotated[
        float, Option(group=SEARCH, help="0 is a search, more samples", check=Bounds(least=0))
    ] = 0.0
    max_initial_timestamp: float | None = 1.0

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

    """

    language: str
    tokens: tuple[int, ...]
    text: str
    avg_logprob: float
    no_speech_prob: float
    temperature: float
    compression_ratio: float


@dataclass(frozen=True, eq=False)
class Features(Input):
    """Log-mel features [n_mels, frames] of 30 seconds."""

    features_mt: Float32

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


class WindowDecoder:
    """Decodes windows over one cache.

    A window stays encoded, so it can be decoded again, until as many others were decoded as the
    cache has slots for.
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

    def detect_languages(self, windows: Sequence[Features]) -> list[dict[str, float]]:
        """Return the probability of each language for each window."""
        if not self.tokenizer.is_multilingual:
            raise UsageError("this model knows English only: there is no language to detect")
        requests = [_LanguageRequest(window, self.tokenizer) for window in windows]
        for request in requests:
            self._loop.add(request)
        while not self._loop.idle:
            self._loop.step()
        return [request.probabilities for request in requests]

    def decode(
        self,
        windows: Sequence[Features],
        options: DecodingOptions,
        *,
        prompt: Sequence[int] = (),
        stream: int = 0,
    ) -> list[DecodingResult]:
        """Decode windows, each after the same prompt; they do not depend on each other.

        Args:
            windows: one or more.
            options: see there.
            prompt: tokens of the text before; its end is kept if it is too long.
            stream: tells the random numbers of one window from another's.

        Raises:
            UsageError: the model cannot do what the options ask for.

        """
        options.check(self.tokenizer)
        languages = self._languages(windows, options)
        requests = [
            self._request(window, language, options, prompt, stream)
            for window, language in zip(windows, languages, strict=True)
        ]
        for request in requests:
            self._loop.add(request)
        while not self._loop.idle:
            self._loop.step()
        return [
            self._result(request, language, options)
            for request, language in zip(requests, languages, strict=True)
        ]

    def _languages(self, windows: Sequence[Features], options: DecodingOptions) -> list[str]:
        if options.language is not None:
            return [self.tokenizer.language_code(options.language)] * len(windows)
        if not self.tokenizer.is_multilingual:
            return ["en"] * len(windows)
        return [likeliest(probabilities) for probabilities in self.detect_languages(windows)]

    def _request(
        self,
        window: Features,
        language: str,
        options: DecodingOptions,
        prompt: Sequence[int],
        stream: int,
    ) -> SearchRequest:
        previous: list[int] = []
        if prompt:
            previous = [self.tokenizer.sot_prev, *prompt[-(self._context // 2 - 1) :]]
        task = self.tokenizer.sot_sequence(language, options.task, timestamps=options.timestamps)
        tokens = np.array([*previous, *task], np.int64)
        room = self._context + 1 - len(tokens)
        return SearchRequest(
            Prompt(tokens, input=window),
            strategy=options.strategy(stream),
            filters=options.filters(self.tokenizer),
            eot=self.tokenizer.eot,
            max_new_tokens=min(options.max_new_tokens or self._context // 2, room),
            probe=len(previous),  # start of transcript
        )

    def _result(
        self, request: SearchRequest, language: str, options: DecodingOptions
    ) -> DecodingResult:
        best = MaximumLikelihood(options.length_penalty).best(request.search.candidates())
        text = self.tokenizer.decode(best.tokens).strip()
        return DecodingResult(
            language=language,
            tokens=best.tokens,
            text=text,
            avg_logprob=best.sum_logprob / (len(best.tokens) + 1),
            no_speech_prob=float(softmax(request.probed_v[None])[0, self.tokenizer.no_speech]),
            temperature=options.temperature,
            compression_ratio=compression_ratio(text),
        )


def likeliest(probabilities: dict[str, float]) -> str:
    """Return the code with the highest probability; of equals the first."""
    return max(probabilities, key=probabilities.__getitem__)


def compression_ratio(text: str) -> float:
    """Return bytes of text over bytes that zlib needs for it."""
    encoded = text.encode()
    return len(encoded) / len(zlib.compress(encoded))
