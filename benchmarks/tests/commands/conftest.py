"""`kvcast bench` run for real, short: models of few numbers, and the document that it writes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kit.models import own_cache
from kvcast.cli import main
from kvcast_bench import machine
from kvcast_bench.random_t5 import write_t5
from kvcast_bench.writing.huggingface import write_huggingface
from tiny_models import TINY_T5_CONFIG, tiny_checkpoint

SCHEMA = Path(__file__).parents[3] / "docs" / "bench.schema.json"


@pytest.fixture
def chat(tmp_path: Path) -> str:
    write_huggingface(tiny_checkpoint(), tmp_path / "chat")
    return str(tmp_path / "chat")


@pytest.fixture
def t5(tmp_path: Path) -> str:
    write_t5(TINY_T5_CONFIG, tmp_path / "t5")
    return str(tmp_path / "t5")


@pytest.fixture
def measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Any]:
    monkeypatch.setattr(machine, "PATIENCE", 0.2)  # figures do not matter here
    own_cache(monkeypatch, tmp_path / "cache")

    def run(*words: str) -> Any:
        assert main(["bench", *words]) == 0
        document = json.loads(capsys.readouterr().out.splitlines()[-1])
        jsonschema.validate(document, json.loads(SCHEMA.read_text(encoding="utf-8")))
        return document

    return run
