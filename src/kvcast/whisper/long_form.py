"""Long form: clips decoded window by window, with temperature fallback, as in openai/whisper.

Follows `transcribe` in openai/whisper's transcribe.py: windows seek by the predicted timestamps,
text conditions the next window, failed windows are decoded again at a higher temperature, silent
ones are skipped. Text that was stopped because it loops has failed, too.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from kvcast.audio.features import MelWindows
from kvcast.decoding.speculative_decoding import DraftCounts
from kvcast.engine.callers import Policy
from kvcast.runtimes.base import Float32
from kvcast.speech.params import TranscribeParams
from kvcast.speech.recordings import WindowSource, cut_first_chunk
from kvcast.speech.transcription import Memory, Plan, RecordingPart, clipped_frames
from kvcast.transcripts.segments import FRAMES_PER_SECOND, Segment
from kvcast.whisper.decoding import DecodingOptions, DecodingResult
from kvcast.whisper.hallucinations import KeptSegments, WindowText, WordTimestamps
from kvcast.whisper.language_detection import LanguageSpan, LanguageSpans, detect
from kvcast.whisper.requests import Features
from kvcast.whisper.tokenizer import WhisperTokenizer, timestamps_from
from kvcast.whisper.windows import WindowRequests
from kvcast.whisper.word_timestamps import (
    FRAMES_PER_TIMESTAMP,
    WINDOW_FRAMES,
    Span,
    Window,
    ends_alone,
    split,
    within,
)

_REMNANT = 1.0  # seconds before the end in which no segment begins: it is the pause of the cut


class OpenEnd:
    """The end of a window in running speech: the text may continue in the next one."""

    def options(self, options: DecodingOptions, window: Window) -> DecodingOptions:
        del window
        return options

    def tokens(self, result: DecodingResult, window: Window) -> Sequence[int]:
        """Return a window's tokens, with a timestamp at the end if the text does not continue."""
        del window
        return result.tokens

    def resumed(self, after_words: int, after_timestamps: int) -> int:
        """Return the next window's frame, given the last word's end and the timestamps."""
        del after_timestamps
        return after_words


@dataclass(frozen=True)
class QuietEnd(OpenEnd):
    """Chunks end in a pause, so no sentence continues.

    A chunk has no next window to leave the text after the last timestamp to, so the model must
    finish its segments, and a finished text ends with the chunk.
    """

    timestamp_begin: int

    @override
    def options(self, options: DecodingOptions, window: Window) -> DecodingOptions:
        return replace(options, latest_start=max(0.0, window.duration - _REMNANT))

    @override
    def tokens(self, result: DecodingResult, window: Window) -> Sequence[int]:
        tokens = result.tokens
        timestamps = timestamps_from(self.timestamp_begin)
        timed = [token in timestamps for token in tokens]
        if not any(timed) or not result.complete:
            return tokens
        if timed[-2:] == [True, True]:  # a segment in the remnant
            return tokens[:-1]
        if timed[-1]:
            return tokens
        return (*tokens, self.timestamp_begin + window.frames // FRAMES_PER_TIMESTAMP)

    @override
    def resumed(self, after_words: int, after_timestamps: int) -> int:
        return after_timestamps


def rejection(result: DecodingResult, params: TranscribeParams) -> str | None:
    """Return why a result calls for another attempt; None accepts it."""
    improbable = _is_improbable(result, params)
    if improbable and _has_no_speech(result, params):
        return None
    reasons = [] if result.repetition is None else [result.repetition]
    limit = params.compression_ratio_threshold
    if limit is not None and result.compression_ratio > limit:
        reasons.append(f"compression_ratio {result.compression_ratio:.2f} > {limit:g}")
    if improbable:
        reasons.append(f"avg_logprob {result.avg_logprob:.2f} < {params.logprob_threshold:g}")
    return " and ".join(reasons) or None


def is_silence(result: DecodingResult, params: TranscribeParams) -> bool:
    limit = params.logprob_threshold
    confident = limit is not None and result.avg_logprob > limit
    return _has_no_speech(result, params) and not confident


def _is_improbable(result: DecodingResult, params: TranscribeParams) -> bool:
    limit = params.logprob_threshold
    return limit is not None and result.avg_logprob < limit


def _has_no_speech(result: DecodingResult, params: TranscribeParams) -> bool:
    limit = params.no_speech_threshold
    return limit is not None and result.no_speech_prob > limit


_WORTH_TELLING = 500  # frames of 10 ms
_OTHER = "it may be in another language (--multilingual, with a multilingual model)"
PROMPT_RESET_TEMPERATURE = 0.5  # a text above it does not condition the next window


class LongForm:
    """Clips of a recording whose windows are decoded in sequence.

    `notices`: a second of the recording, and the text. `segments`: finished ones that were not
    taken yet; empty ones and ones that take no time are left out. Ids count from 0 within the
    clips.
    """

    def __init__(
        self,
        audio: WindowSource,
        clips: Sequence[tuple[int, int]],
        *,
        requests: WindowRequests,
        attempts: Sequence[DecodingOptions],
        params: TranscribeParams,
        end: OpenEnd | None = None,
        spans: Sequence[LanguageSpans | None] | None = None,
    ) -> None:
        """Prepare; nothing is read yet.

        `clips`: the first frame (of 10 ms) of each, and the frame after its last; none is empty.
        `attempts`: options for the first decoding, and after each rejection. Their prefix applies
        only to the first window. `spans`: the languages of each clip, or None where these do not
        change; a window ends with its language.
        """
        self._audio = audio
        self._clips = deque(zip(clips, spans or [None] * len(clips), strict=True))
        self._seek = clips[0][0] if clips else 0
        self._requests = requests
        self._attempts = list(attempts)
        self._params = params
        self._end = end or OpenEnd()
        self._prompt = initial_tokens(params, requests.tokenizer)
        self._prompt_language: str | None = None
        self._placing = WordTimestamps(params, requests, self._end.resumed)
        self._found = 0
        self.drafts: list[DraftCounts] = []
        self.notices: list[tuple[float, str]] = []
        self._unheard: list[Window] = []  # not silent, and taken for no speech
        self.segments: deque[Segment] = deque()
        self.over = False

    def decode(self) -> Policy[None]:
        while self._clips:
            (_, end), spans = self._clips[0]
            span = None if spans is None else (yield from spans.at(self._seek))
            last = end if span is None else span.end
            yield from self._decode_window(
                Window(self._seek, min(WINDOW_FRAMES, last - self._seek)), span
            )
            if self._clips:
                yield None  # may have to wait for the next window
        if self._unheard and self._found:
            seconds = sum(window.duration for window in self._unheard)
            told = f"{seconds:.0f} s were taken for no speech: if somebody speaks there, {_OTHER}"
            self.notices.append((self._unheard[0].start, told))
        self.over = True

    def _decode_window(self, window: Window, span: LanguageSpan | None) -> Policy[None]:
        if self._audio.is_silent(window.seek, window.seek + window.frames):
            self._advance(window.frames)
            return
        tokenizer = self._requests.tokenizer
        features = Features(self._audio.window(window.seek, window.seek + window.frames))
        result, rejections = yield from self._attempt(features, window, span)
        if self._attempts[0].prefix is not None:
            self._attempts = [replace(options, prefix=None) for options in self._attempts]
        if is_silence(result, self._params):
            if window.frames >= _WORTH_TELLING:
                self._unheard.append(window)
            self._advance(window.frames)
            return
        if result.repetition is not None:
            self.notices.append((window.start, f"the text {result.repetition}: cut"))
        if self._prompt_language not in (None, result.language):
            self._prompt.clear()
        self._prompt_language = result.language
        tokens = self._end.tokens(result, window)
        segments, advance = split(tokens, window, tokenizer.timestamp_begin)
        window_text = WindowText(
            window=window,
            features=features,
            result=result,
            rejections=rejections,
            spans=segments,
            complete=ends_alone(tokens, tokenizer.timestamp_begin),
            seek=window.seek + advance,
        )
        if self._params.word_timestamps:
            kept = yield from self._placing.place(window_text, end=self._clips[0][0][1])
        else:
            kept = KeptSegments(segments, window_text.seek)
        self._keep(window_text, kept)

    def _attempt(
        self, features: Features, window: Window, span: LanguageSpan | None
    ) -> Policy[tuple[DecodingResult, tuple[str, ...]]]:
        """Decode until a result is accepted; return it, and the reasons for earlier rejections."""
        rejections: list[str] = []
        while True:
            options = self._attempts[len(rejections)]
            if span is not None:
                options = replace(options, language=span.language)
            result = yield from self._requests.decode(
                features,
                self._end.options(options, window),
                prompt=tuple(self._prompt),
                prompt_language=self._prompt_language,
                stream=window.seek,
            )
            if result.draft is not None:
                self.drafts.append(result.draft)
            reason = rejection(result, self._params)
            if reason is None or len(rejections) + 1 == len(self._attempts):
                return result, tuple(rejections)
            rejections.append(reason)

    def _keep(self, window_text: WindowText, kept: KeptSegments) -> None:
        self._advance(kept.seek - window_text.window.seek)
        if kept.skipped:
            return
        texts = [(span, text) for span in kept.spans if (text := self._text(span)).strip()]
        texts = [(span, text) for span, text in texts if span.start != span.end]
        spans = within([span for span, _ in texts], window_text.window.end)
        for span, (_, text) in zip(spans, texts, strict=True):
            self._prompt += span.tokens
            self.segments.append(_segment(self._found, window_text, span, text))
            self._found += 1
        if not self._conditions_next(window_text.result):
            self._prompt.clear()

    def _advance(self, frames: int) -> None:
        self._seek += frames
        if self._seek >= self._clips[0][0][1]:
            self._clips.popleft()
            self._seek = self._clips[0][0][0] if self._clips else self._seek

    def _conditions_next(self, result: DecodingResult) -> bool:
        certain = result.temperature <= PROMPT_RESET_TEMPERATURE and result.repetition is None
        return self._params.condition_on_previous_text and certain

    def _text(self, span: Span) -> str:
        tokenizer = self._requests.tokenizer
        return tokenizer.decode(token for token in span.tokens if tokenizer.is_text(token))


def initial_tokens(params: TranscribeParams, tokenizer: WhisperTokenizer) -> list[int]:
    if params.initial_prompt is None:
        return []
    return tokenizer.encode(" " + params.initial_prompt.strip())


def _segment(id_: int, window_text: WindowText, span: Span, text: str) -> Segment:
    return Segment(
        id=id_,
        seek=window_text.window.seek,
        start=span.start,
        end=span.end,
        text=text,
        tokens=span.tokens,
        language=window_text.result.language,
        temperature=window_text.result.temperature,
        avg_logprob=window_text.result.avg_logprob,
        compression_ratio=window_text.result.compression_ratio,
        no_speech_prob=window_text.result.no_speech_prob,
        fallback=window_text.rejections,
        words=span.words,
    )


Begin = Callable[[RecordingPart], None]


class WhisperPlan(Plan[MelWindows]):
    def __init__(
        self,
        requests: WindowRequests,
        attempts: Sequence[DecodingOptions],
        params: TranscribeParams,
    ) -> None:
        """Prepare; `attempts` are for the first decoding of a window and after each rejection."""
        self._requests = requests
        self._attempts = attempts
        self._params = params

    @override
    def remember(self, memory: Memory) -> bool:
        self._requests = self._requests.remembering(memory)
        return True

    @override
    def parts(self, recording: MelWindows, begin: Begin) -> Policy[None]:
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
        windows: MelWindows,
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

    def _long_form(
        self, audio: WindowSource, clips: Sequence[tuple[int, int]], **given: Any
    ) -> LongForm:
        return LongForm(audio, clips, requests=self._requests, params=self._params, **given)

    def _detected(self, windows: MelWindows) -> Policy[str]:
        tokenizer = self._requests.tokenizer
        if (language := self._attempts[0].language) is not None:
            return tokenizer.language_code(language)
        if not tokenizer.is_multilingual:
            return "en"
        detected = yield from detect(self._requests, windows, self._params)
        return detected.language

    def _spans(self, windows: MelWindows, clip: tuple[int, int]) -> LanguageSpans | None:
        if not self._params.multilingual:
            return None

        def detected(window_mt: Float32) -> Policy[dict[str, float]]:
            return self._requests.languages(Features(window_mt))

        return LanguageSpans(windows, clip, detected)
