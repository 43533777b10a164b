from collections.abc import Callable
from pathlib import Path

import pytest

import kvcast
from cli.cli_fakes import FakeModel


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    """The model that every `kvcast.load` gives in this test; it remembers how it was loaded."""
    scripted = FakeModel()
    monkeypatch.setattr(
        kvcast,
        "load",
        lambda **keywords: scripted.calls.append(("load", keywords)) or scripted,
        raising=False,
    )
    return scripted


@pytest.fixture
def recording(tmp_path: Path) -> Callable[[str], str]:
    """Make an (empty) input file of that name and return its path."""

    def make(name: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return str(path)

    return make
