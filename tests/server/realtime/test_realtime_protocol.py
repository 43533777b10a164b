"""`WS /v1/realtime` by the official client, over a socket, with real weights."""

import base64
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import openai
import pytest
import websockets
from numpy.typing import NDArray
from websockets.sync.client import connect

import kvcast
from kit.text_models import saying
from kvcast.audio.decode import open_audio
from server.realtime.talking import Talk, coded, talking, told_before
from server.serving import Server, serving, until

# The official client connects in a way that websockets would rather have otherwise.
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")

ROOT = Path(__file__).parents[3]
SILENCE = np.zeros(16_000, np.float32)


def samples(path: str) -> NDArray[np.float32]:
    source = open_audio(ROOT / path)
    try:
        return np.concatenate(list(source.blocks()))
    finally:
        source.close()


@pytest.fixture(scope="module")
def recording() -> NDArray[np.float32]:
    """Speech up to its first pause."""
    return samples("examples/sense-and-sensibility.flac")[: 7 * 16_000]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models = {"demo": kvcast.load("demo", threads=1), "letters": saying("hi")}
    with serving(models, api_key="secret", max_body=2) as running:
        yield running


@pytest.fixture(scope="module")
def expected(server: Server, recording: NDArray[np.float32]) -> str:
    segments = server.engines["demo"].model.transcribe(recording)
    return "".join(segment.text for segment in segments).strip()


def wer(expected: str, actual: str) -> float:
    plain = jiwer.Compose([jiwer.ToLowerCase(), jiwer.RemovePunctuation(), jiwer.Strip()])
    return jiwer.wer(plain(expected), plain(actual))


def hear(talk: Talk) -> str:
    """Wait until all turns are completed, check that events agree, and return the transcript."""
    while len(talk.of("transcription.completed")) < max(1, len(talk.of("speech_started"))):
        talk.until("conversation.item.input_audio_transcription.completed")
    completed = {
        event["item_id"]: event["transcript"] for event in talk.of("transcription.completed")
    }
    assert told_before(talk.events) == completed
    assert [event["item_id"] for event in talk.of("committed")] == list(completed)
    return " ".join(completed.values())


FORMATS: dict[str, tuple[dict[str, Any], float]] = {
    "pcm at 16 kHz": ({"type": "audio/pcm", "rate": 16_000}, 0.05),
    "mu-law": ({"type": "audio/pcmu"}, 0.15),
}


@pytest.mark.parametrize("name", FORMATS)
def test_transcripts_are_near_those_of_the_recording(server, recording, expected, name):
    asked, most = FORMATS[name]
    with talking(server, model="demo", api_key="secret") as talk:
        assert talk.update(format=asked)["format"]["type"] == asked["type"]
        spoken = np.concatenate([recording, SILENCE])
        talk.speak(coded(spoken, asked["type"], asked.get("rate")))
        talk.until("input_audio_buffer.speech_stopped")
        assert wer(expected, hear(talk)) <= most


def test_deltas_come_before_the_turn_ends(server, recording, expected):
    def heard() -> int:
        return server.status("demo").finished.get("stop", 0)

    with talking(server, model="demo", api_key="secret") as talk:
        talk.update(turn_detection=None, transcription={"language": "en"})
        data, size = coded(recording, "audio/pcm"), 2 * 48_000
        for at in range(0, len(data) - size, size):
            before = heard()
            talk.speak(data[at : at + size], size)
            until(lambda before=before: heard() > before)
        talk.speak(data[at + size :])
        told = talk.until("conversation.item.input_audio_transcription.delta")
        assert not talk.of("committed")
        talk.send("input_audio_buffer.commit")
        assert talk.until("input_audio_buffer.committed")["item_id"] == told["item_id"]
        assert wer(expected, hear(talk)) <= 0.05


def test_mistakes_leave_the_connection(server: Server):
    with talking(server, model="demo", api_key="secret") as talk:
        talk.connection.send({"type": "input_audio_buffer.append", "audio": "%", "event_id": "e1"})
        error = talk.until("error")["error"]
        assert (error["event_id"], error["param"]) == ("e1", "audio")
        talk.send(
            "session.update",
            event_id="e2",
            session={"audio": {"input": {"transcription": {"model": "letters"}}}},
        )
        assert "does not transcribe" in talk.until("error")["error"]["message"]
        talk.send(
            "session.update", session={"audio": {"input": {"transcription": {"language": "de"}}}}
        )
        assert "English" in talk.until("error")["error"]["message"]
        assert talk.update(transcription={"prompt": "Dashwood"})["transcription"]["model"] == "demo"


def test_half_characters_leave_the_connection(server: Server):
    address = server.url.replace("http", "ws") + "/v1/realtime?model=demo"
    prompt = '{"audio": {"input": {"transcription": {"prompt": "\\ud800"}}}}'
    with connect(address, additional_headers={"authorization": "Bearer secret"}) as talk:
        talk.recv()
        for message in (
            '{"type": "x", "event_id": "\\ud800"}',
            f'{{"type": "session.update", "session": {prompt}}}',
            '{"type": "x", "a": NaN}',
        ):
            talk.send(message)
            error = json.loads(talk.recv())["error"]
            assert (error["code"], error["type"]) == ("invalid_json", "invalid_request_error")
        talk.send('{"type": "input_audio_buffer.clear"}')
        assert json.loads(talk.recv())["type"] == "input_audio_buffer.cleared"


def test_a_long_reason_to_close_is_cut(server: Server):
    address = server.url.replace("http", "ws") + "/v1/realtime?model=" + "%E6%BC%A2" * 80
    with connect(address, additional_headers={"authorization": "Bearer secret"}) as talk:
        assert json.loads(talk.recv())["error"]["code"] == "model_not_found"
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            talk.recv()
    assert closed.value.rcvd.code == 1008
    assert closed.value.rcvd.reason.startswith("the model '漢漢")


def test_a_model_that_is_not_there_ends_the_session(server: Server):
    client = server.client(api_key="secret")
    with client, client.realtime.connect(model="nothing") as connection:
        assert connection.recv().error.code == "model_not_found"
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            connection.recv()
    assert closed.value.rcvd.code == 1008


def test_only_known_keys_and_pages_from_here_come_in(server: Server):
    address = server.url.replace("http", "ws") + "/v1/realtime"
    key, page = "openai-insecure-api-key.", server.url
    with connect(address, subprotocols=["realtime", f"{key}secret"], origin=page) as browser:
        assert browser.subprotocol == "realtime"
        assert json.loads(browser.recv())["type"] == "session.created"
    for given, status in [
        ({}, 401),
        ({"subprotocols": ["realtime", f"{key}guess"]}, 401),
        ({"additional_headers": {"authorization": "Bearer guess"}}, 401),
        ({"subprotocols": [f"{key}secret"], "origin": "https://evil.example"}, 403),
    ]:
        with pytest.raises(websockets.InvalidStatus) as refused:
            connect(address, **given)
        assert refused.value.response.status_code == status
        assert json.loads(refused.value.response.body)["error"]["message"]
    with pytest.raises(websockets.InvalidStatus) as refused:
        connect(
            address.replace("127.0.0.1", "evil.example"),
            sock=socket.create_connection(("127.0.0.1", server.port)),
        )
    assert refused.value.response.status_code == 421
    with server.http(headers={"authorization": "Bearer secret"}) as http:
        told = http.get("/metrics").text
    assert 'method="WS",path="/v1/realtime",status="101"' in told
    assert 'method="WS",path="other",status="401"' in told


def test_a_message_that_is_too_large_ends_the_session(server: Server):
    with talking(server, model="demo", api_key="secret") as talk:
        talk.speak(bytes(2 << 20), 2 << 20)
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            talk.next()
        assert closed.value.rcvd.code == 1009


def test_sessions_are_limited_and_a_client_that_leaves_frees_everything(server, recording):
    model = server.engines["demo"].model
    with serving({"demo": model}, live_sessions=1) as small:
        with talking(small, model="demo") as talk:
            talk.speak(coded(recording, "audio/pcm"))
            client = small.client()
            with client, client.realtime.connect(model="demo") as second:
                assert second.recv().error.code == "rate_limit_exceeded"
                with pytest.raises(websockets.ConnectionClosedError) as closed:
                    second.recv()
                assert closed.value.rcvd.code == 1013
            until(lambda: small.status("demo").running)
        until(lambda: not small.status("demo").running)

        def comes_in() -> bool:
            client = small.client()
            with client, client.realtime.connect(model="demo") as next_one:
                return next_one.recv().type == "session.created"

        until(comes_in)
    with serving({"demo": model}, live_sessions=0) as closed_to, pytest.raises(AssertionError):
        talking(closed_to).__enter__()


def test_a_session_in_which_nothing_comes_is_closed(server: Server):
    model = server.engines["demo"].model
    with serving({"demo": model}, live_idle=0.2) as impatient, talking(impatient) as talk:
        assert talk.until("error")["error"]["code"] == "session_idle"
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            talk.next()
        assert closed.value.rcvd.code == 1008


def test_a_server_that_stops_takes_no_session(server: Server):
    server.draining = True
    try:
        with pytest.raises((openai.OpenAIError, websockets.InvalidStatus)) as refused:
            talking(server, api_key="secret").__enter__()
        assert "503" in str(refused.value)
    finally:
        server.draining = False


@pytest.mark.slow
def test_a_language_is_detected_or_given():
    german = samples("tests/data/german.ogg")
    model = kvcast.load("demo-base", threads=2)
    expected = "".join(segment.text for segment in model.transcribe(german, language="de"))
    with serving({"base": model}) as server:
        for asked in ({}, {"language": "de"}):
            with talking(server, model="base") as talk:
                talk.update(turn_detection=None, transcription=asked)
                talk.speak(coded(german, "audio/pcm"))
                talk.send("input_audio_buffer.commit")
                talk.until("input_audio_buffer.committed")
                assert wer(expected, hear(talk)) <= 0.15


@pytest.mark.slow
def test_minutes_of_speech_are_endpointed_by_voice_activity(server: Server):
    spoken = samples("tests/data/spoken.ogg")
    segments = server.engines["demo"].model.transcribe(spoken)
    expected = "".join(segment.text for segment in segments)
    with talking(server, model="demo", api_key="secret") as talk, ThreadPoolExecutor(1) as speaker:
        data = coded(np.concatenate([spoken, SILENCE]), "audio/pcm")
        speaking = speaker.submit(talk.speak, data)
        end = len(data) * 1000 // 48_000
        while not (stops := talk.of("speech_stopped")) or stops[-1]["audio_end_ms"] < end - 3000:
            talk.until("input_audio_buffer.speech_stopped")
        speaking.result(60)
        assert wer(expected, hear(talk)) <= 0.15


@pytest.mark.slow
def test_transcripts_are_logged_only_with_log_content(server, recording, caplog):
    model = server.engines["demo"].model
    caplog.set_level("INFO", "kvcast.server")
    for wanted in (True, False):
        until(lambda: not server.tasks, "sessions of other tests do not end")
        caplog.clear()
        with serving({"demo": model}, log_content=wanted) as open_to:
            with talking(open_to, model="demo") as talk:
                talk.update(turn_detection=None)
                data = base64.b64encode(coded(recording[: 3 * 16_000], "audio/pcm")).decode()
                talk.send("input_audio_buffer.append", audio=data)
                talk.send("input_audio_buffer.commit")
                text = hear(talk)
                assert text
            until(lambda: [entry for entry in caplog.records if hasattr(entry, "fields")])
        [record] = [entry for entry in caplog.records if hasattr(entry, "fields")]
        assert (text in str(record.fields)) == wanted
        assert (record.fields["method"], record.fields["status"]) == ("WS", 101)
