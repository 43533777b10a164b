"""The Whisper model that `kvcast.load` returns, ready to transcribe.

Turns the options of a call into ways to decode a window.
"""

from collections.abc import Generator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from typing_extensions import override

from kvcast.audio.decode import AudioInput
from kvcast.audio.features import MelWindows, open_features
from kvcast.decoding.speculative_decoding import Paired, Speculations, speculations
from kvcast.engine.callers import JobCaller, Policy
from kvcast.engine.scheduler import Scheduler
from kvcast.errors import KvcastError, UsageError
from kvcast.families.whisper import WhisperDimensions
from kvcast.keywords import keywords_of
from kvcast.runtimes.base import EncoderDecoder
from kvcast.speech.abilities import ABILITIES, Abilities
from kvcast.speech.base import Answer, Decoding, TranscriptionModel
from kvcast.speech.params import (
    SPLIT,
    AlignParams,
    LanguageParams,
    LiveParams,
    TranscribeParams,
    WindowParams,
)
from kvcast.speech.recordings import open_recording, open_windows
from kvcast.whisper.decoding import DecodingOptions, cut_notices
from kvcast.whisper.forced_alignment import Alignment, aligned
from kvcast.whisper.language_detection import DetectedLanguage, detect
from kvcast.whisper.local_agreement import AGREEMENT, AlignAtt, LocalAgreement, StreamingPolicy
from kvcast.whisper.long_form import WhisperPlan, initial_tokens
from kvcast.whisper.streaming import STEP, StreamingWindow
from kvcast.whisper.streaming_recognizer import WhisperRecognizer
from kvcast.whisper.tokenizer import WhisperTokenizer
from kvcast.whisper.windows import WindowCaller, WindowDecoder, WindowRequests

_WINDOW_SECONDS = 30
_POSITIONS_PER_SECOND = 50  # two frames of 10 ms become one position of the encoder


class WhisperModel(TranscriptionModel):
    """A runtime with its tokenizer and dimensions."""

    def __init__(
        self,
        runtime: EncoderDecoder,
        tokenizer: WhisperTokenizer,
        dimensions: WhisperDimensions,
    ) -> None:
        seconds = dimensions.source_positions / _POSITIONS_PER_SECOND
        if seconds != _WINDOW_SECONDS:
            raise KvcastError(
                f"this model has windows of {seconds:g} s; kvcast supports windows of "
                f"{_WINDOW_SECONDS} s, as published Whispers have"
            )
        self.runtime = runtime
        self.tokenizer: WhisperTokenizer = tokenizer
        self.dimensions: WhisperDimensions = dimensions

    @property
    @override
    def is_multilingual(self) -> bool:
        return self.tokenizer.is_multilingual

    @property
    @override
    def abilities(self) -> Abilities:
        known = ABILITIES["whisper"].among(self.languages)
        return replace(known, translates=self.is_multilingual)

    @property
    @override
    def languages(self) -> tuple[str, ...]:
        return self.tokenizer.languages

    @cached_property
    def paired(self) -> Paired:
        """The model as one that drafts for another, or that another drafts for."""
        return Paired(
            runtime=self.runtime,
            family=f"Whisper ({self.dimensions.n_mels} mels)",
            vocabulary=self.tokenizer,
            tokens=self.dimensions.vocab_size,
            longest=self.dimensions.target_positions,
        )

    def decoder(
        self, *attempts: DecodingOptions, windows: int = 1, draft: Any = None
    ) -> WindowDecoder:
        """Return a decoder of `windows` windows at once, fewer after the first attempt.

        Raises UsageError for a drafter, named by `draft`, that does not fit.
        """
        widths = [options.strategy().width for options in attempts]
        rows = max(windows * widths[0], *widths)
        context = self.dimensions.target_positions
        return WindowDecoder(
            self.runtime,
            self.tokenizer,
            context,
            rows=rows,
            windows=windows,
            speculations=speculations(draft, self.paired),
        )

    @keywords_of(LanguageParams)
    def detect_language(self, audio: AudioInput, params: LanguageParams) -> DetectedLanguage:
        """Detect the language that is spoken in a recording.

        Args:
            audio: as `transcribe` takes it.
            params: given as keywords.

        Returns:
            The likeliest language, and the probabilities of all.

        Raises:
            UsageError: the model knows English only.
            InputMissingError, InputOutputError: the recording cannot be read.

        """
        if not self.is_multilingual:
            raise UsageError("this model knows English only: there is no language to detect")
        with open_features(open_recording(audio, params), self.dimensions.n_mels) as recording:
            decoder = self.decoder(DecodingOptions())
            return decoder.answer(detect(decoder.requests, recording, params))

    def align(
        self,
        audio: AudioInput,
        text: str,
        *,
        language: str | None = None,
        audio_track: str | int | None = None,
        sampling_rate: int = AlignParams.sampling_rate,
    ) -> Alignment:
        """Align a given text: find when each of its words is spoken in a recording.

        Args:
            audio: as `transcribe` takes it.
            text: one or more lines; each becomes a segment with its words.
            language: a code or name; detected by default.
            audio_track: the audio track of a film, by number or language.
            sampling_rate: samples per second of an array.

        Raises:
            UsageError: there is no text, or no speech.
            InputMissingError, InputOutputError: the recording cannot be read.

        """
        options = TranscribeParams(
            language=language,
            audio_track=audio_track,
            sampling_rate=sampling_rate,
            temperature=0.0,
            word_timestamps=True,
            best_of=1,
        )
        attempts = self.attempts(options)
        decoder = self.decoder(*attempts)
        with open_features(open_recording(audio, options), self.dimensions.n_mels) as recording:
            code = attempts[0].language
            if code is None and self.is_multilingual:
                code = decoder.answer(detect(decoder.requests, recording, options)).language
            policy = aligned(
                decoder.requests,
                recording,
                text,
                language=code or "en",
                attempts=[replace(attempt, language=code) for attempt in attempts],
                params=options,
            )
            return decoder.answer(policy)

    @property
    @override
    def _row_positions(self) -> int:
        return self.dimensions.target_positions

    @override
    def _prefill(self, chunk: int) -> tuple[int | None, int]:
        # A window's prompt is short: windows are encoded one at a time between two steps.
        return None, self.dimensions.source_positions

    def caller(
        self,
        given: AudioInput | Policy[Any],
        options: Mapping[str, Any],
        scheduler: Scheduler,
    ) -> JobCaller:
        if isinstance(given, Generator):
            return WindowCaller(given)
        return super().caller(given, options, scheduler)

    def _requests(self, drafts: Speculations | None = None) -> WindowRequests:
        return WindowRequests(self.tokenizer, self.dimensions.target_positions, drafts)

    @override
    def _open(self, audio: Any, params: TranscribeParams) -> MelWindows:
        return open_windows(audio, self.dimensions.n_mels, params)

    @override
    def _decoding(self, params: TranscribeParams) -> Decoding:
        attempts, context = self.attempts(params), self.dimensions.target_positions
        drafts = speculations(params.draft, self.paired)
        # Only word times show when a silent speaker begins: segments may begin earlier.
        words = params.word_timestamps or params.channels == SPLIT
        # With `vad` the windows are clipped already, and have other times.
        decoded = replace(params.unclipped() if params.vad else params, word_timestamps=words)
        requests = self._requests(drafts)
        return Decoding(
            params=decoded,
            plan=partial(WhisperPlan, requests, attempts, decoded),
            widths=[options.strategy().width for options in attempts],
            capacity=context,
            notices=self._notices(params),
            advice=self._advice(params),
        )

    def _advice(self, params: TranscribeParams) -> str:
        if not self.is_multilingual:
            return (
                "this model knows English only; for another language take a multilingual one, such "
                "as demo-base or openai/whisper-base"
            )
        if params.language is not None:
            return f"is {params.language!r} the language spoken? without language it is detected"
        return "the language may be detected wrongly: give language"

    def _notices(self, params: TranscribeParams) -> tuple[str, ...]:
        initial = initial_tokens(params, self.tokenizer)
        return cut_notices(initial, params, self.tokenizer, self.dimensions.target_positions)

    @override
    def streaming_window(self, params: LiveParams, answer: Answer | None = None) -> StreamingWindow:
        from kvcast.whisper.streaming import StreamingWindow

        attempts, requests = self.attempts(params), self._requests()
        if answer is None:
            decoder = self.decoder(*attempts, draft=params.draft)
            answer, requests = decoder.answer, decoder.requests
        recognizer = WhisperRecognizer(
            answer,
            requests=requests,
            n_mels=self.dimensions.n_mels,
            attempts=attempts,
            params=params,
        )
        return StreamingWindow(
            recognizer,
            prompt=initial_tokens(params, self.tokenizer),
            conditions=params.condition_on_previous_text,
            policy=self._streaming_policy(params),
            step=params.step or STEP,
            notices=self._notices(params),
        )

    def _streaming_policy(self, params: LiveParams) -> StreamingPolicy:
        """Return the policy of live transcription: by attention where heads follow the speech."""
        if params.agreement is not None:
            return LocalAgreement(params.agreement)
        if not self.dimensions.has_known_heads:
            return LocalAgreement(AGREEMENT)
        return AlignAtt(round(params.margin * _POSITIONS_PER_SECOND))

    def attempts(self, params: TranscribeParams) -> list[DecodingOptions]:
        """Return the options to decode a window first, and after each rejection."""
        spoken = params.language
        language = None if spoken is None else self.tokenizer.language_code(spoken)
        options = params.values(WindowParams)
        cold = DecodingOptions(**options | {"language": language, "temperature": 0.0, "best_of": 1})
        cold.check(self.tokenizer, self.dimensions.target_positions)
        if params.multilingual and not self.is_multilingual:
            raise UsageError("this model knows English only: leave out multilingual")
        hot = replace(cold, temperature=1.0, best_of=params.best_of, beam=1, patience=None)
        return [replace(hot if t else cold, temperature=t) for t in params.temperatures]
