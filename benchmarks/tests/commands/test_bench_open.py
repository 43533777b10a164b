"""`kvcast bench open` for real, alone."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.errors import one_line
from kvcast.cli import parsers
from kvcast.errors import KvcastError, UsageError
from kvcast_bench.models import BenchModel
from kvcast_bench.peers.opening import Opener

ROOT = Path(__file__).parents[3]
_PEER = {
    "open": "llama.cpp",
    "generate": "llama.cpp-q8_0",
    "serve": "faster-whisper",
    "transcribe": "faster-whisper",
}
AUDIO = str(ROOT / "examples" / "sense-and-sensibility.flac")


@pytest.mark.slow
def test_a_recording_is_answered_by_new_processes(measured: Callable[..., Any]):
    asked = ["--model", "demo", "--audio", AUDIO, "--runs", "1", "--peers", "llama.cpp"]
    document = measured("open", *asked)
    (row,) = document["rows"]
    assert row["backend"] == "kvcast-own"
    assert [absent["name"] for absent in document["absent"]] == ["llama.cpp"]
    assert 0 < row["metrics"]["ready"]["median"] < row["metrics"]["first"]["median"]
    assert "Dashwood" in row["facts"]["text"]
    # A process of its own: this one holds torch and more.
    assert 50e6 < row["facts"]["own_megabytes"] * 1e6 < row["peak_bytes"] < 400e6


@pytest.mark.parametrize("command", ["open", "generate", "serve", "transcribe"])
def test_kvcast_is_measured_alone_if_asked(command: str):
    parser, _ = parsers(["bench"])
    needed = ["a.wav"] if command == "transcribe" else []
    for words in ["none"], []:
        assert parser.parse_args(["bench", command, *needed, "--peers", *words]).peers == []
    with pytest.raises(UsageError, match="none leaves out all others"):
        parser.parse_args(["bench", command, *needed, "--peers", "none", _PEER[command]])
    assert "none for kvcast alone" in " ".join(_help(parser, command).split())


def _help(parser: argparse.ArgumentParser, command: str) -> str:
    for word in ("bench", command):
        (commands,) = parser._subparsers._group_actions
        parser = commands.choices[word]
    return parser.format_help()


def test_the_reason_of_a_process_that_fails_is_one_line(tmp_path: Path):
    model = BenchModel(folder=str(tmp_path / "absent.gguf"), threads=1)
    opener = Opener(model=model, name="kvcast-own")
    assert "absent.gguf" in one_line(KvcastError, opener.answer, "Once", None)
