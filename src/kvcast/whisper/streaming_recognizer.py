"""Whisper as a recognizer of live audio: hypotheses of a window, and where their words lie."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.audio.features import window_features
from kvcast.decoding.drafters import FormerText
from kvcast.decoding.speculative_decoding import Speculations
from kvcast.engine.callers import Policy
from kvcast.speech.params import TranscribeParams
from kvcast.whisper.decoding import DecodingOptions, DecodingResult
from kvcast.whisper.local_agreement import Place, Unit, units
from kvcast.whisper.long_form import PROMPT_RESET_TEMPERATURE, is_silence, rejection
from kvcast.whisper.requests import Features
from kvcast.whisper.streaming import Hypothesis, Recognizer
from kvcast.whisper.windows import WindowRequests
from kvcast.whisper.word_timestamps import (
    ENCODER_FRAMES_PER_SECOND,
    TokenTimes,
    TokenWord,
    split_words,
)


class _WindowInput(NamedTuple):
    """The decoder's input, and how many of its frames are audio rather than padding."""

    features: Features
    frames: int


class WhisperRecognizer(Recognizer):
    def __init__(
        self,
        answer: Callable[[Policy[Any]], Any],
        *,
        requests: WindowRequests,
        n_mels: int,
        attempts: Sequence[DecodingOptions],
        params: TranscribeParams,
    ) -> None:
        """Prepare; `answer` runs a policy, `attempts` are for the first decoding and rejections."""
        self._answer = answer
        self._requests = requests
        self._tokenizer = requests.tokenizer
        self._n_mels = n_mels
        self._attempts = attempts
        self._params = params
        self._windows = 0
        # Most of a hypothesis repeats the previous one: as drafts, it takes few calls.
        self._former = FormerText()
        self._rewriting = Speculations(self._former)
        self._language = attempts[0].language or "en"
        self._detects = attempts[0].language is None and self._tokenizer.is_multilingual

    @property
    @override
    def language(self) -> str:
        return self._language

    @property
    @override
    def room(self) -> int:
        return self._requests.room

    @override
    def keep_language(self) -> None:
        self._detects = False

    @override
    def encoder_input(self, samples: NDArray[np.float32]) -> _WindowInput:
        self._windows += 1
        features = Features(window_features(samples, self._n_mels))
        return _WindowInput(features, len(samples) * ENCODER_FRAMES_PER_SECOND // SAMPLE_RATE)

    @override
    def decode(
        self,
        window: _WindowInput,
        *,
        prompt: Sequence[int],
        forced: Sequence[Unit],
        thoroughly: bool,
    ) -> Hypothesis:
        begin = self._tokenizer.timestamp_begin
        known = tuple(token for unit in forced for token in unit.spelled(begin))
        language = None if self._detects else self._language
        for options in self._attempts if thoroughly else self._attempts[:1]:
            result: DecodingResult = self._answer(
                self._requests.decode(
                    window.features,
                    replace(options, language=language),
                    prompt=tuple(prompt),
                    forced=known,
                    stream=self._windows,
                    speculations=self._rewriting,
                )
            )
            self._language = language = result.language
            self._former.tokens = (*known, *result.tokens)
            if rejection(result, self._params) is None:
                break
        if is_silence(result, self._params):
            return Hypothesis(units=())
        return Hypothesis(
            units=units(result.tokens, begin, self._split),
            doubtful=self._has_failed(result),
            conditions_next=result.temperature <= PROMPT_RESET_TEMPERATURE,
        )

    @override
    def places(self, window: _WindowInput, units: Sequence[Unit]) -> list[Place]:
        text = [token for unit in units for token in unit.tokens]
        ends = list(accumulate(len(unit.tokens) for unit in units))
        if not text:
            return [Place(0, 1.0, 0) for _ in units]
        times: TokenTimes = self._answer(
            self._requests.align(
                window.features,
                text,
                language=self._language,
                task=self._params.task,
                frames=window.frames,
            )
        )
        return [
            Place(
                int(times.begins_n[end]),
                float(times.probabilities_n[end - len(unit.tokens) : end].min(initial=1.0)),
                int(times.attended_n[end - len(unit.tokens) : end].max(initial=0)),
            )
            for unit, end in zip(units, ends, strict=True)
        ]

    def _has_failed(self, result: DecodingResult) -> bool:
        """Return whether the text loops. A few improbable words at the end are fine."""
        limit = self._params.compression_ratio_threshold
        return not result.complete or (limit is not None and result.compression_ratio > limit)

    def _split(self, tokens: Sequence[int]) -> list[TokenWord]:
        return split_words(self._tokenizer, tokens, self._language)
