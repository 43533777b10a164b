"""`kvcast bench generate` for real, with a tiny model and alone, and what it says to mistakes."""

import json
from pathlib import Path

import jsonschema
import pytest

from kit.models import own_cache
from kvcast.cli import main
from kvcast_bench import machine
from kvcast_bench.peers.kvcast import RING
from kvcast_bench.random_t5 import write_t5
from kvcast_bench.writing.huggingface import write_huggingface
from tiny_models import TINY_T5_CONFIG, tiny_checkpoint

ROOT = Path(__file__).parents[3]
NGRAM = "kvcast-int8-ngram"
SMALL = ["--threads", "1", "--prompt", "6", "--new", "2", "--batch", "1", "2", "--positions", "9"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    write_huggingface(tiny_checkpoint(), tmp_path / "model")
    return str(tmp_path / "model")


@pytest.mark.slow
def test_kvcast_alone_is_measured(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(machine, "PATIENCE", 0.2)  # figures do not matter here
    own_cache(monkeypatch, tmp_path / "cache")
    options = ["--window", "4", "--runs", "1", "--quantize", "int8", "--peers"]
    assert main(["bench", "generate", "--model", model, *SMALL, *options]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    schema = json.loads((ROOT / "docs" / "bench.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    assert [entry["name"] for entry in document["backends"]] == ["kvcast-int8", NGRAM, RING]
    ours, drafted, ring = (
        [row for row in document["rows"] if row["backend"] == name]
        for name in ("kvcast-int8", NGRAM, RING)
    )
    trials = [row["trial"] for row in ours]
    assert [(entry["measure"], entry["rows"], entry["prompt"]) for entry in trials] == [
        ("text", 1, 6),
        ("text", 2, 6),
        ("repeated", 1, 6),
        ("position", 1, 9),
    ]
    assert [row["trial"] for row in drafted] == [trials[0], trials[2]]
    # A row does not depend on its neighbours.
    assert ours[0]["facts"]["tokens"] == ours[1]["facts"]["tokens"]
    assert [row["trial"]["measure"] for row in ring] == ["position"]
    assert ring[0]["metrics"]["step"]["floor"] < ours[3]["metrics"]["step"]["floor"]
    assert [row["backend"] for row in document["breakdown"]] == ["kvcast-int8"] * 2
    for row in document["breakdown"]:
        whole, *parts = (entry["median"] for entry in row["metrics"].values())
        assert whole == pytest.approx(sum(parts))
        assert row["facts"]["steps"] == 2


@pytest.fixture
def t5(tmp_path: Path) -> str:
    write_t5(TINY_T5_CONFIG, tmp_path / "t5")
    return str(tmp_path / "t5")


SOURCES = ["--threads", "1", "--source", "6", "--target", "3", "--batch", "1", "2"]


@pytest.mark.slow
def test_kvcast_alone_is_measured_with_a_t5(
    t5: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(machine, "PATIENCE", 0.2)  # figures do not matter here
    own_cache(monkeypatch, tmp_path / "cache")
    options = ["--beam", "1", "2", "--lengths", "6", "9", "--runs", "1", "--quantize", "none"]
    assert main(["bench", "generate", "--model", t5, *SOURCES, *options, "--peers"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    schema = json.loads((ROOT / "docs" / "bench.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    assert [entry["name"] for entry in document["backends"]] == ["kvcast-fp32"]
    trials = [row["trial"] for row in document["rows"]]
    assert [(entry["rows"], entry["beams"], entry["source"]) for entry in trials] == [
        (1, 1, 6),
        (1, 2, 6),
        (2, 1, 6),
        (2, 2, 6),
        (1, 1, 9),  # one source of 6 tokens, greedy, is there already
    ]
    # A row does not depend on its neighbours.
    tokens = [row["facts"]["tokens"] for row in document["rows"]]
    assert tokens[:2] == tokens[2:4]
    for row in document["breakdown"]:
        whole, *parts = (entry["median"] for entry in row["metrics"].values())
        assert whole == pytest.approx(sum(parts))
        assert row["facts"]["steps"] == 2
        assert row["metrics"]["encode"]["floor"] > 0
    assert len(document["breakdown"]) == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "1"], "target must be 2 or more"),
        (["--beam", "1", "0"], "argument --beam: must be 1 or more, not 0"),
        (["--lengths", "-3"], "argument --lengths: must be 1 or more, not -3"),
        (["--beam", "65"], "65 beams are more than 64 tokens"),
        (["--source", "5000"], "5000 tokens are more than the 4096 of a source"),
        (["--lengths", "5000"], "5000 tokens are more than the 4096 of a source"),
        (["--target", "4096"], "4096 tokens are more than the 4095 of a target"),
        (["--prompt", "9"], "--prompt says nothing of T5s, whose own options are --source"),
        (["--peers", "llama.cpp-q8_0"], "llama.cpp-q8_0 takes no T5s: peers are "),
    ],
)
def test_a_mistake_about_a_t5_is_one_line(
    words: list[str], message: str, t5: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["bench", "generate", "--model", t5, *SOURCES, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_options_of_a_t5_are_refused_for_a_decoder_only_model(
    model: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["bench", "generate", "--model", model, "--beam", "4"]) == 2
    assert "--beam says nothing of decoder-only models" in capsys.readouterr().err


def test_random_weights_of_unknown_sizes_are_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "generate", "--model", "random:t5-huge"]) == 2
    assert "random weights are random:t5-small" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--runs", "0"], 2, "argument --runs: must be 1 or more, not 0"),
        (["--batch", "1", "0"], 2, "argument --batch: must be 1 or more, not 0"),
        (["--positions", "-3"], 2, "argument --positions: must be 1 or more, not -3"),
        (["--new", "0"], 2, "argument --new: must be 1 or more, not 0"),
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
