"""Transcriptions by the official client, with real weights where text matters, else scripted.

The audio has several segments where all of an answer is compared, one where only its form is.
"""

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from unittest.mock import Mock

import numpy as np
import openai
import pysubs2
import pytest
import soundfile
from fastapi import UploadFile

import kvcast
from audio.media_files import FilmTrack, write_film
from kit.scripted_whisper import scripted_translator
from kvcast.server import transcriptions
from kvcast.server.errors import ApiError
from kvcast.server.model_registry import CHAT, SPEECH, TEXT2TEXT, Models, Served
from kvcast.server.transcriptions import Recordings
from server.serving import Server, serving, until

ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "examples/sense-and-sensibility.flac"
SECONDS = 12.5


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models = {
        "whisper-1": kvcast.load("demo", threads=1),
        "german": scripted_translator({"transcribe": " hallo", "translate": " hello"}),
    }
    with serving(models, max_audio=1.0, max_upload=4) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return server.client()


@pytest.fixture(scope="module")
def alone(server: Server) -> Any:
    model = server.engines["whisper-1"].model
    samples, _ = soundfile.read(io.BytesIO(recording()[1]), dtype="float32")
    segments = list(model.transcribe(samples, word_timestamps=True))
    assert len(segments) > 2
    return segments


@pytest.fixture(scope="module")
def beginning() -> tuple[str, bytes]:
    return "beginning.wav", encoded(*soundfile.read(RECORDING, frames=6 * 16_000), "wav")


def encoded(samples: Any, rate: int, form: str) -> bytes:
    if form in {"mp4", "webm"}:
        return _in_a_container(samples, rate, form)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=form)
    return buffer.getvalue()


@cache
def recording() -> tuple[str, bytes]:
    frames = round(SECONDS * 16_000)
    return "speech.flac", encoded(*soundfile.read(RECORDING, frames=frames), "flac")


def transcribe(client: openai.OpenAI, **options: Any) -> Any:
    asked = {"model": "whisper-1", "file": recording()} | options
    return client.audio.transcriptions.create(**asked)


def text_of(segments: Any) -> str:
    return "".join(segment.text for segment in segments).strip()


def test_json_and_text(client: openai.OpenAI, alone: Any):
    answer = transcribe(client)
    assert answer.text == text_of(alone)
    assert answer.usage.seconds == pytest.approx(SECONDS)
    assert transcribe(client, model="german", response_format="text") == "hallo\n"


def test_subtitles_are_read_back(client: openai.OpenAI, beginning: tuple[str, bytes]):
    for form in ("srt", "vtt"):
        subtitles = transcribe(client, model="german", file=beginning, response_format=form)
        assert [line.plaintext for line in pysubs2.SSAFile.from_string(subtitles)] == ["hallo"]


def test_segments_and_words(client: openai.OpenAI, alone: Any):
    answer = transcribe(
        client, response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert (answer.language, answer.duration) == ("english", pytest.approx(SECONDS))
    assert [segment.text for segment in answer.segments] == [segment.text for segment in alone]
    expected = [word for segment in alone for word in segment.words]
    assert [word.word for word in answer.words] == [word.word.strip() for word in expected]
    np.testing.assert_allclose(
        [(word.start, word.end) for word in answer.words],
        [(word.start, word.end) for word in expected],
        atol=0.05,
    )
    assert answer.segments[0].avg_logprob == pytest.approx(alone[0].avg_logprob, abs=1e-3)


def test_a_stream_of_deltas(client: openai.OpenAI, alone: Any):
    events = list(transcribe(client, stream=True))
    assert events[-1].type == "transcript.text.done"
    deltas = [event.delta for event in events[:-1]]
    assert "".join(deltas) == events[-1].text == text_of(alone)
    assert len(deltas) > 2


def test_segments_in_a_stream(client: openai.OpenAI):
    events = list(
        transcribe(
            client, stream=True, response_format="verbose_json", timestamp_granularities=["word"]
        )
    )
    segments = [event for event in events if event.type == "transcript.text.segment"]
    assert [segment.id for segment in segments] == list(range(len(segments)))
    words = [word["word"] for segment in segments for word in segment.words]
    assert "".join(words) == events[-1].text.replace(" ", "")


@pytest.mark.parametrize("form", ["wav", "flac", "ogg", "mp3", "mp4", "webm"])
def test_formats_of_files(client: openai.OpenAI, form: str):
    content = encoded(*soundfile.read(RECORDING, frames=6 * 16_000), form)
    answer = transcribe(client, model="german", file=(f"speech.{form}", content))
    assert answer.usage.seconds == pytest.approx(6, abs=0.1)
    assert answer.text == "hallo"


def _in_a_container(samples: Any, rate: int, form: str) -> bytes:
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=form) as container:
        codec = {"mp4": "aac", "webm": "libopus"}[form]
        stream = container.add_stream(codec, rate=48_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(
            np.int16(32767 * np.repeat(samples, 48_000 // rate))[None], format="s16", layout="mono"
        )
        frame.sample_rate = 48_000
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return buffer.getvalue()


def _wrong(kind: str) -> tuple[str, bytes]:
    samples, rate = soundfile.read(RECORDING, frames=4 * 16_000)
    whole = encoded(samples if kind != "silent" else 0 * samples, rate, "wav")
    if kind == "gap":
        with NamedTemporaryFile() as file:
            track = FilmTrack(samples=samples, gaps=[(2, 3)])
            write_film(Path(file.name), [track], seconds=0)
            whole = file.read()
    return "a.wav", whole[: len(whole) // 2] if kind == "cut" else whole


@pytest.mark.parametrize(
    ("kind", "says"), [("cut", "cut short"), ("gap", "a gap at 2.0"), ("silent", "is silent")]
)
def test_damage_of_a_recording_is_in_the_response_and_the_log(client, caplog, kind, says):
    with caplog.at_level(logging.INFO, "kvcast.server"):
        asked = {"model": "german", "file": _wrong(kind)}
        whole = transcribe(client, **asked, response_format="verbose_json")
        *_, end = transcribe(client, **asked, stream=True)
        [notice] = whole.notices
        assert says in notice
        assert "the recording" in notice
        assert end.notices == whole.notices
        logged = lambda: [  # noqa: E731
            fields["notices"]
            for record in caplog.records
            if "notices" in (fields := getattr(record, "fields", {}))
        ]
        until(lambda: len(logged()) == 2)
    assert logged() == [[notice], [notice]]


@pytest.mark.parametrize("stream", [False, True])
def test_the_log_has_a_recordings_tokens_and_speed(server, client, caplog, alone, stream):
    caplog.set_level(logging.INFO, "kvcast.server")
    answer = transcribe(client, file=recording(), stream=stream)
    if stream:
        assert len(list(answer)) > 1
    lines = lambda: [record.fields for record in caplog.records if hasattr(record, "fields")]  # noqa: E731
    until(lambda: len(lines()) == 1)
    [line] = lines()
    assert line["audio_seconds"] == pytest.approx(SECONDS, abs=0.1)
    assert line["completion_tokens"] == sum(len(segment.tokens) for segment in alone)
    assert 0 < line["first_token"] < line["seconds"]
    spent = line["completion_tokens"] / line["tokens_per_second"]
    assert line["first_token"] < spent < line["seconds"] + 0.1
    assert line["times_real_time"] == pytest.approx(SECONDS / spent, rel=0.1)
    assert "prompt_tokens" not in line


def test_a_recording_without_fault_has_no_notices(client: openai.OpenAI, beginning: Any):
    asked = {"model": "german", "file": beginning, "response_format": "verbose_json"}
    assert transcribe(client, **asked).notices == []


def test_an_audio_track_is_chosen(client: openai.OpenAI, beginning: Any, tmp_path: Path):
    speech, _ = soundfile.read(io.BytesIO(beginning[1]), dtype="float32")
    silence = FilmTrack(samples=np.zeros(32_000), language="deu", is_default=True)
    write_film(tmp_path / "film.mkv", [silence, FilmTrack(samples=speech, language="eng")])
    content = (tmp_path / "film.mkv").read_bytes()
    for track in "2", "en":
        asked = {"model": "german", "file": ("f.mkv", content)}
        assert transcribe(client, **asked, extra_body={"audio_track": track}).text == "hallo"
    with pytest.raises(openai.BadRequestError, match="no audio track 3: it has audio tracks 1"):
        transcribe(client, file=("f.mkv", content), extra_body={"audio_track": "3"})


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # by newer endpoints
def test_a_translation(client: openai.OpenAI, beginning: tuple[str, bytes]):
    assert transcribe(client, model="german", file=beginning).text == "hallo"
    assert client.audio.translations.create(model="german", file=beginning).text == "hello"
    with pytest.raises(openai.BadRequestError, match="English only"):
        client.audio.translations.create(model="whisper-1", file=beginning)


REFUSED = {
    "is empty": {"file": ("a.wav", b"")},
    "the recording cannot be decoded": {"file": ("a.wav", b"hello" * 100)},
    "does not exist": {"model": "nope"},
    "unknown language": {"language": "klingon"},
    "verbose_json": {"timestamp_granularities": ["word"]},
    "stream": {"stream": True, "response_format": "srt"},
    "temperature": {"temperature": 7},
    "response_format": {"response_format": "diarized_json"},
    "include": {"include": ["logprobs"]},
    "beam": {"extra_body": {"beam": 99}},
    "vad_parameters must be": {"extra_body": {"vad_filter": "true", "vad_parameters": "[1]"}},
    "'neg_threshold' is not": {
        "extra_body": {"vad": "true", "vad_parameters": '{"neg_threshold": 1}'}
    },
    "clip_timestamps": {"extra_body": {"clip_timestamps": "0,x"}},
}


@pytest.mark.parametrize("said", REFUSED)
def test_an_invalid_transcription_request_is_refused_in_one_line(client: openai.OpenAI, said: str):
    with pytest.raises(openai.APIStatusError, match=said) as refused:
        transcribe(client, **REFUSED[said])
    assert refused.value.status_code in {400, 404}
    assert "\n" not in refused.value.message
    assert str(ROOT) not in refused.value.message
    assert "/tmp" not in refused.value.message


VAD = {"threshold": 0.4, "min_silence_duration_ms": 500, "speech_pad_ms": 30}
VAD |= {"max_speech_duration_s": 20}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"temperature": "0.4"}, {"temperature": (0.4,)}),
        ({"temperature": "0"}, {}),
        ({"temperature": ["0", "0.2"]}, {"temperature": (0, 0.2)}),
        ({"temperature": "[0, 0.2,1.0]"}, {"temperature": (0, 0.2, 1)}),
        ({"clip_timestamps": "1.5,2,3"}, {"clip_timestamps": (1.5, 2, 3)}),
        ({"hotwords": "Emma"}, {"hotwords": "Emma"}),
        ({"hotwords": "", "clip_timestamps": "", "temperature": ""}, {}),
        ({"vad_filter": "true"}, {"vad": True}),
        (
            {"vad_filter": "true", "vad_parameters": json.dumps(VAD)},
            {"vad": True, "vad_threshold": 0.4, "min_silence": 0.5}
            | {"speech_pad": 0.03, "max_speech": 20},
        ),
    ],
)
def test_fields_of_faster_whispers_servers(given: dict[str, Any], expected: dict[str, Any]):
    form = transcriptions.TranscriptionForm(file=UploadFile(io.BytesIO()), model="a", **given)
    options, _ = transcriptions._options(form, "transcribe")
    assert options == {"task": "transcribe", "initial_prompt": None} | expected


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("demo", "did you mean demo-base?"),
        ("whisper-1", "ask for demo-base, or start kvcast serve with --alias whisper-1=demo-base"),
        ("gpt-4o", "here; GET /v1/models lists all models"),
    ],
)
def test_an_unknown_model_is_answered_with_one_that_transcribes(name: str, advice: str):
    kinds = {"demo-chat": CHAT, "demo-t5": TEXT2TEXT, "demo-base": SPEECH}
    models = Models(Served(name=each, engine=Mock(), kind=kind) for each, kind in kinds.items())
    with pytest.raises(ApiError) as refused:
        models.speech_model(name)
    assert refused.value.status == 404
    assert advice in str(refused.value)
    assert "demo-chat" not in str(refused.value)


def test_fields_without_effect_are_named(server, beginning, caplog):
    caplog.set_level(logging.INFO, "kvcast.server")
    odd = {f"odd{i}": "x" for i in range(30)}
    with server.http() as http:
        path, form = "/v1/audio/transcriptions", {"model": "german", "speed": "2", "ä b": "x"}
        known = {"temperature": ["0", "0.2"], "clip_timestamps": "0,2", "language": "de"}
        answer = http.post(path, data=form | known, files={"file": beginning})
        assert answer.headers["x-ignored-fields"] == "speed, %C3%A4%20b"
        assert "hallo" in answer.json()["text"]
        answer = http.post(path, data={"model": "german"} | odd, files={"file": beginning})
        assert answer.headers["x-ignored-fields"].endswith("odd19, ...")
        answer = http.post(path, data={"model": "german"}, files={"file": beginning})
        assert "x-ignored-fields" not in answer.headers
        answer = http.post("/v1/completions", json={"model": "no", "prompt": "a", "min_tokens": 2})
        assert answer.headers["x-ignored-fields"] == "min_tokens"
    requests = lambda: [record for record in caplog.records if hasattr(record, "fields")]  # noqa: E731
    until(lambda: len(requests()) >= 4)
    assert requests()[0].fields["ignored"] == "speed, %C3%A4%20b"


def test_recordings_that_are_too_long_or_too_large(server: Server, client: openai.OpenAI):
    minute = encoded(np.zeros(61 * 16_000), 16_000, "wav")
    with pytest.raises(openai.BadRequestError, match="longer than 1 minutes") as long:
        transcribe(client, file=("a.wav", minute))
    assert long.value.code == "audio_too_long"
    with pytest.raises(openai.APIStatusError, match="larger than 4 MiB") as large:
        transcribe(client, file=("a.wav", bytes(5 << 20)))
    assert large.value.status_code == 413


def test_a_full_queue_is_reported_before_a_recording_is_read(server, client, monkeypatch):
    engine = server.engines["whisper-1"]
    full = replace(engine.status(), waiting=1000)
    monkeypatch.setattr(engine, "status", lambda: full)
    monkeypatch.setattr(Recordings, "read", lambda *_: pytest.fail("it was read"))
    with pytest.raises(openai.RateLimitError, match="wait already") as refused:
        transcribe(client)
    assert refused.value.response.headers["retry-after"]


def test_a_client_that_leaves_ends_its_transcription(server: Server):
    before = server.status("whisper-1").finished.get("cancelled", 0)
    with server.http() as http, RECORDING.open("rb") as file:
        form = {"model": "whisper-1", "stream": "true"}
        request = http.build_request(
            "POST", "/v1/audio/transcriptions", data=form, files={"file": file}
        )
        answer = http.send(request, stream=True)
        next(answer.iter_bytes())
        answer.close()
    until(lambda: server.status("whisper-1").finished.get("cancelled", 0) == before + 1)
    assert server.status("whisper-1").busy == []
