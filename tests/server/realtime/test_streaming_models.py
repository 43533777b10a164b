"""Live sessions of models that encode audio while it arrives: words as they settle, then the rest.

Weights are random. A whole turn has the transcript of the same audio in a file.
"""

import base64
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvcast
from kit.recordings import speech_folder
from kvcast.server.realtime.session import Session
from kvcast.speech.params import LiveParams
from server.realtime.talking import coded, talking, told_before
from server.serving import Server, serving

pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")

RATE = 16_000
SIXTEEN = {"type": "audio/pcm", "rate": RATE}
STREAMING = ("moonshine_streaming", "voxtral_realtime")


def opened(kind: str, folder: Path) -> Any:
    return kvcast.load(speech_folder(kind, folder), runtime="native", quantize="none", threads=1)


@pytest.fixture(scope="module")
def moonshine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return opened("moonshine_streaming", tmp_path_factory.mktemp("models") / "moonshine")


def noise(seconds: float, seed: int = 0) -> Any:
    samples = np.random.default_rng(seed).normal(0, 0.1, round(RATE * seconds))
    return (np.round(samples * 32768) / 32768).astype(np.float32)


def written(model: Any, samples: Any) -> str:
    return "".join(segment.text for segment in model.transcribe(samples)).strip()


class Client:
    """A client of a session that detects no pauses."""

    def __init__(self, opening: Callable[[Any], Any]) -> None:
        self.session = Session(opening, lambda: _nothing, model="ear", longest=60.0)
        self.events: list[dict[str, Any]] = []
        given = {"format": SIXTEEN, "turn_detection": None}
        self.send("session.update", session={"audio": {"input": given}})

    def send(self, kind: str, **fields: Any) -> None:
        self.events += self.session.receive(json.dumps({"type": kind, **fields}))

    def speak(self, samples: Any) -> None:
        data = (samples * 32768).astype("<i2").tobytes()
        self.send("input_audio_buffer.append", audio=base64.b64encode(data).decode())

    def hear(self) -> None:
        while self.session.ready:
            self.events += self.session.transcribe()

    @property
    def transcripts(self) -> list[str]:
        return [
            event["transcript"] for event in self.events if event["type"].endswith(".completed")
        ]


def _nothing(blocks_nb: Any) -> Any:
    return np.zeros(len(blocks_nb), np.float32)


def test_a_streaming_turn_has_deltas_before_it_ends(moonshine: Any):
    client = Client(lambda _: moonshine.streaming_window(LiveParams()))
    sounds = [noise(1.4, 5), noise(0.9, 2)]
    for sound in sounds:  # each at once: nothing confirms before its end
        client.speak(sound)
        client.send("input_audio_buffer.commit")
        client.hear()
    assert client.transcripts == [written(moonshine, sound) for sound in sounds]
    assert all(client.transcripts)
    for at in range(0, len(sounds[0]), 1600):
        client.speak(sounds[0][at : at + 1600])
        client.hear()
    early = told_before(client.events)
    client.send("input_audio_buffer.commit")
    client.hear()
    assert len(early) == 3
    assert client.transcripts[-1].startswith(list(early.values())[-1])
    assert list(told_before(client.events).values()) == client.transcripts


def test_options_that_the_model_lacks_are_error_events(moonshine: Any):
    def opening(settings: Any) -> Any:
        given = {"language": settings.language, "initial_prompt": settings.prompt}
        return moonshine.streaming_window(LiveParams(**given))

    client = Client(opening)
    for asked, reason in (
        ({"prompt": "Ahab"}, "initial_prompt is not supported"),
        ({"language": "la"}, "does not know Latin"),
    ):
        before = len(client.events)
        given = {"transcription": {"model": "ear", **asked}}
        client.send("session.update", session={"audio": {"input": given}})
        [error] = client.events[before:]
        assert reason in error["error"]["message"]


def test_words_of_languages_without_spaces_settle_piece_by_piece(moonshine: Any):
    def confirmed(language: str) -> list[Any]:
        window, sound = moonshine.streaming_window(LiveParams(language=language)), noise(1.4, 5)
        words = []
        for at in range(0, len(sound), 1600):
            window.append(sound[at : at + 1600])
            words += window.transcribe()
        return words + window.finish_utterance(window.end)

    japanese, english = confirmed("ja"), confirmed("en")
    assert all(len(word.tokens) == 1 for word in japanese)
    assert len(japanese) > len(english)
    assert english[0].text.startswith(" ")
    assert not japanese[0].text.startswith(" ")


@pytest.fixture(scope="module")
def server(moonshine: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("others")
    models = {
        "whole": opened("qwen3_asr", folder / "qwen"),
        "moonshine_streaming": moonshine,
        "voxtral_realtime": opened("voxtral_realtime", folder / "voxtral"),
    }
    with serving(models) as running:
        yield running


@pytest.mark.slow
def test_the_default_is_the_first_model_with_live_audio(server: Server):
    told = server.http().get("/v1/models").json()["data"]
    assert [model["abilities"]["live"] for model in told] == [False, True, True]
    with talking(server) as talk:
        assert talk.update(turn_detection=None)["transcription"]["model"] == "moonshine_streaming"
    with server.client().realtime.connect(extra_query={"model": "whole"}) as connection:
        error = connection.recv().model_dump(warnings=False)["error"]
        assert "does not support live" in error["message"]


@pytest.mark.slow
def test_sessions_and_recordings_share_a_model(server: Server):
    def live(kind: str, seed: int) -> tuple[str, list[str]]:
        with talking(server, model=kind) as talk:
            talk.update(format=SIXTEEN, turn_detection=None)
            talk.speak(coded(noise(1.5, seed), "audio/pcm", RATE), 3200)
            talk.send("input_audio_buffer.commit")
            talk.until("conversation.item.input_audio_transcription.completed")
            assert list(told_before(talk.events).values()) == talk.transcripts()
            return talk.transcripts()[0], [event["delta"] for event in talk.of(".delta")]

    def recorded(kind: str, seed: int) -> str:
        job = server.engines[kind].submit(noise(2.0, seed))
        return "".join(segment.text for segment in job.result().segments).strip()

    kinds = [(kind, seed) for kind in STREAMING for seed in range(4)]
    with ThreadPoolExecutor(16) as pool:
        lives = [pool.submit(live, *each) for each in kinds]
        files = [pool.submit(recorded, *each) for each in kinds]
        heard = dict(zip(kinds, [each.result() for each in lives], strict=True))
        written_of = dict(zip(kinds, [each.result() for each in files], strict=True))
    for (kind, seed), (text, deltas) in heard.items():
        model = server.engines[kind].model
        assert written_of[kind, seed] == written(model, noise(2.0, seed))
        assert "".join(deltas) == text
        if kind == "voxtral_realtime":  # whose tokens never change
            assert text == written(model, noise(1.5, seed))
            assert len(deltas) > 1
    assert all(engine.alive for engine in server.engines.values())
