"""`POST /v1/audio/transcriptions` and `translations`: uploaded recordings in, transcripts out."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, BinaryIO, Literal

import numpy as np
from fastapi import UploadFile
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from kvcast.audio.decode import SAMPLE_RATE, ArrayAudio, open_audio
from kvcast.server.dispatch import State, check_room
from kvcast.server.errors import ApiError, busy
from kvcast.server.model_registry import Served
from kvcast.server.request_bodies import encoded, parsed
from kvcast.server.text_responses import event, finite, streamed
from kvcast.speech.languages import LANGUAGES
from kvcast.transcripts.params import SubtitleParams
from kvcast.transcripts.segments import Segment, Transcript
from kvcast.transcripts.subtitles import write_srt, write_vtt

_NAME = "the recording"

_AT_ONCE = 4  # number of the longest recordings whose samples fit the memory limit


class Recordings:
    """Reads recordings, and bounds the memory that samples take."""

    def __init__(self, minutes: float) -> None:
        self._minutes = minutes
        self._longest = round(60 * minutes * SAMPLE_RATE)
        self._room = _AT_ONCE * self._longest
        self._lock = threading.Lock()

    def read(
        self, file: BinaryIO, track: str | None, check: Callable[[], None]
    ) -> "UploadedRecording":
        """Return a recording to release; `check` is called for each block, and raises to stop.

        Raises ApiError for one that is too long, or for which there is no room now, and
        InputOutputError.
        """
        check()
        source = open_audio(file, _NAME, track=track)
        taken: list[NDArray[np.float32]] = []
        recording = UploadedRecording(self)
        try:
            for block in source.blocks():
                check()
                recording.take(len(block))
                taken.append(block)
                self._check(recording)
        except BaseException:
            recording.release()
            raise
        finally:
            source.close()
        samples_t = np.concatenate(taken) if taken else np.zeros(0, np.float32)
        recording.audio = ArrayAudio(samples_t, name=_NAME, notices=source.notices)
        return recording

    def _check(self, recording: "UploadedRecording") -> None:
        if recording.length > self._longest:
            raise ApiError(
                400,
                f"the recording is longer than {self._minutes:g} minutes",
                code="audio_too_long",
                param="file",
            )

    def take(self, samples: int) -> None:
        """Count samples in memory; raises ApiError if there are too many."""
        with self._lock:
            if samples > self._room:
                raise busy("too many recordings are waiting: try again later")
            self._room -= samples


class UploadedRecording:
    audio: ArrayAudio

    def __init__(self, room: Recordings) -> None:
        self.length = 0
        self._room = room

    def take(self, samples: int) -> None:
        self._room.take(samples)
        self.length += samples

    def release(self) -> None:
        """Give the room back; again has no effect."""
        self._room.take(-self.length)
        self.length = 0


Granularity = Literal["word", "segment"]
_SEGMENTS = 50  # segments of a transcript that are serialized where the event loop runs

_VAD = {
    "threshold": "vad_threshold",
    "min_silence_duration_ms": "min_silence",
    "speech_pad_ms": "speech_pad",
    "max_speech_duration_s": "max_speech",
}  # faster-whisper's parameters of voice detection, and the options that mean the same
_MILLISECONDS = "_ms"


def _parse_floats(given: Any) -> Any:
    """Return the values of one comma-separated field, or of several fields of a name."""
    if not isinstance(given, (list, tuple)):
        given = [given]
    return [number for text in given for number in _split(text)]


def _split(text: Any) -> list[Any]:
    return str(text).strip().strip("[]").split(",") if text != "" else []


_Temperature = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Temperatures = Annotated[tuple[_Temperature, ...], BeforeValidator(_parse_floats)]
_Seconds = Annotated[
    tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...], BeforeValidator(_parse_floats)
]
_Flag = Annotated[bool | None, Field()]


class SpeechForm(BaseModel):
    """The form of both endpoints: OpenAI's fields, and a few of kvcast's options."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    file: UploadFile
    model: str
    prompt: str | None = None
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: Annotated[
        _Temperatures,
        Field(description="one, or several: each is tried if the one before it fails"),
    ] = ()
    stream: _Flag = None
    beam: Annotated[int, Field(ge=1, le=1024)] | None = None
    vad: _Flag = None
    vad_filter: Annotated[_Flag, Field(description="as vad")] = None
    vad_parameters: Annotated[
        str | None,
        Field(
            description="a JSON object with threshold, min_silence_duration_ms, speech_pad_ms and "
            "max_speech_duration_s; needs vad"
        ),
    ] = None
    hotwords: Annotated[str | None, Field(description="words to expect in every window")] = None
    clip_timestamps: Annotated[
        _Seconds, Field(description="parts to transcribe: start,end,start,end,… in seconds")
    ] = ()
    audio_track: str | None = None


class TranscriptionForm(SpeechForm):
    language: str | None = None
    timestamp_granularities: Annotated[
        list[Granularity], Field(alias="timestamp_granularities[]", default_factory=list)
    ]
    include: Annotated[list[str], Field(alias="include[]", default_factory=list)]


async def speech(
    state: State, recordings: Recordings, request: Request, form: SpeechForm, task: str
) -> Response:
    served = state.models.speech_model(form.model)
    options, words = _options(form, task)
    check_room(served.engine)  # before reading a body that would be refused
    recording = await state.calls.read(
        request,
        partial(recordings.read, form.file.file, form.audio_track),
        UploadedRecording.release,
    )
    began = time.perf_counter()
    try:
        job = await state.calls.begin(request, served.engine, lambda: recording.audio, options)
    except BaseException:
        recording.release()
        raise
    job.when_done(recording.release)
    state.metrics.watch_speech(served.name, job)
    answer = _TranscriptAnswer(served, form, task, words)

    def log(transcript: Transcript) -> None:
        seconds = time.perf_counter() - began
        state.journal.recording(request, transcript, first_token=job.first_token, seconds=seconds)
        state.journal.notices(request, transcript.notices)
        state.journal.content(request, answer=_text(transcript.segments))

    if form.stream:

        def ended(transcript: Transcript, _: int) -> list[str]:
            log(transcript)
            return answer.ended(transcript)

        return await streamed(state.calls, request, job, answer.events, ended)
    transcript = await state.calls.result(request, job)
    log(transcript)
    return await state.calls.off_loop(
        lambda: answer.whole(transcript), len(transcript.segments) > _SEGMENTS
    )


def _options(form: SpeechForm, task: str) -> tuple[dict[str, Any], bool]:
    """Return the keywords of `transcribe`, and whether the answer has words."""
    detailed = form.response_format == "verbose_json"
    granularities = form.timestamp_granularities if isinstance(form, TranscriptionForm) else []
    if granularities and not detailed:
        raise ApiError(
            400,
            "timestamp_granularities needs the response_format verbose_json",
            param="timestamp_granularities",
        )
    if form.stream and form.response_format in {"srt", "vtt"}:
        raise ApiError(
            400, "a stream has the response_format json, text or verbose_json", param="stream"
        )
    if isinstance(form, TranscriptionForm) and form.include:
        raise ApiError(400, "include is not supported", param="include")
    options: dict[str, Any] = {"task": task, "initial_prompt": form.prompt or None}
    if any(form.temperature):
        options["temperature"] = form.temperature
    if form.clip_timestamps:
        options["clip_timestamps"] = form.clip_timestamps
    if form.hotwords:
        options["hotwords"] = form.hotwords
    if isinstance(form, TranscriptionForm) and form.language:
        options["language"] = form.language
    if form.beam is not None:
        options["beam"] = form.beam
    if form.vad or form.vad_filter:
        options |= {"vad": True, **_vad_options(form.vad_parameters)}
    words = "word" in granularities
    return options | ({"word_timestamps": True} if words else {}), words


def _vad_options(parameters: str | None) -> dict[str, float]:
    if not parameters:
        return {}
    options: dict[str, float] = {}
    try:
        for name, value in parsed(parameters).items():
            options[_VAD[name]] = float(value) / (1000 if name.endswith(_MILLISECONDS) else 1)
    except KeyError as unknown:
        raise ApiError(
            400,
            f"vad_parameters: {str(unknown)[:100]} is not supported; it may have {', '.join(_VAD)}",
            param="vad_parameters",
        ) from None
    except (ValueError, TypeError, AttributeError):
        raise ApiError(
            400, "vad_parameters must be a JSON object with numbers", param="vad_parameters"
        ) from None
    return options


class _TranscriptAnswer:
    def __init__(self, served: Served, form: SpeechForm, task: str, words: bool) -> None:
        self._served, self._form, self._task, self._words = served, form, task, words
        self._begun = False

    def whole(self, transcript: Transcript) -> Response:
        match self._form.response_format:
            case "text":
                return PlainTextResponse(_text(transcript.segments) + "\n")
            case "srt":
                subtitles = write_srt(transcript.segments, SubtitleParams())
                return PlainTextResponse("".join(subtitles), media_type="application/x-subrip")
            case "vtt":
                subtitles = write_vtt(transcript.segments, SubtitleParams())
                return PlainTextResponse("".join(subtitles), media_type="text/vtt")
            case "verbose_json":
                return Response(encoded(self._verbose(transcript)), media_type="application/json")
        return JSONResponse({"text": _text(transcript.segments), "usage": _usage(transcript)})

    def events(self, segment: Segment) -> list[str]:
        text = segment.text if self._begun else segment.text.lstrip()
        self._begun = self._begun or bool(text)
        events = []
        if self._form.response_format == "verbose_json":
            kind = "transcript.text.segment"
            events.append(event({"type": kind, **self._segment(segment)}))
        return [*events, event({"type": "transcript.text.delta", "delta": text})]

    def ended(self, transcript: Transcript) -> list[str]:
        document = {
            "type": "transcript.text.done",
            "text": _text(transcript.segments),
            "language": transcript.language,
            "duration": transcript.duration,
            "usage": _usage(transcript),
            "notices": list(transcript.notices),
        }
        return [event(document)]

    def _verbose(self, transcript: Transcript) -> dict[str, Any]:
        segments = [self._segment(segment) for segment in transcript.segments]
        document: dict[str, Any] = {
            "task": self._task,
            "language": LANGUAGES.get(transcript.language, transcript.language),
            "duration": transcript.duration,
            "text": _text(transcript.segments),
            "segments": segments,
            "usage": _usage(transcript),
            "notices": list(transcript.notices),
        }
        if self._words:
            document["words"] = [word for segment in segments for word in segment.pop("words")]
        return document

    def _segment(self, segment: Segment) -> dict[str, Any]:
        document: dict[str, Any] = {
            "id": segment.id,
            "seek": segment.seek,
            "start": segment.start,
            "end": segment.end,
            "text": segment.text,
            "tokens": [int(token) for token in segment.tokens],
            "temperature": segment.temperature,
            "avg_logprob": finite(segment.avg_logprob),
            "compression_ratio": finite(segment.compression_ratio),
            "no_speech_prob": finite(segment.no_speech_prob),
        }
        if self._words:
            document["words"] = [
                {"word": word.word.strip(), "start": word.start, "end": word.end}
                for word in segment.words or ()
            ]
        return document


def _text(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments).strip()


def _usage(transcript: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": transcript.duration}
