"""`kvcast bench serve` for real, with a tiny model and alone, and what it says to mistakes."""

import json
from pathlib import Path

import jsonschema
import pytest

from kit.models import own_cache
from kit.tiny_gguf import tiny_llama
from kvcast.cli import main
from kvcast_bench import commands, machine

ROOT = Path(__file__).parents[3]
SMALL = ["--threads", "1", "--prompt", "4", "--shared", "2", "--new", "3", "--runs", "1"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    # Its vocabulary has letters alone, so words are several tokens.
    return str(tiny_llama(tmp_path / "tiny.gguf"))


@pytest.mark.slow
def test_kvcast_alone_is_measured(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(machine, "PATIENCE", 0.2)  # figures do not matter here
    own_cache(monkeypatch, tmp_path / "cache")
    options = ["--clients", "1", "3", "--quantize", "none", "--baseline", "engine", "--peers"]
    assert main(["bench", "serve", "--model", model, *SMALL, *options]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    schema = json.loads((ROOT / "docs" / "bench.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    assert [backend["name"] for backend in document["backends"]] == [
        "kvcast-fp32",
        "kvcast-fp32-engine",
    ]
    served = [row for row in document["rows"] if row["backend"] == "kvcast-fp32"]
    (engine,) = (row for row in document["rows"] if row["backend"] != "kvcast-fp32")
    assert [row["trial"]["clients"] for row in served] == [1, 3]
    alone, many = served
    # In fp32 the server writes what the engine writes.
    assert alone["facts"]["text"] == engine["facts"]["text"]
    assert alone["facts"]["prompt_tokens"] == engine["facts"]["prompt_tokens"] > 4
    assert alone["metrics"]["token"]["times"]["engine"] > 0
    assert many["metrics"]["token"]["times"]["engine"] is None
    for row in served:
        assert row["facts"]["first_p50"] <= row["facts"]["first_p99"]
        assert row["peak_bytes"] > 1e7
    assert document["rates"] == []


@pytest.mark.slow
def test_clips_of_a_recording_are_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(machine, "PATIENCE", 0.2)
    recording = ROOT / "examples" / "sense-and-sensibility.flac"
    words = ["--reference", str(recording.with_suffix(".txt")), "--model", "demo", "--threads", "1"]
    words += ["--clients", "1", "3", "--runs", "1", "--quantize", "int8", "--peers"]
    assert main(["bench", "serve", str(recording), *words]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    schema = json.loads((ROOT / "docs" / "bench.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    assert document["settings"]["clips"] == 3
    alone, all_clips = document["rows"]
    assert [row["trial"]["clients"] for row in document["rows"]] == [1, 3]
    assert "dashwood" in alone["facts"]["text"].lower()
    assert all_clips["facts"]["word_error"] < 0.1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--clients", "0"], "argument --clients: must be 1 or more, not 0"),
        (["--shared", "4"], "shared must be below the prompt's 4, not 4"),
        (["--prompt", "62"], "62 + 3 tokens are more than the 64 that the model takes"),
        (["--peers", "nobody"], "nobody"),
        (["--peers", "faster-whisper"], "faster-whisper takes no decoder-only models"),
        (["--clip", "3"], "--clip says nothing of decoder-only models"),
        (["--baseline", "engine", "--clients", "4"], "--baseline needs"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], message: str, model: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["bench", "serve", "--model", model, *SMALL, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_bundle_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "bundle.json").touch()
    assert main(["bench", "serve", "--model", str(tmp_path)]) == 1
    assert "cannot be measured: bench serve needs the checkpoint" in capsys.readouterr().err


def test_a_whisper_needs_a_recording(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "serve", "--model", "demo"]) == 2
    assert "a Whisper needs a recording: kvcast bench serve AUDIO" in capsys.readouterr().err


def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(commands, "find_spec", lambda _: None)
    assert main(["bench", "serve"]) == 1
    assert "bench serve needs aiohttp and fastapi and uvicorn: " in capsys.readouterr().err
