"""A run over a folder, killed with SIGKILL and started again, loses nothing and ends the same."""

import json
import os
import random
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli.fakes import transcripts, write_files
from cli.processes import PROGRAM, TRANSCRIBE
from kit.marks import slow, soak
from kvcast.transcripts.folders.journal import unsealed
from kvcast.transcripts.writers import EXTENSIONS

RECORDINGS = {
    **{f"{name}.wav": name for name in "abc"},
    **{f"{name}.mp3": name * 2 for name in "abd"},  # two of them clash with a .wav
    **{f"talks/{name}.flac": name * 3 for name in "ae"},
    "talks/deep/f.ogg": "f",
    "bad.wav": "bad sound",
}
WORKERS = [("--workers", number) for number in "125"]
DONE = {path for path in RECORDINGS if path != "bad.wav"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "in", RECORDINGS)


def run(folder: Path, out: Path, *words: str, **environment: str) -> subprocess.CompletedProcess:
    command = [
        *(*PROGRAM, *TRANSCRIBE, str(folder)),
        *("--recursive", "--output-dir", str(out), "--format", "all", "--json", *words),
    ]
    return subprocess.run(
        command, capture_output=True, check=False, env=os.environ | environment, text=True
    )


def done_in(out: Path) -> set[str]:
    journal = out / ".kvcast" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    entries = filter(None, map(unsealed, lines))
    return {entry["path"] for entry in entries if entry.get("status") == "done"}


def check_kill(folder: Path, expected: dict[str, bytes], out: Path, kill_at: int, *words: str):
    killed = run(folder, out, *words, KVCAST_KILL_AT=str(kill_at))
    assert killed.returncode == -signal.SIGKILL
    assert transcripts(out).items() <= expected.items()
    before = done_in(out)
    resumed = run(folder, out, "--resume", *words)
    assert resumed.returncode == 3, resumed.stderr
    assert transcripts(out) == expected
    ended = {file["path"]: file["status"] for file in json.loads(resumed.stdout)["files"]}
    assert {path for path, status in ended.items() if status == "kept"} == before
    assert ended == {
        path: "failed" if path == "bad.wav" else "kept" if path in before else "done"
        for path in RECORDINGS
    }
    lines = (out / ".kvcast" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    assert None not in map(unsealed, lines)
    assert done_in(out) == DONE
    assert list(out.rglob("*.part")) == []


def kills(
    folder: Path, tmp_path: Path, *, ways: Sequence[Sequence[str]], count: int, seed: int
) -> None:
    undisturbed = tmp_path / "undisturbed"
    counted = tmp_path / "lines"
    assert run(folder, undisturbed, KVCAST_COUNT=str(counted)).returncode == 3
    expected = transcripts(undisturbed)
    assert len(expected) == len(EXTENSIONS) * len(DONE)
    assert len(set(expected.values())) == len(expected)
    lines = int(counted.read_text())
    chance = random.Random(seed)
    # With threads, the number of lines varies a little from run to run.
    for number, kill_at in enumerate(chance.sample(range(1, lines * 9 // 10), count)):
        words = ways[number % len(ways)]
        check_kill(folder, expected, tmp_path / f"out{number}", kill_at, *words)


def test_a_killed_run_is_resumed_to_the_same_result(folder, tmp_path):
    kills(folder, tmp_path, ways=[WORKERS[0]], count=2, seed=1)


@pytest.mark.parametrize("count", [slow(6), soak(60)])
def test_a_run_killed_at_any_point_is_resumed_to_the_same_result(folder, tmp_path, count: int):
    kills(folder, tmp_path, ways=WORKERS, count=count, seed=2)


@pytest.mark.parametrize("count", [slow(4), soak(60)])
def test_a_killed_run_with_a_batch_is_resumed_to_the_same_result(folder, tmp_path, count: int):
    kills(folder, tmp_path, ways=[("--batch", "1"), ("--batch", "4")], count=count, seed=3)


@pytest.mark.slow
def test_a_run_killed_again_and_again_comes_to_the_same_end(folder, tmp_path):
    assert run(folder, tmp_path / "undisturbed").returncode == 3
    out, chance = tmp_path / "out", random.Random(7)
    for _ in range(200):
        kill_at = str(chance.randrange(900, 4500))
        ended = run(folder, out, "--resume", "--workers", "2", KVCAST_KILL_AT=kill_at)
        if ended.returncode == 3:
            break
        assert ended.returncode == -signal.SIGKILL
    assert ended.returncode == 3
    assert transcripts(out) == transcripts(tmp_path / "undisturbed")
    assert done_in(out) == DONE
