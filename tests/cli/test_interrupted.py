"""A transcription that is interrupted goes on with the same command, and ends the same."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import soundfile

from kit.marks import slow
from kit.recordings import SPOKEN, read
from kvcast.cli import main
from kvcast.cli.console import Terminated
from kvcast.transcripts.unfinished import UnfinishedWork

WAYS = {
    "greedy": ["--temperature", "0"],
    "words": ["--word-timestamps", "--temperature", "0"],
    "sampled": ["--temperature", "0.6", "--best-of", "2"],
    "batched": ["--batch", "2"],
    "split": ["--channels", "split", "--temperature", "0"],
}
GOES_ON = "goes on where an interrupted run ended"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "talk.wav"
    soundfile.write(path, read(SPOKEN)[: 70 * 16_000], 16_000)
    return path


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of results, as they are computed."""
    keys: list[str] = []
    put = UnfinishedWork.put

    def counted(self: UnfinishedWork, key: str, result: dict) -> None:
        put(self, key, result)
        keys.append(key)

    monkeypatch.setattr(UnfinishedWork, "put", counted)
    return keys


def run(recording: Path, out: Path, way: Sequence[str]) -> int:
    given = ["transcribe", str(recording), "--model", "demo", "--output-dir", str(out)]
    return main([*given, "--format", "all", *way])


def files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def interrupt_after(count: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    put, done = UnfinishedWork.put, 0

    def interrupting(self: UnfinishedWork, key: str, result: dict) -> None:
        nonlocal done
        put(self, key, result)
        done += 1
        if done == count:
            raise error

    monkeypatch.setattr(UnfinishedWork, "put", interrupting)


@pytest.mark.parametrize("way", ["words", *(slow(way) for way in WAYS if way != "words")])
def test_the_same_command_goes_on_and_ends_the_same(
    recording, tmp_path, monkeypatch, capsys, made, way
):
    given = WAYS[way]
    assert run(recording, tmp_path / "whole", given) == 0
    expected, total = files(tmp_path / "whole"), len(made)
    printed = capsys.readouterr().out
    assert total >= 3
    out = tmp_path / "out"
    for count, error, code in [(1, KeyboardInterrupt(), 130), (total - 2, Terminated(), 143)]:
        with monkeypatch.context() as patch:
            interrupt_after(count, error, patch)
            assert run(recording, out, given) == code
        assert f"{recording}: the same command goes on from here" in capsys.readouterr().err
        assert list(files(out)) == [".kvcast-talk.part"]
    made.clear()
    assert run(recording, out, given) == 0
    assert files(out) == expected
    assert len(made) == 1, "what was done is not done again"
    told = capsys.readouterr()
    assert told.out == printed
    assert f"{recording}: {GOES_ON}" in told.err


def test_other_options_and_a_changed_recording_start_anew(recording, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        interrupt_after(1, KeyboardInterrupt(), patch)
        assert run(recording, out, WAYS["greedy"]) == 130
    short = ["--clip-end", "20", "--temperature", "0"]
    assert run(recording, out, short) == 0
    assert GOES_ON not in capsys.readouterr().err
    assert not [name for name in files(out) if name.endswith(".part")]
    with monkeypatch.context() as patch:
        interrupt_after(1, KeyboardInterrupt(), patch)
        assert run(recording, out, short) == 130
    soundfile.write(recording, read(SPOKEN)[16_000 : 60 * 16_000], 16_000)
    assert run(recording, out, short) == 0
    assert GOES_ON not in capsys.readouterr().err
    assert run(recording, tmp_path / "whole", short) == 0
    assert files(out) == files(tmp_path / "whole")


def test_an_error_leaves_nothing_behind(recording, tmp_path, monkeypatch):
    interrupt_after(1, RuntimeError("broken"), monkeypatch)
    assert run(recording, tmp_path / "out", WAYS["greedy"]) == 1
    assert files(tmp_path / "out") == {}
