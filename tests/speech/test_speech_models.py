"""Recordings, batches, folders, the server and subtitles of a model beside Whisper.

Its weights are random, so its text says nothing; that it is the one of the whole chunk is proved
in tests/models.
"""

import io
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pysubs2
import pytest
import soundfile

import kvcast
from kit.audio_decoders import random_audio_decoder, save_audio_decoder
from kvcast.cli import main
from kvcast.errors import UsageError
from server.serving import Server, serving

ROOT = Path(__file__).parents[2]
RATE = 16_000
QUIET = (20.0, 41.5, 58.5)  # seconds around which nothing is heard
SECONDS = 70.0
FEW: dict[str, Any] = {"max_new_tokens": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_audio_decoder(
        random_audio_decoder("qwen3_asr"), tmp_path_factory.mktemp("models") / "asr"
    )


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return kvcast.load(folder, runtime="native", quantize="none", threads=1)


def recording(seconds: float = SECONDS) -> Any:
    """Noise that is nearly silent at times."""
    samples = np.random.default_rng(0).normal(0, 0.1, round(RATE * seconds)).astype(np.float32)
    at = np.arange(len(samples)) / RATE
    for quiet in QUIET:
        samples[np.abs(at - quiet) < 0.4] *= 1e-3
    return samples


@pytest.fixture(scope="module")
def segments(model: Any) -> list[Any]:
    return list(model.transcribe(recording(), **FEW))


def test_chunks_are_cut_where_it_is_quiet(segments: list[Any]):
    assert segments[0].start == 0
    assert segments[-1].end == SECONDS
    for before, after in pairwise(segments):
        assert before.end == after.start
        assert min(abs(before.end - quiet) for quiet in QUIET) < 0.5
    assert [segment.id for segment in segments] == list(range(len(segments)))
    assert all(segment.text.strip() for segment in segments)


def test_a_batch_and_an_engine_give_what_each_gives_alone(model: Any, segments: list[Any]):
    recordings = [recording(), recording(9.0), recording(31.0)]
    alone = [list(model.transcribe(each, **FEW)) for each in recordings[1:]]
    together = [list(each) for each in model.transcribe_all(recordings, batch=4, **FEW)]
    assert together == [segments, *alone]
    with kvcast.Engine(model, rows=3) as engine:
        jobs = [engine.submit(each, **FEW) for each in recordings]
        assert [list(job.result().segments) for job in jobs] == together
        assert jobs[0].result().duration == SECONDS


def test_clips_silence_and_languages(model: Any):
    [segment] = model.transcribe(recording(), clip_start=3, clip_end=8.5, language="fr", **FEW)
    assert (segment.start, segment.end, segment.language) == (3, 8.5, "fr")
    silent = model.transcribe(np.zeros(3 * RATE, np.float32))
    assert list(silent) == []
    assert silent.language == "und"
    assert "is silent" in silent.notices[0]


def test_context_and_sampling_change_the_text(model: Any):
    def text(**options: Any) -> str:
        return " ".join(each.text for each in model.transcribe(recording(6.0), **FEW, **options))

    plain = text()
    assert text(initial_prompt="Ahab, Queequeg") != plain
    assert text(hotwords="Ahab") != plain
    assert text(temperature=2.0, seed=1) != text(temperature=2.0, seed=2)
    assert text(beam=3) != text(suppress_tokens="-1", no_repeat_ngram=1)
    assert text(temperature=0, logprob_threshold=None, timestamps=False) == plain


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"task": "translate"}, "does not translate"),
        ({"word_timestamps": True}, "no word times"),
        ({"channels": "split"}, "no word times"),
        ({"prefix": "a"}, "prefix is not supported by this model"),
        ({"suppress_tokens": "5"}, "suppress_tokens is not supported by this model"),
        ({"logprob_threshold": -2.0}, "logprob_threshold is not supported by this model"),
        ({"stop_repetition": False}, "stop_repetition is not supported by this model"),
        ({"draft": "ngram"}, "draft is not supported by this model"),
        ({"temperature": (0.0, 0.5)}, "retry at other temperatures"),
        ({"language": "la"}, "does not know Latin"),
        ({"initial_prompt": "a b " * 1000}, "too long"),
    ],
)
def test_what_a_model_does_not_take_is_refused(model: Any, options: Any, reason: str):
    with pytest.raises(UsageError, match=reason) as error:
        model.transcribe(recording(1.0), **options)
    assert "\n" not in str(error.value)


def test_other_uses_are_refused_in_one_line(model: Any):
    for use in (
        lambda: model.detect_language(recording(1.0)),
        lambda: model.align(recording(1.0), "a"),
        lambda: model.live(),
    ):
        with pytest.raises(UsageError, match="this model"):
            use()


def write(path: Path, seconds: float) -> Path:
    soundfile.write(path, recording(seconds), RATE)
    return path


def test_int8_writes_subtitles_of_a_folder(folder: Path, tmp_path: Path, capsys: Any):
    sounds, texts = tmp_path / "sounds", tmp_path / "texts"
    sounds.mkdir()
    for name, seconds in (("a.wav", 3.0), ("b.wav", 30.0)):
        write(sounds / name, seconds)
    given = ["--model", str(folder), "--runtime", "native", "--max-new-tokens", "6", "--batch", "2"]
    assert main(["transcribe", str(sounds), "-o", str(texts), "-f", "srt", *given]) == 0
    assert {path.name for path in texts.glob("*.srt")} == {"a.srt", "b.srt"}
    cues = pysubs2.load(str(texts / "b.srt"))
    assert cues[0].start == 0
    assert cues[-1].end == 30_000
    assert all(cue.text for cue in cues)
    capsys.readouterr()
    assert main(["transcribe", str(sounds / "a.wav"), "--json", *given]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["duration"] == 3.0
    assert document["segments"][0]["text"].strip()
    assert main(["detect", str(sounds / "a.wav"), "--model", str(folder)]) != 0
    assert "use kvcast transcribe" in capsys.readouterr().err


@pytest.fixture(scope="module")
def server(model: Any) -> Iterator[Server]:
    with serving({"asr": model}) as running:
        yield running


def post(server: Server, path: str = "transcriptions", **form: Any) -> httpx.Response:
    file = io.BytesIO()
    soundfile.write(file, recording(5.0), RATE, format="WAV")
    return httpx.post(
        f"{server.url}/v1/audio/{path}",
        data={"model": "asr", **form},
        files={"file": ("a.wav", file.getvalue())},
        timeout=60,
    )


def test_the_server_transcribes(server: Server, model: Any):
    expected = "".join(each.text for each in model.transcribe(recording(5.0), language="en"))
    document = post(server, response_format="verbose_json", language="English").json()
    assert document["text"] == expected.strip()
    assert (document["language"], document["duration"]) == ("english", 5.0)
    assert document["segments"][0]["end"] == 5.0
    hinted = post(server, prompt="Ahab", language="en").json()["text"]
    assert hinted != expected.strip()
    refused = post(server, "translations")
    assert refused.status_code == 400
    assert "does not translate" in refused.json()["error"]["message"]


def test_what_is_no_speech_is_left_out(model: Any):
    spoken, _ = soundfile.read(ROOT / "examples/sense-and-sensibility.flac", dtype="float32")
    samples = np.concatenate([np.zeros(4 * RATE, np.float32), spoken[: 6 * RATE]])
    transcription = model.transcribe(samples, vad=True, **FEW)
    segments = list(transcription)
    assert 3.5 < segments[0].start < 4.5
    assert transcription.skipped[0].start == 0
    assert transcription.duration == 10.0
