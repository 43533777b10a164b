"""Windows of 30 seconds, as in openai/whisper's decoding.py: policies that make requests."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from typing_extensions import override

from kvcast.decoding.speculative_decoding import Speculations
from kvcast.engine.callers import JobCaller, Policy, PolicyCaller, Result
from kvcast.engine.scheduler import Scheduler
from kvcast.errors import UsageError
from kvcast.runtimes.base import EncoderDecoder, Float32
from kvcast.speech.transcription import Memory
from kvcast.whisper.decoding import DecodingOptions, DecodingResult, WindowPrompt
from kvcast.whisper.requests import (
    AlignmentRequest,
    Features,
    LanguageRequest,
    WindowRequest,
    likeliest,
)
from kvcast.whisper.tokenizer import WhisperTokenizer
from kvcast.whisper.word_timestamps import TokenTimes


class WindowRequests:
    """Makes the requests of windows, for a model of this tokenizer."""

    def __init__(
        self,
        tokenizer: WhisperTokenizer,
        context: int,
        speculations: Speculations | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._context = context
        self._speculations = speculations

    def remembering(self, memory: Memory) -> "WindowRequests":
        """Return the same, with results from a memory where it has them."""
        return RememberingRequests(memory, self.tokenizer, self._context, self._speculations)

    @property
    def room(self) -> int:
        """Most tokens of a window's text, including timestamps."""
        return self._context // 2

    def languages(self, window: Features) -> Policy[dict[str, float]]:
        """Return the probability of each language; raises UsageError for an English-only model."""
        if not self.tokenizer.is_multilingual:
            raise UsageError("this model knows English only: there is no language to detect")
        request = LanguageRequest(window, self.tokenizer)
        yield request
        return request.probabilities

    def decode(
        self,
        window: Features,
        options: DecodingOptions,
        *,
        prompt: Sequence[int] = (),
        prompt_language: str | None = None,
        forced: Sequence[int] = (),
        stream: int = 0,
        speculations: Speculations | None = None,
    ) -> Policy[DecodingResult]:
        """Decode a window once; raises UsageError for options that the model does not support.

        Without a language the window's is detected first. `prompt`: tokens of the text before; its
        end is kept if it is too long. `prompt_language`: of that text, if known; a window in
        another language ignores it. `forced`: known tokens of the window's text, including
        timestamps, that the result leaves out. `stream` seeds different windows differently.
        """
        options.check(self.tokenizer, self._context)
        if options.language is not None:
            language = self.tokenizer.language_code(options.language)
        elif self.tokenizer.is_multilingual:
            language = likeliest((yield from self.languages(window)))
        else:
            language = "en"
        whole = WindowPrompt.of(
            options,
            language,
            previous=prompt if prompt_language in (None, language) else (),
            forced=forced,
            tokenizer=self.tokenizer,
            context=self._context,
        )
        request = WindowRequest(
            window,
            options,
            whole,
            known=len(forced),
            language=language,
            tokenizer=self.tokenizer,
            room=min(self.room - len(forced), self._context + 1 - len(whole.tokens)),
            stream=stream,
            speculations=self._speculations or speculations,
        )
        yield request
        return request.result()

    def align(
        self, window: Features, text: Sequence[int], *, language: str, task: str, frames: int
    ) -> Policy[TokenTimes]:
        """Align the tokens of a window's text, one or more without timestamps, with its audio.

        `frames`: how many of the encoder's frames are of the recording.
        """
        start = self.tokenizer.sot_sequence(language, task, timestamps=False)
        request = AlignmentRequest(
            window,
            start,
            text[: self._context - len(start) - 1],
            frames=frames,
            eot=self.tokenizer.eot,
            among_v=self._text_alone(),
        )
        yield request
        return request.times().padded(len(text))

    def _text_alone(self) -> Float32:
        """Return 0 for tokens of text and -inf for all other tokens, [vocab]."""
        among_v = np.full(self.tokenizer.vocab_size, -np.inf, np.float32)
        among_v[: self.tokenizer.eot] = 0
        among_v[list(self.tokenizer.added_text)] = 0
        return among_v


class RememberingRequests(WindowRequests):
    """Takes results from a memory where it has them, and adds the others to it.

    A result is found by the SHA-256 of everything that decides it, the audio included.
    """

    def __init__(self, memory: Memory, *given: Any) -> None:
        super().__init__(*given)
        self._memory = memory

    @override
    def languages(self, window: Features) -> Policy[dict[str, float]]:
        asked = super().languages(window)
        record = yield from self._remembered(_key(window, "languages"), asked, dict)
        return dict(record)

    @override
    def decode(
        self, window: Features, options: DecodingOptions, **given: Any
    ) -> Policy[DecodingResult]:
        asked = super().decode(window, options, **given)
        key = _key(window, "decode", options, sorted(given.items()))
        record = yield from self._remembered(key, asked, asdict)
        return DecodingResult.of(record)

    @override
    def align(self, window: Features, text: Sequence[int], **given: Any) -> Policy[TokenTimes]:
        asked = super().align(window, text, **given)
        key = _key(window, "align", list(text), sorted(given.items()))
        record = yield from self._remembered(key, asked, TokenTimes.record)
        return TokenTimes.of(record)

    def _remembered(
        self, key: str, policy: Policy[Result], record: Callable[[Result], Mapping[str, Any]]
    ) -> Policy[Mapping[str, Any]]:
        if (known := self._memory.get(key)) is not None:
            return known
        result = yield from policy
        self._memory.put(key, made := record(result))
        return made


def _key(window: Features, *given: Any) -> str:
    digest = hashlib.sha256(window.features_mt.tobytes())
    digest.update(repr(given).encode())
    return digest.hexdigest()


class WindowDecoder:
    """Decodes independent windows in the calling thread, together as far as its cache has rows.

    A window stays encoded, and can be decoded again, until other windows need its slot.
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
    ) -> None:
        """Prepare; `rows`: most beams or samples at once, of all `windows` together."""
        self.requests = WindowRequests(tokenizer, context, speculations)
        self.scheduler = Scheduler(
            runtime, rows=rows, capacity=context, inputs=windows, requests=windows
        )

    def answer(self, policy: Policy[Result]) -> Result:
        [result] = self.scheduler.results(policy)
        return result

    def detect_languages(self, windows: Sequence[Features]) -> list[dict[str, float]]:
        return self.scheduler.results(*map(self.requests.languages, windows))

    def decode(
        self,
        windows: Sequence[Features],
        options: DecodingOptions,
        *,
        prompt: Sequence[int] = (),
        stream: int = 0,
    ) -> list[DecodingResult]:
        """Decode windows, each after the same prompt, to their ends; as `WindowRequests.decode`."""
        return self.scheduler.results(
            *(
                self.requests.decode(window, options, prompt=prompt, stream=stream)
                for window in windows
            )
        )


class WindowCaller(PolicyCaller, JobCaller):
    """A policy about one window in an engine: short, and first, as a speaker waits for it."""

    priority = -1

    def __init__(self, policy: Policy[Any]) -> None:
        super().__init__()
        self._result: Any = None
        self._how: str | None = None
        self._error: Exception | None = None
        self.start(policy)

    @property
    @override
    def ending(self) -> str | None:
        return self._how

    @override
    def ended(self, policy: Policy[Any], result: Any) -> None:
        self._how, self._result = "stop", result
        if isinstance(result, DecodingResult):
            self.totals.generated_tokens += len(result.tokens)

    @override
    def fail(self, error: Exception) -> None:
        self._how, self._error = "error", error

    @override
    def settle(self) -> None:
        if self._error is not None:
            self.job.fail(self._error)
        else:
            self.job.finish(self._result)
