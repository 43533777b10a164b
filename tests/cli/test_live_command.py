"""`kvcast transcribe --live -`: its output, its options, and errors."""

import contextlib
import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import soundfile

from cli.live_fakes import live_model, pcm
from kvcast.cli import live, main

ROOT = Path(__file__).parents[2]
SUMMARY = "delay until a word is confirmed: median 0.5 s, 95% within 0.5 s, longest 0.5 s\n"


@pytest.fixture
def model(open_as):
    scripted = live_model()
    open_as(scripted)
    return scripted


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    with contextlib.ExitStack() as opened:

        def make(data: bytes) -> None:
            reading, writing = os.pipe()

            def write() -> None:
                with os.fdopen(writing, "wb") as stream, contextlib.suppress(BrokenPipeError):
                    stream.write(data)

            threading.Thread(target=write, daemon=True).start()
            monkeypatch.setattr(sys, "stdin", opened.enter_context(os.fdopen(reading)))

        yield make


def transcribe(*words: str) -> int:
    return main(["transcribe", "--model", "demo", "--live", "-", *words])


def test_a_pipe_gets_settled_text_a_line_for_each_utterance(model, pipe, capsys):
    pipe(pcm(3.2))
    assert transcribe() == 0
    out, err = capsys.readouterr()
    assert out == "w1 w2 w3 w4\nw5 w6!\n"
    assert err == f"kvcast: standard input: 3.2 s of audio, 6 words; {SUMMARY}"
    [(_, options)] = model.lives
    assert (options["step"], options["pause"], options["beam"]) == (None, 0.6, 1)


def test_options_arrive(model, pipe, capsys):
    pipe(pcm(1.0))
    words = ["--step", "2.5", "--pause", "0.3", "--language", "de", "--beam_size", "5", "--quiet"]
    assert transcribe(*words) == 0
    options = model.lives[0][1]
    given = [options[name] for name in ("step", "pause", "language", "beam")]
    assert given == [2.5, 0.3, "de", 5]
    assert capsys.readouterr().err == ""


def test_json_is_a_document_for_each_line(model, pipe, capsys):
    schema = json.loads((ROOT / "docs" / "live.schema.json").read_text())
    pipe(pcm(3.2))
    assert transcribe("--json") == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for document in documents:
        jsonschema.validate(document, schema)
    assert [document["text"] for document in documents] == [" w1 w2 w3 w4", " w5 w6"]
    assert documents[1] == {
        "format": "kvcast.live",
        "version": 1,
        "id": 1,
        "start": 2.0,
        "end": 3.0,
        "text": " w5 w6",
        "tokens": [4, 5],
        "delay": 0.512,
    }


def test_a_rate_is_of_raw_audio_and_a_wav_has_its_own(model, pipe, capsys):
    pipe(pcm(1.0))
    assert transcribe("--sample-rate", "8000") == 0
    file = io.BytesIO()
    soundfile.write(file, np.zeros((48_000, 2)), 48_000, format="WAV")
    pipe(file.getvalue())
    assert transcribe("--sample-rate", "8000") == 0
    assert [fake.samples for fake, _ in model.lives] == [32_000, 16_000]
    assert all(at is not None for fake, _ in model.lives for at in fake.arrived[:-1])
    capsys.readouterr()


def test_half_a_sample_at_the_end_is_reported(model, pipe, capsys):
    pipe(pcm(1.0) + b"\1")
    assert transcribe() == 0
    told = "kvcast: standard input ends within a sample, which was left out"
    assert capsys.readouterr().err.splitlines()[0] == told


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "kvcast: standard input is empty: it has 0 bytes\n"),
        (b"fLaC" + bytes(100), "kvcast: standard input is FLAC, and only raw PCM or WAV can be"),
        (b"RIFF\0\0\0\0WAVEfmt ", "kvcast: standard input is a WAV without audio"),
    ],
)
def test_invalid_audio_is_one_line(model, pipe, error_line, data: bytes, said: str):
    pipe(data)
    assert transcribe() == 74
    assert error_line().startswith(said)


def test_words_before_damaged_audio_are_settled(model, pipe, capsys):
    floats = np.zeros(32_000, "<f4")
    floats[-1] = np.nan
    file = io.BytesIO()
    soundfile.write(file, floats, 16_000, subtype="FLOAT", format="WAV")
    pipe(file.getvalue())
    assert transcribe() == 74
    out, err = capsys.readouterr()
    assert out.startswith("w1")
    assert out.endswith("!\n")
    assert "is not audio: it has samples of nan" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a.wav"], "--live reads standard input alone: give - and no file"),
        (["--format", "srt"], "--live prints text or JSON, not srt"),
        (["--format", "all"], "--live prints text or JSON, not all"),
        (["--output-dir", "out"], "--live prints its text and saves none: drop --output-dir"),
        (["--clip-start", "3"], "clip_start is for recordings, and means nothing live"),
        (["--no-timestamps"], "timestamps is for recordings, and means nothing live"),
        (["--word-timestamps"], "word_timestamps is for recordings, and means nothing live"),
        (["--recursive"], "--live reads no folder: drop --recursive"),
        (["--glob", "*.dat"], "--live reads no folder: drop --glob"),
        (["--newer", "2020-01-01"], "--live reads no folder: drop --newer"),
        (["--workers", "3"], "--live reads no folder: drop --workers"),
        (["--resume"], "--live reads no folder: drop --resume"),
        (["--highlight-words"], "--live prints no subtitles: drop --highlight-words"),
        (["--max-line-width", "9"], "--live prints no subtitles: drop --max-line-width"),
        (["--step", "0"], "--step: must be a number"),
        (["--sample-rate", "12"], "--sample-rate: must be a whole number from 1000 to 768000"),
    ],
)
def test_options_that_live_lacks_are_refused(model, pipe, error_line, words, said):
    pipe(b"")
    assert transcribe(*words) == 2
    assert said in error_line()
    assert model.lives == []


@pytest.mark.parametrize(
    ("word", "value"), [("--step", "8"), ("--pause", "8"), ("--sample-rate", "8000")]
)
def test_an_option_of_live_alone_is_refused_for_recordings(open_as, recording, capsys, word, value):
    open_as(live_model())
    assert main(["transcribe", "--model", "demo", recording("a.wav"), word, value]) == 2
    assert f"{word} needs --live" in capsys.readouterr().err


class Slow:
    """A stream that returns its pieces at once, as a file does."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.given = 0

    def __call__(self, most: int) -> bytes:
        if self.given == len(self.pieces):
            return b""
        self.given += 1
        return self.pieces[self.given - 1]


def test_reading_waits_when_much_has_piled_up_and_loses_nothing():
    stream = Slow([bytes(1 << 20)] * 12)
    intake = live.Intake(stream)
    deadline = time.monotonic() + 30
    while stream.given < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert stream.given == 5  # more than 4 MB wait
    taken = 0
    while pieces := intake.take():
        taken += sum(len(data) for data, _ in pieces)
        assert sum(len(data) for data, _ in pieces) <= 6 << 20
    assert taken == 12 << 20


def test_an_error_of_reading_follows_what_was_read():
    def read(most: int) -> bytes:
        raise OSError(5, "Input/output error")

    intake = live.Intake(read)
    with pytest.raises(Exception, match="standard input cannot be read: Input/output error"):
        intake.take()


def test_a_backlog_of_audio_is_reported_once(model, capsys):
    class Busy(live.Intake):
        def __init__(self) -> None:
            self.was_stopped = False
            self.left = [1.0, 11.0, 12.0]

        def take(self):
            return [(pcm(self.left.pop(0)), 0.0)] if self.left else []

    live_model = model.live()
    live.transcribe(live_model, Busy(), sample_rate=16_000, as_json=False, quiet=False)
    out, err = capsys.readouterr()
    assert err.count("audio arrives faster than this machine decodes it") == 1
    assert out.count("\n") == 12
