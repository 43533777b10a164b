"""`kvcast bench transcribe` for real, short and alone, and what it says to mistakes."""

import json
from pathlib import Path

import jsonschema
import pytest

from kvcast.cli import main
from kvcast_bench import machine

ROOT = Path(__file__).parents[3]
AUDIO = str(ROOT / "examples" / "sense-and-sensibility.flac")
TEXT = str(ROOT / "examples" / "sense-and-sensibility.txt")
ALONE = ["--model", "demo", "--threads", "1", "--beam", "1", "--runs", "1", "--peers"]


@pytest.mark.slow
def test_kvcast_alone_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(machine, "PATIENCE", 0.2)  # figures do not matter here
    assert main(["bench", "transcribe", AUDIO, "--reference", TEXT, *ALONE]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    document = json.loads(last)
    schema = json.loads((ROOT / "docs" / "bench.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    (ours,) = document["backends"]
    (row,) = document["rows"]
    assert ours["name"] == row["backend"] == "kvcast"
    assert document["settings"]["audio"] == {
        "name": "sense-and-sensibility.flac",
        "recordings": 1,
        "seconds": 24.73,
    }
    assert row["facts"]["word_error"] < 0.05
    assert 50e6 < row["peak_bytes"] < 1e9
    (broken,) = document["breakdown"]
    whole, *parts = (metric["median"] for metric in broken["metrics"].values())
    assert whole == pytest.approx(sum(parts))
    assert broken["facts"]["steps"] > 50
    assert broken["metrics"]["encode"]["floor"] > 0
    assert broken["metrics"]["step"]["calls"] == broken["facts"]["steps"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([AUDIO, "--runs", "0"], 2, "argument --runs: must be 1 or more, not 0"),
        ([AUDIO, "--threads", "0"], 2, "argument --threads: must be 1 or more, not 0"),
        ([AUDIO, "--beam", "1", "0"], 2, "argument --beam: must be 1 or more, not 0"),
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
