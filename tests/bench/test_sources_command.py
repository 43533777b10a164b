"""`kvcast bench generate` of a T5 for real, tiny and alone, and what it says to mistakes."""

import json
from pathlib import Path

import jsonschema
import pytest
from tiny_sources import TINY

from kvcast.bench import quiet
from kvcast.bench.sources.random_t5 import write_t5
from kvcast.cli import main

ROOT = Path(__file__).parents[2]
SMALL = ["--threads", "1", "--source", "6", "--target", "3", "--batch", "1", "2"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    write_t5(TINY, tmp_path / "model")
    return str(tmp_path / "model")


def test_kvcast_alone_is_measured(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(quiet, "PATIENCE", 0.2)  # figures do not matter here
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path / "cache"))
    options = ["--beam", "1", "2", "--lengths", "6", "9", "--runs", "1", "--quantize", "none"]
    assert main(["bench", "generate", "--model", model, *SMALL, *options, "--peers"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    schema = json.loads((ROOT / "docs" / "bench-sources.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(found, schema)
    (ours,) = found["contenders"]
    assert ours["name"] == "kvcast-fp32"
    assert [(one["rows"], one["beams"], one["source"]) for one in ours["results"]] == [
        (1, 1, 6),
        (1, 2, 6),
        (2, 1, 6),
        (2, 2, 6),
        (1, 1, 9),  # one source of 6 tokens, greedy, is there already
    ]
    # A row does not depend on its neighbours.
    tokens = [one["tokens"] for one in ours["results"]]
    assert tokens[:2] == tokens[2:4]
    for entry in found["breakdown"]:
        assert entry["seconds"] == pytest.approx(sum(p["seconds"] for p in entry["parts"].values()))
        assert entry["steps"] == 2
    (floor,) = found["floor"]
    assert len(floor["targets"]) == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "1"], "target must be 2 or more"),
        (["--beam", "1", "0"], "beam must be 1 or more, not 0"),
        (["--lengths", "-3"], "lengths must be 1 or more, not -3"),
        (["--beam", "65"], "65 beams are more than 64 tokens"),
        (["--source", "5000"], "5000 tokens are more than the 4096 of a source"),
        (["--lengths", "5000"], "5000 tokens are more than the 4096 of a source"),
        (["--target", "4096"], "4096 tokens are more than the 4095 of a target"),
        (["--prompt", "9"], "--prompt says nothing of T5s, whose own options are --source"),
        (["--peers", "llama.cpp-q8_0"], "llama.cpp-q8_0 takes no T5s: peers are ctranslate2-int8"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], message: str, model: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["bench", "generate", "--model", model, *SMALL, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_options_of_a_t5_are_refused_for_a_decoder_only_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    from tiny_text import tiny_checkpoint

    from kvcast.bench.text.huggingface import write_hugging_face

    write_hugging_face(tiny_checkpoint(), tmp_path / "model")
    words = ["bench", "generate", "--model", str(tmp_path / "model"), "--beam", "4"]
    assert main(words) == 2
    assert "--beam says nothing of decoder-only models" in capsys.readouterr().err


def test_random_weights_of_unknown_sizes_are_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "generate", "--model", "random:t5-huge"]) == 2
    assert "random weights are random:t5-small" in capsys.readouterr().err
