"""A session without socket and model: known words, each in one turn, once."""

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from kit.scripted_whisper import FULL_SCALE, RATE, ScriptedRecognizer, Word, listener, sound, speech
from kvcast.errors import UsageError
from kvcast.server.realtime.events import TranscriptionSettings
from kvcast.server.realtime.session import Session
from kvcast.whisper.local_agreement import LocalAgreement
from kvcast.whisper.streaming import StreamingWindow
from server.realtime.talking import told_before

SIXTEEN = {"type": "audio/pcm", "rate": RATE}


class Client:
    def __init__(
        self,
        words: Sequence[Word] = (),
        *,
        longest: float = 600.0,
        opening: Callable[[TranscriptionSettings], StreamingWindow] | None = None,
    ) -> None:
        self.opened: list[TranscriptionSettings] = []

        def open_scripted(asked: TranscriptionSettings) -> StreamingWindow:
            self.opened.append(asked)
            if asked.language == "xx":
                raise UsageError("there is no language xx")
            return StreamingWindow(
                ScriptedRecognizer(words), prompt=(), conditions=True, policy=LocalAgreement(2)
            )

        self.session = Session(
            opening or open_scripted, lambda: listener(words), model="scripted", longest=longest
        )
        self.events: list[dict[str, Any]] = [self.session.greeting]
        self.update(format=SIXTEEN)

    def send(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        return self.say(json.dumps({"type": kind, **fields}))

    def say(self, message: str) -> list[dict[str, Any]]:
        told = self.session.receive(message)
        self.events += told
        return told

    def update(self, **given: Any) -> dict[str, Any]:
        [told] = self.send("session.update", session={"audio": {"input": given}})
        return told

    def speak(self, start: int, end: int) -> list[dict[str, Any]]:
        data = (FULL_SCALE * sound(start, end)).astype("<i2").tobytes()
        return self.send("input_audio_buffer.append", audio=base64.b64encode(data).decode())

    def hear(self) -> list[dict[str, Any]]:
        events = []
        while self.session.ready:
            events += self.session.transcribe()
        self.events += events
        return events

    def of(self, end: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"].endswith(end)]

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]


def refused(events: list[dict[str, Any]]) -> dict[str, Any]:
    [event] = events
    assert event["type"] == "error"
    return event["error"]


def pieces(end: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    at = number = 0
    while at < end:
        yield at, (at := min(at + sizes[number % len(sizes)], end))
        number += 1


def said(words: Sequence[Word]) -> str:
    return "".join(word.text for word in words)


@pytest.mark.parametrize("sizes", [[RATE // 10], [RATE, 1, 700], [30 * RATE]])
def test_turns_end_in_pauses_and_have_every_word_once(sizes: list[int]):
    words = speech(150, pause_every=25)
    client = Client(words)
    for start, end in pieces(words[-1].end + RATE, sizes):
        client.speak(start, end)
        client.hear()
    transcripts = [event["transcript"] for event in client.of("transcription.completed")]
    assert " " + " ".join(transcripts) == said(words)
    assert len(transcripts) == 6
    items = [event["item_id"] for event in client.of("speech_started")]
    completed = {event["item_id"]: event["transcript"] for event in client.of(".completed")}
    assert list(completed) == items
    assert told_before(client.events) == completed
    assert [event["previous_item_id"] for event in client.of("committed")] == [None, *items[:-1]]
    times = zip(client.of("speech_started"), client.of("speech_stopped"), strict=True)
    ends = [ms for start, stop in times for ms in (start["audio_start_ms"], stop["audio_end_ms"])]
    assert ends == sorted(ends)
    assert all(word.start * 1000 // RATE >= ends[0] for word in words)
    assert len({event["event_id"] for event in client.events}) == len(client.events)
    for item in items:
        mine = [
            event["type"].removeprefix("conversation.item.")
            for event in client.events
            if item in (event.get("item_id"), event.get("item", {}).get("id"))
        ]
        assert [kind for kind in mine if not kind.endswith("delta")] == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "added",
            "done",
            "input_audio_transcription.completed",
        ]


def test_deltas_come_during_speech():
    words = speech(60, pause_every=1000)
    client = Client(words)
    for start, end in pieces(words[-1].end, [RATE // 2]):
        client.speak(start, end)
        client.hear()
    assert not client.of("speech_stopped")
    [told] = told_before(client.events).values()
    assert said(words[:45]).lstrip() in told
    assert (" " + told) in said(words)


def test_a_client_that_ends_turns_itself():
    words = speech(40, pause_every=20)
    client = Client(words)
    assert client.update(turn_detection=None)["session"]["audio"]["input"]["turn_detection"] is None
    assert refused(client.send("input_audio_buffer.commit"))["code"] == (
        "input_audio_buffer_commit_empty"
    )
    middle = (words[19].end + words[20].start) // 2
    client.speak(0, middle)
    kinds = [event["type"] for event in client.send("input_audio_buffer.commit")]
    assert kinds == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    client.speak(middle, words[-1].end + RATE)
    client.send("input_audio_buffer.commit")
    client.hear()
    transcripts = [event["transcript"] for event in client.of("transcription.completed")]
    assert transcripts == [said(words[:20]).lstrip(), said(words[20:]).lstrip()]
    assert not client.of("speech_started")
    [usage, _] = [event["usage"] for event in client.of(".completed")]
    assert usage == {"type": "duration", "seconds": pytest.approx(middle / RATE)}


def test_a_commit_ends_ongoing_speech():
    words = speech(40, pause_every=20)
    client = Client(words)
    client.speak(0, words[19].end + RATE // 4)
    assert not client.of("speech_stopped")
    told = client.send("input_audio_buffer.commit")
    assert told[0]["type"] == "input_audio_buffer.committed"
    assert told[0]["item_id"] == client.of("speech_started")[0]["item_id"]
    client.hear()
    [completed] = client.of("transcription.completed")
    assert completed["transcript"] == said(words[:20]).lstrip()


def test_cleared_audio_is_never_completed():
    words = speech(60, pause_every=1000)
    client = Client(words)
    client.speak(0, 10 * RATE)
    [cleared] = client.send("input_audio_buffer.clear")
    assert cleared["type"] == "input_audio_buffer.cleared"
    assert client.hear() == []
    assert client.session.waiting == 0
    client.update(turn_detection=None)  # nobody speaks
    start = next(word.start for word in words if word.start > 10 * RATE)
    client.speak(start, words[-1].end + RATE)
    client.send("input_audio_buffer.commit")
    client.hear()
    [completed] = client.of("transcription.completed")
    assert said(words).endswith(completed["transcript"])


def test_a_turn_that_is_too_long_ends_or_is_refused():
    words = speech(150, pause_every=1000)
    client = Client(words, longest=10.0)
    for start, end in pieces(35 * RATE, [RATE]):
        client.speak(start, end)
    assert len(client.of("committed")) == 3
    ends = [event["audio_end_ms"] for event in client.of("speech_stopped")]
    starts = [event["audio_start_ms"] for event in client.of("speech_started")]
    assert starts[1:] == ends
    assert all(10_000 <= end - start < 11_100 for start, end in pairwise(starts))
    client.send("input_audio_buffer.clear")
    client.update(turn_detection=None)
    client.speak(0, 10 * RATE)
    assert refused(client.speak(10 * RATE, 10 * RATE + 2))["code"] == "input_audio_buffer_too_long"
    assert client.send("input_audio_buffer.commit")[0]["type"] == "input_audio_buffer.committed"


def test_a_turn_that_fails_leaves_the_next_one_alone():
    words = speech(40, pause_every=20)
    broken = [True]

    class Breaking(ScriptedRecognizer):
        def decode(self, heard: Any, **options: Any) -> Any:
            if broken:
                raise RuntimeError("/secret/path")
            return super().decode(heard, **options)

    def opening(_: TranscriptionSettings) -> StreamingWindow:
        return StreamingWindow(
            Breaking(words), prompt=(), conditions=True, policy=LocalAgreement(2)
        )

    client = Client(words, opening=opening)
    middle = (words[19].end + words[20].start) // 2
    client.speak(0, middle)
    client.hear()
    [failed] = client.of("failed")
    assert failed["item_id"] == client.of("committed")[0]["item_id"]
    assert failed["error"]["type"] == "server_error"
    assert "secret" not in json.dumps(client.events)
    broken.clear()
    client.speak(middle, words[-1].end + RATE)
    client.hear()
    [completed] = client.of("transcription.completed")
    assert " " + completed["transcript"] == said(words[20:])


MISTAKES: dict[str, tuple[str | dict[str, Any], str | None]] = {
    "not JSON": ("{", None),
    "a type": ("[]", "type"),
    "has no event 'None'": ({}, "type"),
    "has no event 'response.create'": ({"type": "response.create"}, "type"),
    "not base64": ({"type": "input_audio_buffer.append", "audio": "?"}, "audio"),
    "audio: Field required": ({"type": "input_audio_buffer.append"}, "audio"),
    "too small": ({"type": "input_audio_buffer.commit"}, None),
    "session: ": ({"type": "session.update"}, "session"),
}
UPDATES: dict[str, tuple[dict[str, Any], str]] = {
    "'transcription'": ({"type": "realtime"}, "session.type"),
    "not supported": ({"include": ["item.input_audio_transcription.logprobs"]}, "session.include"),
    "8000 samples a second": (
        {"audio": {"input": {"format": {"type": "audio/pcmu", "rate": 16000}}}},
        "session.audio.input.format",
    ),
    "'server_vad'": (
        {"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}},
        "session.audio.input.turn_detection.type",
    ),
    "less than or equal to 1": (
        {"audio": {"input": {"turn_detection": {"threshold": 2}}}},
        "session.audio.input.turn_detection.threshold",
    ),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_an_invalid_message_is_an_error_event_alone(message: str):
    client = Client()
    given, param = MISTAKES[message]
    told = client.say(given if isinstance(given, str) else json.dumps(given | {"event_id": "mine"}))
    error = refused(told)
    assert message in error["message"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["event_id"] == (None if isinstance(given, str) else "mine")
    client.update(turn_detection=None)
    client.speak(0, RATE)
    assert client.send("input_audio_buffer.commit")[0]["type"] == "input_audio_buffer.committed"


@pytest.mark.parametrize("message", UPDATES)
def test_a_wrong_update_changes_nothing(message: str):
    client = Client()
    before = client.update()["session"]
    given, param = UPDATES[message]
    error = refused(client.send("session.update", session=given))
    assert message in error["message"]
    assert error["param"] == param
    assert client.update()["session"] == before


def test_updates_are_merged_into_the_session():
    client = Client()
    shown = client.session.greeting["session"]
    assert shown["object"] == "realtime.transcription_session"
    asked = client.update(transcription={"language": "en"}, turn_detection={"threshold": 0.3})
    given = asked["session"]["audio"]["input"]
    assert given["transcription"] == {"model": "scripted", "language": "en", "prompt": None}
    assert given["turn_detection"] == {
        "type": "server_vad",
        "threshold": 0.3,
        "prefix_padding_ms": 300,
        "silence_duration_ms": 500,
    }
    asked = client.update(turn_detection={"silence_duration_ms": 900}, noise_reduction=None)
    given = asked["session"]["audio"]["input"]
    assert given["turn_detection"]["threshold"] == 0.3
    assert given["format"] == SIXTEEN
    assert client.update(format={"type": "audio/pcma"})["session"]["audio"]["input"]["format"] == {
        "type": "audio/pcma",
        "rate": 8000,
    }
    error = refused([client.update(transcription={"language": "xx"})])
    assert error["message"] == "there is no language xx"
    assert client.update()["session"]["audio"]["input"]["transcription"]["language"] == "en"


def test_turn_detection_does_not_change_during_a_turn():
    words = speech(40, pause_every=1000)
    client = Client(words)
    client.speak(0, 5 * RATE)
    assert client.of("speech_started")
    assert "during a turn" in refused([client.update(turn_detection=None)])["message"]
    client.update(transcription={"prompt": "words"})  # of the next turn
    client.send("input_audio_buffer.commit")
    client.hear()
    assert client.opened[-1].prompt is None


def test_the_former_update_is_understood():
    client = Client()
    session = {
        "input_audio_format": "g711_ulaw",
        "input_audio_transcription": {"language": "en"},
        "turn_detection": None,
    }
    [told] = client.send("transcription_session.update", session=session)
    assert told["type"] == "transcription_session.updated"
    assert told["session"]["input_audio_format"] == "g711_ulaw"
    given = client.update()["session"]["audio"]["input"]
    assert given["format"] == {"type": "audio/pcmu", "rate": 8000}
    assert (given["transcription"]["language"], given["turn_detection"]) == ("en", None)
    assert refused(client.send("transcription_session.update"))["param"] == "session"
    odd = {"input_audio_format": ["pcm16"]}
    told = refused(client.send("transcription_session.update", session=odd))
    assert told["type"] == "invalid_request_error"


def test_samples_may_be_cut_anywhere():
    words = speech(20, pause_every=1000)
    client = Client(words)
    client.update(turn_detection=None)
    data = (FULL_SCALE * sound(0, words[-1].end + RATE)).astype("<i2").tobytes()
    for at in range(0, len(data), 9999):
        piece = base64.b64encode(data[at : at + 9999]).decode()
        client.send("input_audio_buffer.append", audio=piece)
    client.send("input_audio_buffer.commit")
    client.hear()
    [completed] = client.of("transcription.completed")
    assert " " + completed["transcript"] == said(words)
