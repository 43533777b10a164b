"""`kvcast bench generate` for real, with a tiny model and alone, and what it says to mistakes."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from tiny_text import TINY, tiny_checkpoint

from kvcast.bench import generate, quiet
from kvcast.bench.text.huggingface import write_hugging_face
from kvcast.bench.text.peers import CONTENDERS, PEERS, RING
from kvcast.bench.text.peers.base import Task
from kvcast.cli import main

ROOT = Path(__file__).parents[2]
SMALL = ["--threads", "1", "--prompt", "6", "--new", "2", "--batch", "1", "2", "--positions", "9"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    write_hugging_face(tiny_checkpoint(), tmp_path / "model")
    return str(tmp_path / "model")


def task(folder: str) -> Task:
    return Task(model=folder, folder=folder, threads=1, vocab_size=TINY.vocab_size, window=4)


def test_kvcast_alone_is_measured(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(quiet, "PATIENCE", 0.2)  # figures do not matter here
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path / "cache"))
    options = ["--window", "4", "--runs", "1", "--quantize", "int8", "--peers"]
    assert main(["bench", "generate", "--model", model, *SMALL, *options]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    schema = json.loads((ROOT / "docs" / "bench-generate.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(found, schema)
    ours, ring = found["contenders"]
    assert (ours["name"], ring["name"]) == ("kvcast-int8", RING)
    assert [(one["measure"], one["rows"], one["prompt"]) for one in ours["results"]] == [
        ("text", 1, 6),
        ("text", 2, 6),
        ("position", 1, 9),
    ]
    # A row does not depend on its neighbours.
    assert ours["results"][0]["tokens"] == ours["results"][1]["tokens"]
    assert [one["measure"] for one in ring["results"]] == ["position"]
    for entry in found["breakdown"]:
        assert entry["seconds"] == pytest.approx(sum(p["seconds"] for p in entry["parts"].values()))
        assert entry["steps"] == 2
    assert [floor["name"] for floor in found["floor"]] == ["kvcast-int8", RING]


def test_peers_that_cannot_take_the_model_say_why(tmp_path: Path):
    (tmp_path / "bundle.json").touch()
    for name in PEERS:
        reason = CONTENDERS[name](task(str(tmp_path))).unfit()
        assert reason == "needs the checkpoint, and the model is a kvcast bundle"


def test_windows_are_for_everybody_but_llama_cpp(tmp_path: Path):
    windowed = replace(TINY, architecture="mistral", windows=(7, 7))
    write_hugging_face(tiny_checkpoint(windowed), tmp_path / "model")
    unfit = {name: CONTENDERS[name](task(str(tmp_path / "model"))).unfit() for name in PEERS}
    assert {name for name, reason in unfit.items() if reason} == {
        "llama.cpp-q8_0",
        "llama.cpp-q4_0",
    }


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--runs", "0"], 2, "runs must be 1 or more, not 0"),
        (["--batch", "1", "0"], 2, "batch must be 1 or more, not 0"),
        (["--positions", "-3"], 2, "positions must be 1 or more, not -3"),
        (["--new", "0"], 2, "new must be 1 or more, not 0"),
        (["--positions", "63"], 2, "63 + 17 tokens are more than the 64 that the model takes"),
        (["--prompt", "62", "--new", "2"], 2, "62 + 3 tokens are more than the 64"),
        (["--peers", "nobody"], 2, "nobody"),
        (["--quantize", "int3"], 2, "int3"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], code: int, message: str, model: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["bench", "generate", "--model", model, *SMALL, *words]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_model_that_only_transcribes_is_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "generate", "--model", "demo"]) == 1
    assert "demo cannot be measured: bench generate takes" in capsys.readouterr().err


def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(generate, "NEEDED", ("no_such_module",))
    assert main(["bench", "generate"]) == 1
    assert "bench needs no_such_module: pip install 'kvcast[bench]'" in capsys.readouterr().err
