"""The base class of every model that transcribes: recordings, channels, batches, live audio."""

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, ClassVar, Literal, TypeAlias

from typing_extensions import override

from kvcast.audio.decode import AudioInput
from kvcast.audio.features import RecordedAudio
from kvcast.audio.vad import Endpoints, VoiceDetector
from kvcast.engine.callers import JobCaller, Policy
from kvcast.engine.memory import fitting
from kvcast.engine.model import Model
from kvcast.engine.scheduler import Scheduler
from kvcast.errors import UsageError
from kvcast.families.programs import ENCODED
from kvcast.families.table import family_with
from kvcast.keywords import check_keywords, keywords_of
from kvcast.runtimes.base import EncoderDecoder
from kvcast.speech.abilities import Abilities, LanguageSource
from kvcast.speech.channels import AnyTranscription, by_channel
from kvcast.speech.live import LiveTranscription, LiveWindow
from kvcast.speech.params import SPLIT, LiveParams, TranscribeParams
from kvcast.speech.recordings import live_voice_detector, voice_detector
from kvcast.speech.served_recording import ServedRecording
from kvcast.speech.transcription import Plan, Transcription

Answer: TypeAlias = Callable[[Policy[Any]], Any]  # runs a window's policy and returns its result


@dataclass(frozen=True, kw_only=True)
class Decoding:
    params: TranscribeParams
    plan: Callable[[], Plan[Any]]  # makes one for each recording
    widths: Sequence[int]  # rows of a window in each attempt
    capacity: int  # most positions of a row
    notices: tuple[str, ...] = ()
    advice: str | None = None  # on an improbable text


class TranscriptionModel(Model):
    task: ClassVar[Literal["transcribe"]] = "transcribe"
    runtime: EncoderDecoder

    @property
    @override
    def _described(self) -> str:
        spoken = "English" if self.languages == ("en",) else f"{len(self.languages)} languages"
        return f"{family_with(self.dimensions).title}, {spoken}"

    @property
    @abstractmethod
    @override
    def abilities(self) -> Abilities:
        """Languages, hints, translation, word times and live audio."""

    @property
    @override
    def languages(self) -> tuple[str, ...]:
        return tuple(self.abilities.languages)

    @property
    @override
    def is_multilingual(self) -> bool:
        return self.languages != ("en",)

    @override
    def detect_language(self, *_: Any, **__: Any) -> Any:
        """Raise UsageError: the model reports the language only with a transcript, or never."""
        if self.abilities.language is LanguageSource.DETECTED:
            raise UsageError(
                "this model reports the language only with a transcript: use kvcast transcribe"
            )
        raise UsageError("this model does not detect the language: use Whisper or Qwen3-ASR")

    @override
    def align(self, *_: Any, **__: Any) -> Any:
        """Raise UsageError: only Whisper aligns a given text."""
        raise UsageError("this model cannot align a given text: use a Whisper model")

    @keywords_of(TranscribeParams)
    def transcribe(self, audio: AudioInput, params: TranscribeParams) -> AnyTranscription:
        """Turn speech into segments of text, which are decoded while they are taken.

        Args:
            audio: a path, "-" for standard input, a binary file object, a file's bytes, or an
                array of samples; see `kvcast.audio.decode.open_audio`.
            params: given as keywords.

        Returns:
            An iterator of `Segment`, with `language`, `duration`, `notices`, `skipped` and `draft`.

        Raises:
            UsageError: for options that the model does not support.
            InputMissingError, InputOutputError: the recording cannot be read.

        """
        [transcription] = self._transcriptions([audio], params)
        return transcription.open()

    @keywords_of(TranscribeParams)
    async def atranscribe(self, audio: AudioInput, params: TranscribeParams) -> AnyTranscription:
        """Await a whole transcription, which runs in a thread.

        Segments as they come: `async for segment in model.transcribe(audio)`.

        Args:
            audio: as `transcribe` takes it.
            params: given as keywords.

        Raises:
            UsageError, InputMissingError, InputOutputError: as `transcribe`.

        """
        from asyncio import to_thread

        [transcription] = self._transcriptions([audio], params)
        await to_thread(lambda: transcription.transcript)
        return transcription

    @keywords_of(TranscribeParams)
    def transcribe_all(
        self, audio: Iterable[AudioInput], params: TranscribeParams
    ) -> list[AnyTranscription]:
        """Turn recordings into segments; with `batch`, windows of several are decoded together.

        Args:
            audio: recordings, each as `transcribe` takes it.
            params: given as keywords.

        Returns:
            A transcription for each, best taken in this order. Nothing is opened before its turn
            comes, so an error of a recording is raised when its segments are taken.

        Raises:
            UsageError: for options that the model does not support.

        """
        is_one = isinstance(audio, str | bytes | os.PathLike) or hasattr(audio, "ndim")
        if is_one or not isinstance(audio, Iterable):
            raise UsageError("transcribe_all takes a list of recordings: give one to transcribe")
        return self._transcriptions(audio, params)

    @keywords_of(LiveParams)
    def live(
        self, listener: VoiceDetector | None = None, *, params: LiveParams
    ) -> LiveTranscription:
        """Turn audio into text while it arrives.

        Args:
            listener: gives probabilities of speech; Silero's voice activity detection if it is
                installed, or else loudness, with a notice.
            params: given as keywords.

        Returns:
            A transcription to feed with audio: `feed` and `finish` return its updates.

        Raises:
            UsageError: for options that the model does not support, and for a model that does not
                transcribe live audio.

        """
        window = self.streaming_window(params)
        listener, notices = (listener, ()) if listener is not None else live_voice_detector()
        endpoints = Endpoints(listener, threshold=params.vad_threshold, pause=params.pause)
        return LiveTranscription(window, endpoints, notices=(*notices, *window.notices))

    @abstractmethod
    def streaming_window(self, params: LiveParams, answer: Answer | None = None) -> LiveWindow:
        """Return a window over a live stream; raises UsageError as `live` does.

        `answer` runs the window's policies on an engine; by default the window has separate rows.
        """

    @property
    def input_bytes(self) -> int:
        """Most bytes that the cache takes for one encoded window or chunk, in fp32."""
        values = sum(
            run.layers * len(run.parts) * prod((run.heads, run.capacity, run.head_dim))
            for run in family_with(self.dimensions).caches(self.dimensions)
            if run.kind in ENCODED
        )
        return 4 * values

    def scheduler(self, rows: int, budget: int, chunk: int) -> Scheduler:
        longest = self._row_positions
        sizes = fitting(
            self.runtime.row_bytes,
            longest=longest,
            rows=rows,
            budget=budget,
            fixed=self.input_bytes,
        )
        if sizes.capacity < longest:
            raise UsageError(
                f"this model needs rows of {longest} positions, and the cache's memory is enough "
                f"for {sizes.capacity}: give it more"
            )
        most_at_once, turn = self._prefill(chunk)
        return Scheduler(
            self.runtime,
            rows=sizes.rows,
            capacity=longest,
            inputs=sizes.rows,
            chunk=most_at_once,
            turn=turn,
            cache_bytes=sizes.bytes,
        )

    def caller(
        self, given: AudioInput | Policy[Any], options: Mapping[str, Any], scheduler: Scheduler
    ) -> JobCaller:
        check_keywords("submit", TranscribeParams, options)
        # Sampling fills all rows, unless the user gives a number.
        drawn = min(TranscribeParams().best_of, scheduler.rows)
        params = TranscribeParams(**{"best_of": drawn, **options})
        if params.draft is not None:
            raise UsageError("draft is not supported in an engine, whose rows are shared")
        if params.progress:
            raise UsageError("an engine shows no progress: iterate the job")
        decoding = self._decoding(params)
        if params.channels == SPLIT:
            raise UsageError(
                "an engine mixes channels: give it each channel as a separate recording"
            )
        if max(decoding.widths) > scheduler.rows:
            raise UsageError(
                f"beam and best_of must be at most {scheduler.rows}, the rows of the engine"
            )
        if decoding.capacity > scheduler.capacity:
            raise UsageError(
                f"max_new_tokens and the prompt need {decoding.capacity} positions, and the "
                f"engine's rows have {scheduler.capacity}: give fewer"
            )
        return ServedRecording(
            self._opening(given, params),
            decoding.plan(),
            params=decoding.params,
            together=scheduler.rows,
            notices=decoding.notices,
            advice=decoding.advice,
        )

    def _transcriptions(
        self, audio: Iterable[AudioInput], params: TranscribeParams
    ) -> list[AnyTranscription]:
        decoding = self._decoding(params)
        scheduler = self._own_scheduler(decoding, params.batch or 1)

        def begin(recording: AudioInput, priority: int) -> Transcription:
            return Transcription(
                scheduler,
                self._opening(recording, params),
                decoding.plan(),
                params=decoding.params,
                priority=priority,
                notices=decoding.notices,
                advice=decoding.advice,
            )

        made: list[AnyTranscription] = [
            by_channel(recording, params, partial(begin, priority=index))
            if params.channels == SPLIT
            else begin(recording, index)
            for index, recording in enumerate(audio)
        ]
        for transcription in made:
            transcription.shows_progress = params.progress
        return made

    def _own_scheduler(self, decoding: Decoding, together: int) -> Scheduler:
        return Scheduler(
            self.runtime,
            rows=max(together * decoding.widths[0], *decoding.widths),
            capacity=decoding.capacity,
            inputs=together,
            requests=together,
        )

    def _opening(self, audio: Any, params: TranscribeParams) -> Callable[[], RecordedAudio]:
        """Return a function that opens a recording; raises InputMissingError if `vad` lacks one."""
        if params.vad:
            voice_detector()
        return partial(self._open, audio, params)

    @property
    @abstractmethod
    def _row_positions(self) -> int:
        """Positions of an engine's rows: enough for any request."""

    @abstractmethod
    def _prefill(self, chunk: int) -> tuple[int | None, int]:
        """Return `chunk` and `turn` of an engine's scheduler."""

    @abstractmethod
    def _decoding(self, params: TranscribeParams) -> Decoding:
        """Return how recordings are decoded; raises UsageError for options not supported."""

    @abstractmethod
    def _open(self, audio: Any, params: TranscribeParams) -> RecordedAudio:
        """Open a recording."""
