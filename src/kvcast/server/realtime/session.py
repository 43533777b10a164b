"""A session that transcribes: divides audio into turns, where the client commits or speech ends."""

import json
import secrets
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.audio.vad import BLOCK, ONSET, Change, Endpoints, VoiceDetector
from kvcast.server.errors import ApiError, api_error, busy
from kvcast.server.realtime.events import (
    Append,
    AudioInput,
    SessionUpdate,
    TranscriptionSettings,
    described,
    described_as_beta,
    from_beta,
    parsed,
    shaped,
)
from kvcast.server.realtime.turns import (
    Samples,
    SessionAudio,
    SpokenTurn,
    TurnTranscriber,
    TurnUpdate,
)
from kvcast.speech.live import LiveWindow

Event: TypeAlias = dict[str, Any]

_LEAST = SAMPLE_RATE // 10  # samples that a client may commit, at least: as OpenAI's
_MOST_WAITING = 600.0  # maximum backlog of audio, in seconds
_REMEMBERED = 1000  # transcripts that are kept, for the log
_ITEM = "conversation.item"
_BUFFER = "input_audio_buffer"
_TEXT = f"{_ITEM}.input_audio_transcription"


def failure(error: Exception, cause: str | None = None) -> Event:
    """Return the event of an error; `cause` is the id of the client's event."""
    return event("error", error=_error_object(error) | {"event_id": cause})


def event(kind: str, **fields: Any) -> Event:
    return {"type": kind, "event_id": _named("event"), **fields}


def _error_object(error: Exception) -> dict[str, Any]:
    document: dict[str, Any] = api_error(error).document["error"]
    return document


def _named(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


class Session:
    """The state of one connection; `receive` and `transcribe` may run on two threads at once."""

    def __init__(
        self,
        opening: Callable[[TranscriptionSettings], LiveWindow],
        detector: Callable[[], VoiceDetector],
        *,
        model: str,
        longest: float,
    ) -> None:
        self._opening = opening
        self._detector = detector
        self._longest = round(longest * SAMPLE_RATE)
        self._identity = _named("sess")
        self._audio = AudioInput(transcription=TranscriptionSettings(model=model))
        self._opening(self._audio.transcription)
        self._transcriber = TurnTranscriber(opening)
        self.transcripts: deque[str] = deque(maxlen=_REMEMBERED)
        self._waveform = SessionAudio(self._audio.format.type, self._audio.format.hertz)
        self._endpoints = self._detecting()
        self._kept = np.empty(0, np.float32)  # what precedes a turn
        self._position = 0
        self._turn: SpokenTurn | None = None
        self._last_item: str | None = None
        self._news: list[Event] = []

    @property
    def greeting(self) -> Event:
        return event("session.created", session=described(self._identity, self._audio))

    @property
    def waiting(self) -> float:
        return self._transcriber.waiting

    @property
    def ready(self) -> bool:
        return self._transcriber.ready

    def transcribe(self) -> list[Event]:
        """Transcribe the waiting audio, and return the events. Takes a while."""
        news = self._transcriber.transcribe()
        self.transcripts += [update.turn.text for update in news if update.done]
        return [event for update in news for event in _spoken(update)]

    def receive(self, message: str) -> list[Event]:
        """Take an event of the client, and return the events that answer it at once."""
        self._news, cause = [], None
        try:
            document = parsed(message)
            cause = given if isinstance(given := document.get("event_id"), str) else None
            self._take(document)
        except Exception as error:  # the connection goes on
            self._news.append(failure(error, cause))
        return self._news

    def _take(self, document: Event) -> None:
        match document.get("type"):
            case "input_audio_buffer.append":
                self._append(shaped(Append, document).data)
            case "input_audio_buffer.commit":
                self._commit()
            case "input_audio_buffer.clear":
                self._clear()
            case "session.update":
                self._update(document.get("session"))
                self._emit("session.updated", session=described(self._identity, self._audio))
            case "transcription_session.update":
                self._update(from_beta(document.get("session")))
                shown = described_as_beta(self._identity, self._audio)
                self._emit("transcription_session.updated", session=shown)
            case other:
                raise ApiError(
                    400,
                    f"a session that transcribes has no event {str(other)[:100]!r}",
                    code="invalid_value",
                    param="type",
                )

    def _emit(self, kind: str, **fields: Any) -> None:
        self._news.append(event(kind, **fields))

    def _update(self, given: Any) -> None:
        update = shaped(SessionUpdate, given, "session")
        if update.include:
            raise ApiError(400, "session.include is not supported", param="session.include")
        audio, before = self._audio.updated(update.audio.input), self._audio
        if audio.turn_detection != before.turn_detection and self._turn is not None:
            raise ApiError(
                400,
                "turn detection cannot change during a turn: commit or clear first",
                param="session.audio.input.turn_detection",
            )
        if audio.transcription != before.transcription:
            self._opening(audio.transcription)  # raises for what cannot be served
        self._audio = audio
        if audio.format != before.format:
            self._waveform = SessionAudio(audio.format.type, audio.format.hertz)
        if audio.turn_detection != before.turn_detection:
            self._endpoints = self._detecting()

    def _detecting(self) -> Endpoints | None:
        detection = self._audio.turn_detection
        self._kept = np.empty(0, np.float32)
        if detection is None:
            return None
        pause = detection.silence_duration_ms / 1000
        return Endpoints(self._detector(), threshold=detection.threshold, pause=pause)

    def _append(self, data: bytes) -> None:
        if self.waiting > _MOST_WAITING:
            raise busy("too much audio waits for transcription: send it in real time")
        samples = self._waveform.feed(data)
        if self._endpoints is not None:
            for piece, change in self._endpoints.follow(samples):
                self._follow(piece, change, self._endpoints.pause)
        else:
            self._add(samples)

    def _add(self, samples: Samples) -> None:
        turn = self._turn or self._begun()
        if turn.samples + len(samples) > self._longest:
            raise ApiError(
                400,
                f"the buffer has {self._longest / SAMPLE_RATE:g} seconds of audio at most: commit "
                "or clear it first",
                code="input_audio_buffer_too_long",
                param="audio",
            )
        self._position += len(samples)
        turn.add(samples)

    def _follow(self, piece: Samples, change: Change, pause: int) -> None:
        self._position += len(piece)
        if self._turn is None:
            assert self._audio.turn_detection is not None
            padding = self._audio.turn_detection.prefix_padding_ms * SAMPLE_RATE // 1000
            self._kept = np.concatenate([self._kept, piece])[-padding - ONSET * BLOCK :]
            if change is Change.BEGIN:
                self._speech_started()
            return
        self._turn.add(piece)
        if change is Change.END:
            self._speech_stopped(pause)
        elif self._turn.samples >= self._longest:
            self._speech_stopped(0)
            self._speech_started()

    def _speech_started(self) -> None:
        turn = self._begun()
        start = _milliseconds(self._position - len(self._kept))
        self._emit(f"{_BUFFER}.speech_started", audio_start_ms=start, item_id=turn.item)
        turn.add(self._kept)
        self._kept = np.empty(0, np.float32)

    def _speech_stopped(self, silence: int) -> None:
        assert self._turn is not None
        end, item = _milliseconds(self._position), self._turn.item
        self._emit(f"{_BUFFER}.speech_stopped", audio_end_ms=end, item_id=item)
        self._end(silence)

    def _begun(self) -> SpokenTurn:
        self._turn = SpokenTurn(_named("item"), self._audio.transcription)
        self._transcriber.add(self._turn)
        return self._turn

    def _commit(self) -> None:
        if self._turn is not None:
            self._add_rest(self._turn)
        buffered = 0 if self._turn is None else self._turn.samples
        if buffered < _LEAST:
            raise ApiError(
                400,
                f"the buffer is too small to be committed: it has {_milliseconds(buffered)} ms of "
                f"speech, and {_milliseconds(_LEAST)} ms are the least",
                code="input_audio_buffer_commit_empty",
            )
        self._end(0)
        self._endpoints = self._detecting()

    def _add_rest(self, turn: SpokenTurn) -> None:
        rest = self._waveform.finish()
        if self._endpoints is not None:
            followed = [piece for piece, _ in self._endpoints.follow(rest)]
            rest = np.concatenate([*followed, self._endpoints.finish()])
        self._position += len(rest)
        turn.add(rest)

    def _clear(self) -> None:
        if self._turn is not None:
            self._turn.dropped = True
            self._turn = None
        self._waveform.finish()
        self._endpoints = self._detecting()
        self._emit(f"{_BUFFER}.cleared")

    def _end(self, silence: int) -> None:
        assert self._turn is not None
        turn, self._turn = self._turn, None
        before, self._last_item = self._last_item, turn.item
        item = {
            "id": turn.item,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        self._emit(f"{_BUFFER}.committed", item_id=turn.item, previous_item_id=before)
        self._emit(f"{_ITEM}.added", item=item, previous_item_id=before)
        self._emit(f"{_ITEM}.done", item=item, previous_item_id=before)
        turn.end(silence)


def _milliseconds(samples: int) -> int:
    return samples * 1000 // SAMPLE_RATE


def _spoken(update: TurnUpdate) -> list[Event]:
    turn = update.turn
    place = {"item_id": turn.item, "content_index": 0}
    events = [event(f"{_TEXT}.delta", **place, delta=update.delta)] if update.delta else []
    if update.done and turn.error is not None:
        events.append(event(f"{_TEXT}.failed", **place, error=_error_object(turn.error)))
    elif update.done:
        usage = {"type": "duration", "seconds": turn.samples / SAMPLE_RATE}
        events.append(event(f"{_TEXT}.completed", **place, transcript=turn.text, usage=usage))
    return events


def encoded(message: Event) -> str:
    return json.dumps(message, ensure_ascii=False)
