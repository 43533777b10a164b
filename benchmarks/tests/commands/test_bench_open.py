"""`kvcast bench open` for real, alone, and what it says to mistakes."""

import json
from pathlib import Path

import jsonschema
import pytest

from kvcast.cli import main
from kvcast.errors import KvcastError
from kvcast_bench import machine
from kvcast_bench.models import BenchModel
from kvcast_bench.peers.opening import Opener

ROOT = Path(__file__).parents[3]
AUDIO = str(ROOT / "examples" / "sense-and-sensibility.flac")


@pytest.mark.slow
def test_a_recording_is_answered_by_new_processes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(machine, "PATIENCE", 0.2)  # figures do not matter here
    asked = ["--model", "demo", "--audio", AUDIO, "--runs", "1", "--peers", "llama.cpp"]
    assert main(["bench", "open", *asked]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    schema = json.loads((ROOT / "docs" / "bench.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    (row,) = document["rows"]
    assert row["backend"] == "kvcast-own"
    assert [absent["name"] for absent in document["absent"]] == ["llama.cpp"]
    assert 0 < row["metrics"]["ready"]["median"] < row["metrics"]["first"]["median"]
    assert "Dashwood" in row["facts"]["text"]
    # A process of its own: this one holds torch and more.
    assert 50e6 < row["facts"]["own_megabytes"] * 1e6 < row["peak_bytes"] < 400e6


def test_the_reason_of_a_process_that_fails_is_one_line(tmp_path: Path):
    model = BenchModel(folder=str(tmp_path / "absent.gguf"), threads=1)
    with pytest.raises(KvcastError, match=r"absent\.gguf") as raised:
        Opener(model=model, name="kvcast-own").answer("Once", None)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--model", "demo"], 2, "a Whisper needs a recording: --audio FILE"),
        (["--model", "demo-chat", "--audio", AUDIO], 2, "drop --audio"),
        (["--model", "no such model"], 66, "no such model"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["bench", "open", *words]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
