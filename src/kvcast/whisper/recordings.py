"""Whisper's recordings: cut where windows follow one another, or where it is quiet.

Without a batch, windows follow one another as in openai/whisper's transcribe.py; in a batch, the
recording is cut where it is quiet, and the chunks are decoded together.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from kvcast.engine.callers import JobCaller, Policy, PolicyCaller
from kvcast.runtimes.base import Float32
from kvcast.speech.params import TranscribeParams
from kvcast.speech.recordings import Sound, Windows, cut_first_chunk
from kvcast.speech.transcription import Plan, RecordingPart, clipped_frames
from kvcast.transcripts.segments import FRAMES_PER_SECOND
from kvcast.whisper.decoding import DecodingOptions, DecodingResult
from kvcast.whisper.language_detection import LanguageSpans, detect
from kvcast.whisper.long_form import LongForm, QuietEnd
from kvcast.whisper.requests import Features
from kvcast.whisper.windows import WindowRequests

Begin = Callable[[RecordingPart], None]


class WhisperPlan(Plan[Windows]):
    def __init__(
        self,
        requests: WindowRequests,
        attempts: Sequence[DecodingOptions],
        params: TranscribeParams,
    ) -> None:
        """Prepare.

        Args:
            requests: makes the requests of windows.
            attempts: how to decode a window first, and after each rejection; one at least.
            params: all other options.

        """
        self._requests = requests
        self._attempts = attempts
        self._params = params

    @override
    def parts(self, recording: Windows, begin: Begin) -> Policy[None]:
        # Known before the recording is released, whether windows are decoded in it or not.
        language = self.language = yield from self._detected(recording)
        clips = clipped_frames(self._params, recording.content_frames)
        clips = [clip for clip in clips if clip[0] < clip[1]]
        attempts = self._attempts
        if not self._params.multilingual:
            attempts = [replace(options, language=language) for options in attempts]
        spans = [self._spans(recording, clip) for clip in clips]
        if self._params.batch is None:
            if clips:
                begin(self._long_form(recording, clips, attempts=attempts, spans=spans))
            return
        for clip, spoken in zip(clips, spans, strict=True):
            attempts = yield from self._chunks(recording, begin, clip, spoken, attempts)

    def _chunks(
        self,
        windows: Windows,
        begin: Begin,
        clip: tuple[int, int],
        spans: LanguageSpans | None,
        attempts: Sequence[DecodingOptions],
    ) -> Policy[Sequence[DecodingOptions]]:
        """Begin a clip's chunks, as there is room; return the attempts for the next clip."""
        quiet = QuietEnd(self._requests.tokenizer.timestamp_begin)
        joints = [round(at * FRAMES_PER_SECOND) for at in windows.timeline.joints]
        seek, end = clip
        while seek < end:
            last = end
            if spans is not None:
                span = yield from spans.at(seek)
                last = span.end
                attempts = [replace(options, language=span.language) for options in attempts]
            chunk = cut_first_chunk(windows, (seek, last), joints)
            place = [(chunk.first, chunk.end)]
            begin(self._long_form(chunk, place, attempts=attempts, end=quiet))
            attempts = [replace(options, prefix=None) for options in attempts]
            seek = chunk.end
            yield None
        return attempts

    def _long_form(self, sound: Sound, clips: Sequence[tuple[int, int]], **given: Any) -> LongForm:
        return LongForm(sound, clips, requests=self._requests, params=self._params, **given)

    def _detected(self, windows: Windows) -> Policy[str]:
        """Find the language: the given one, or else detected in the first 30 seconds."""
        tokenizer = self._requests.tokenizer
        if (language := self._attempts[0].language) is not None:
            return tokenizer.language_code(language)
        if not tokenizer.is_multilingual:
            return "en"
        detected = yield from detect(self._requests, windows, self._params)
        return detected.language

    def _spans(self, windows: Windows, clip: tuple[int, int]) -> LanguageSpans | None:
        if not self._params.multilingual:
            return None

        def detected(window_mt: Float32) -> Policy[dict[str, float]]:
            return self._requests.languages(Features(window_mt))

        return LanguageSpans(windows, clip, detected)


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
