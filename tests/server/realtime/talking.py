"""The official client of `WS /v1/realtime`, and the events that it receives."""

import base64
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

FORMATS: dict[str, tuple[str, int]] = {
    "audio/pcm": ("PCM_16", 24_000),
    "audio/pcmu": ("ULAW", 8_000),
    "audio/pcma": ("ALAW", 8_000),
}
"""libsndfile's names, and samples a second."""


def coded(samples: NDArray[np.float32], kind: str, rate: int | None = None) -> bytes:
    subtype, usual = FORMATS[kind]
    rate = rate or usual
    file = io.BytesIO()
    resampled = soxr.resample(samples, 16_000, rate)
    soundfile.write(file, resampled, rate, format="RAW", subtype=subtype, endian="LITTLE")
    return file.getvalue()


class Talk:
    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.events: list[dict[str, Any]] = []

    def send(self, kind: str, **fields: Any) -> None:
        self.connection.send({"type": kind, **fields})

    def update(self, **given: Any) -> dict[str, Any]:
        self.send("session.update", session={"type": "transcription", "audio": {"input": given}})
        return self.until("session.updated")["session"]["audio"]["input"]

    def speak(self, data: bytes, size: int = 9600) -> None:
        for at in range(0, len(data), size):
            piece = base64.b64encode(data[at : at + size]).decode()
            self.send("input_audio_buffer.append", audio=piece)

    def next(self) -> dict[str, Any]:
        event = self.connection.recv().model_dump(warnings=False)
        self.events.append(event)
        return event

    def until(self, *kinds: str) -> dict[str, Any]:
        """Return the next event of one of these kinds; an error that is none of them fails."""
        while (event := self.next())["type"] not in kinds:
            assert event["type"] != "error", event
        return event

    def transcripts(self) -> list[str]:
        return [event["transcript"] for event in self.of("completed")]

    def of(self, end: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"].endswith(end)]


@contextmanager
def talking(server: Any, *, model: str | None = None, **options: Any) -> Iterator[Talk]:
    query = {"intent": "transcription"} | ({"model": model} if model else {})
    client = server.client(**options)
    with client, client.realtime.connect(extra_query=query) as connection:
        talk = Talk(connection)
        assert talk.until("session.created")["session"]["type"] == "transcription"
        yield talk


def told_before(events: Iterable[dict[str, Any]]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for event in events:
        if event["type"].endswith("transcription.delta"):
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    return texts
