"""`kvcast bench transcribe` for real, short and alone, and what it says to mistakes."""

import json
from pathlib import Path

import jsonschema
import pytest

from kvcast.bench import arena, quiet, transcribe
from kvcast.bench.contender import installed_versions
from kvcast.bench.speech.peers import CONTENDERS, PEERS
from kvcast.bench.speech.peers.base import Task
from kvcast.cli import main

ROOT = Path(__file__).parents[2]
AUDIO = str(ROOT / "examples" / "sense-and-sensibility.flac")
TEXT = str(ROOT / "examples" / "sense-and-sensibility.txt")
ALONE = ["--model", "demo", "--threads", "1", "--beam", "1", "--runs", "1", "--peers"]


def task(folder: Path) -> Task:
    return Task(model="demo", folder=str(folder), threads=1, language="en")


def test_kvcast_alone_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(quiet, "PATIENCE", 0.2)  # figures do not matter here
    assert main(["bench", "transcribe", AUDIO, "--reference", TEXT, *ALONE]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    found = json.loads(last)
    schema = json.loads((ROOT / "docs" / "bench.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(found, schema)
    (ours,) = found["contenders"]
    (result,) = ours["results"]
    assert ours["name"] == "kvcast"
    assert found["audio"] == {"name": "sense-and-sensibility.flac", "seconds": 24.73}
    assert result["word_error"] < 0.05
    assert 50e6 < result["peak_bytes"] < 1e9
    (parts,) = found["breakdown"]
    assert parts["seconds"] == pytest.approx(sum(p["seconds"] for p in parts["parts"].values()))
    assert parts["steps"] > 50
    (held,) = found["floor"]["beams"]
    assert held["encode"]["floor"] > 0
    assert held["step"]["calls"] == parts["steps"]


def test_peers_that_are_not_installed_are_listed_and_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(arena, "installed_versions", lambda packages: None)
    nobody = arena.Arena(threads=1, contestant="", arguments={}, report=lambda _: None)
    with nobody.seated([CONTENDERS[name](task(tmp_path)) for name in PEERS]) as (seats, absent):
        assert seats == []
        assert absent.keys() == set(PEERS)
        assert absent["faster-whisper"] == "not installed: pip install faster-whisper"


def test_peers_that_cannot_take_the_model_say_why(tmp_path: Path):
    (tmp_path / "bundle.json").touch()
    for name in PEERS:
        assert CONTENDERS[name](task(tmp_path)).unfit()


def test_versions_are_those_of_all_packages_or_none():
    assert installed_versions(("numpy", "no-such-package-anywhere")) is None
    assert installed_versions(("numpy",))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([AUDIO, "--runs", "0"], 2, "runs must be 1 or more, not 0"),
        ([AUDIO, "--threads", "0"], 2, "threads must be 1 or more, not 0"),
        ([AUDIO, "--beam", "1", "0"], 2, "beam must be 1 or more, not 0"),
        ([AUDIO, "--peers", "nobody"], 2, "nobody"),
        ([AUDIO, "--reference", "absent.txt"], 66, "absent.txt does not exist"),
        ([AUDIO, "--reference", AUDIO], 74, "cannot be read as UTF-8 text"),
        (["absent.flac"], 66, "absent.flac"),
        ([AUDIO, "--model", "no such model"], 66, "no such model"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["bench", "transcribe", *words]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(transcribe, "NEEDED", ("no_such_module",))
    assert main(["bench", "transcribe", AUDIO]) == 1
    assert "bench needs no_such_module: pip install 'kvcast[bench]'" in capsys.readouterr().err
