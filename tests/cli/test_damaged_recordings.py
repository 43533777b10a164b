"""From damaged file to exit code with a real model: one line each, and nothing is lost."""

import shutil
import struct
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
DAMAGED = ROOT / "tests/audio/damaged"


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
    """The command with a model that is opened once, and all that libraries in C write as well."""
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
def files(tmp_path_factory: pytest.TempPathFactory, speech: np.ndarray) -> Path:
    """Every kind of damage by its name."""
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "empty.wav").touch()
    (folder / "text.wav").write_text("not sound " * 100)
    soundfile.write(folder / "one-sample.wav", speech[:1], 16_000)
    soundfile.write(folder / "not-a-number.wav", np.full(16_000, np.nan), 16_000, "FLOAT")
    soundfile.write(folder / "silent.wav", np.zeros(16_000 * 5), 16_000)
    soundfile.write(folder / "whole.wav", speech, 16_000)
    whole = (folder / "whole.wav").read_bytes()
    (folder / "zero-channels.wav").write_bytes(whole[:22] + struct.pack("<H", 0) + whole[24:])
    absurd = struct.pack("<I", 0xFFFFFFF0)
    (folder / "absurd-rate.wav").write_bytes(whole[:24] + absurd + whole[28:])
    (folder / "truncated.wav").write_bytes(whole[: len(whole) // 2])
    (folder / "header.wav").write_bytes(whole[:44])
    for name in ("awful.wav", "bad.wav", "null.wav", "evil.wav"):
        shutil.copy(DAMAGED / name, folder / name)
    return folder


UNREADABLE = [
    "empty.wav",
    "text.wav",
    "one-sample.wav",
    "not-a-number.wav",
    "zero-channels.wav",
    "absurd-rate.wav",
    "header.wav",
]


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_input_is_one_line_and_74(transcribe, files, name):
    done = transcribe(files / name)
    assert (done.returncode, done.stdout) == (74, "")
    assert done.stderr.count("\n") == 1
    assert name in done.stderr


@pytest.mark.parametrize("name", ["awful.wav", "bad.wav", "null.wav", "evil.wav"])
def test_known_bad_files_are_one_line_at_most(transcribe, files, name):
    """What can be made of these differs, but never a traceback, and never silence about it."""
    done = transcribe(files / name)
    assert done.returncode in (0, 74)
    assert done.stderr.count("\n") == 1
    assert name in done.stderr


def test_silence_is_said_and_transcribes_to_nothing(transcribe: Transcribe, files: Path) -> None:
    done = transcribe(files / "silent.wav")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("\n") == 1
    assert "silent" in done.stderr


def test_what_a_truncated_file_holds_is_transcribed_and_the_cut_is_said(transcribe, files):
    done = transcribe(files / "truncated.wav")
    assert done.returncode == 0
    assert done.stdout.startswith("And Mr. John Dashwood")
    assert done.stderr.count("\n") == 1
    assert "truncated.wav" in done.stderr


def test_a_missing_file_is_66(transcribe: Transcribe) -> None:
    done = transcribe("nowhere.wav")
    assert (done.returncode, done.stdout) == (66, "")
    assert done.stderr.count("\n") == 1


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
