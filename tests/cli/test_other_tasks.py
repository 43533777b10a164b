"""A command refuses a model of another kind at once: nothing is exported or opened before."""

from pathlib import Path

import pytest

from kit.dimensions import LLAMA
from kit.models import bundle, own_cache
from kvcast.cli import main
from kvcast.loading import opening as loading

LISTENS = "turns recordings into text and takes no prompt: use kvcast transcribe, or another model"
WRITES = "generates text and does not listen: use kvcast generate, or another model"


@pytest.fixture(autouse=True)
def _nothing_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("too late to refuse")

    for name in ("export_folder", "check_in_child", "_open_bundle", "_eager", "model_of"):
        monkeypatch.setattr(loading, name, fail)
    own_cache(monkeypatch, tmp_path / "cache")


@pytest.mark.parametrize("options", [[], ["--runtime", "eager"]])
@pytest.mark.parametrize(
    ("command", "model", "reason"),
    [
        ("generate", "demo", LISTENS),
        ("transcribe", "demo-unilm", WRITES),
        ("detect", "demo-unilm", WRITES),
    ],
)
def test_a_checkpoint(command, model, reason, options, tmp_path, capsys):
    (tmp_path / "a.wav").touch()
    assert main([command, str(tmp_path / "a.wav"), "--model", model, "-q", *options]) == 2
    assert capsys.readouterr() == ("", f"kvcast: {model} {reason}\n")


def test_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.wav").touch()
    folder = bundle(LLAMA, runtime="native")
    assert main(["transcribe", str(tmp_path / "a.wav"), "--model", str(folder), "-q"]) == 2
    assert capsys.readouterr() == ("", f"kvcast: {folder} {WRITES}\n")
