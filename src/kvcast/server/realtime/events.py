"""The models of clients' events, and the description of a session."""

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvcast.audio.decode import HIGHEST_RATE, LOWEST_RATE
from kvcast.server import request_bodies
from kvcast.server.errors import ApiError

_PCM_RATE, _TELEPHONE_RATE = 24_000, 8_000


class _Shape(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class AudioFormat(_Shape):
    """The coding of audio. `rate` is kvcast's own for PCM: OpenAI's has 24 kHz only."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: Annotated[int, Field(ge=LOWEST_RATE, le=HIGHEST_RATE)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.type != "audio/pcm" and self.rate not in (None, _TELEPHONE_RATE):
            raise ValueError(f"{self.type} has {_TELEPHONE_RATE} samples a second")
        return self

    @property
    def hertz(self) -> int:
        return self.rate or (_PCM_RATE if self.type == "audio/pcm" else _TELEPHONE_RATE)


class TranscriptionSettings(_Shape):
    model: str | None = None
    language: str | None = None
    prompt: str | None = None


class TurnDetection(_Shape):
    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Field(ge=0, le=10_000)] = 300
    silence_duration_ms: Annotated[int, Field(ge=32, le=60_000)] = 500


class AudioInput(_Shape):
    format: AudioFormat = AudioFormat()
    transcription: TranscriptionSettings = TranscriptionSettings()
    turn_detection: TurnDetection | None = TurnDetection()

    def updated(self, given: "AudioInput") -> Self:
        """Return it with the fields set in another one; a format is replaced as a whole."""
        changed: dict[str, Any] = {}
        for name in given.model_fields_set:
            value, before = getattr(given, name), getattr(self, name)
            if name != "format" and value is not None and before is not None:
                value = before.model_copy(
                    update={field: getattr(value, field) for field in value.model_fields_set}
                )
            changed[name] = value
        return self.model_copy(update=changed)


class _Audio(_Shape):
    input: AudioInput = AudioInput()


class SessionUpdate(_Shape):
    type: Literal["transcription"] = "transcription"
    audio: _Audio = _Audio()
    include: list[str] | None = None


class Append(_Shape):
    audio: str

    @property
    def data(self) -> bytes:
        """The bytes; raises ApiError for text that is not base64."""
        try:
            return base64.b64decode(self.audio, validate=True)
        except (binascii.Error, ValueError):
            raise ApiError(400, "audio: it is not base64", param="audio") from None


_S = TypeVar("_S", bound=_Shape)


def shaped(shape: type[_S], document: Any, place: str = "") -> _S:
    """Return a client's object as the given model; raises ApiError for the first mistake."""
    try:
        return shape.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        names = [place, *map(str, first["loc"])]
        where = ".".join(name for name in names if name)
        message = f"{where}: {first['msg']}" if where else first["msg"]
        raise ApiError(400, message, param=where or None) from None


def parsed(message: str) -> dict[str, Any]:
    """Return an event as a document; raises ApiError if it is none."""
    try:
        document = request_bodies.parsed(message)
    except ValueError as error:
        raise ApiError(400, f"the message {error}", code="invalid_json") from None
    if not isinstance(document, dict):
        raise ApiError(400, "an event is a JSON object with a type", param="type")
    return document


def described(identity: str, audio: AudioInput) -> dict[str, Any]:
    return {
        "id": identity,
        "object": "realtime.transcription_session",
        "type": "transcription",
        "audio": {
            "input": {
                "format": {"type": audio.format.type, "rate": audio.format.hertz},
                "transcription": audio.transcription.model_dump(),
                "turn_detection": audio.turn_detection and audio.turn_detection.model_dump(),
                "noise_reduction": None,
            }
        },
        "include": None,
    }


_BETA: Mapping[str, str] = {
    "pcm16": "audio/pcm",
    "g711_ulaw": "audio/pcmu",
    "g711_alaw": "audio/pcma",
}


def from_beta(session: Any) -> Any:
    """Return a session of `transcription_session.update`, from before 2025-09, as it is now."""
    if not isinstance(session, dict):
        return session
    audio: dict[str, Any] = {}
    if (name := session.get("input_audio_format")) is not None:
        audio["format"] = {"type": _BETA.get(name, name) if isinstance(name, str) else name}
    if (transcription := session.get("input_audio_transcription")) is not None:
        audio["transcription"] = transcription
    if "turn_detection" in session:
        audio["turn_detection"] = session["turn_detection"]
    return {"audio": {"input": audio}, "include": session.get("include")}


def described_as_beta(identity: str, audio: AudioInput) -> dict[str, Any]:
    return {
        "id": identity,
        "object": "realtime.transcription_session",
        "input_audio_format": {now: was for was, now in _BETA.items()}[audio.format.type],
        "input_audio_transcription": audio.transcription.model_dump(),
        "turn_detection": audio.turn_detection and audio.turn_detection.model_dump(),
        "input_audio_noise_reduction": None,
    }
