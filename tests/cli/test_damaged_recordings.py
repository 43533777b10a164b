"""Damaged recordings and a real model: one line for each, and nothing is lost."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile

from kvcast.cli import main
from kvcast.loading import opening
from kvcast.loading.opening import OpenedModel
from kvcast.loading.params import LoadParams

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/sense-and-sensibility.flac"


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Transcribe = Callable[..., Done]


@pytest.fixture(scope="module")
def demo() -> OpenedModel:
    return opening.open_model("demo", LoadParams(), task="transcribe")


@pytest.fixture
def transcribe(demo, capfd, monkeypatch) -> Transcribe:
    """The command with a model that is opened once; captures output of C libraries too."""
    monkeypatch.setattr(opening, "open_model", lambda *_, **__: demo)

    def run(*words: str | Path) -> Done:
        code = main(["transcribe", "--model", "demo", *map(str, words)])
        return Done(code, *capfd.readouterr())

    return run


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    samples, _ = soundfile.read(EXAMPLE, dtype="float32")
    return samples[: 16_000 * 8]


@pytest.fixture(scope="module")
def files(tmp_path_factory, speech: np.ndarray) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "empty.wav").touch()
    soundfile.write(folder / "silent.wav", np.zeros(16_000 * 5), 16_000)
    soundfile.write(folder / "whole.wav", speech, 16_000)
    whole = (folder / "whole.wav").read_bytes()
    (folder / "truncated.wav").write_bytes(whole[: len(whole) // 2])
    return folder


def test_silence_is_a_notice_and_an_empty_transcript(transcribe: Transcribe, files: Path) -> None:
    done = transcribe(files / "silent.wav")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("\n") == 1
    assert "silent" in done.stderr


def test_a_truncated_file_is_transcribed_with_a_notice(transcribe, files):
    done = transcribe(files / "truncated.wav")
    assert done.returncode == 0
    assert done.stdout.startswith("And Mr. John Dashwood")
    assert done.stderr.count("\n") == 1
    assert "truncated.wav" in done.stderr


def test_one_bad_file_of_several_costs_only_itself(transcribe, files, tmp_path):
    words = (EXAMPLE, files / "empty.wav", files / "whole.wav")
    done = transcribe(*words, "--output-dir", tmp_path, "--format", "all", "--quiet")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{stem}.{kind}"
        for stem in ("sense-and-sensibility", "whole")
        for kind in ("txt", "srt", "vtt", "ass", "lrc", "tsv", "json")
    )


def test_standard_input_is_a_recording_too() -> None:
    command = [sys.executable, "-m", "kvcast", "transcribe", "--model", "demo", "-"]
    with EXAMPLE.open("rb") as stream:
        done = subprocess.run(command, stdin=stream, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "He was not an ill-disposed young man." in done.stdout
