"""What the options of a cluster refuse, in one line, before anything is loaded."""

import builtins
import socket
from pathlib import Path

import pytest

from kvcast.cli import main
from kvcast.cluster.params import replica_range


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.wav").write_text("sound")
    (tmp_path / "p.txt").write_text("a\n")
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main([*words])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return code, err


def transcribe(folder: Path, *words: str) -> list[str]:
    given = [str(folder / "in"), "--model", "demo", "--output-dir", str(folder / "out")]
    return ["transcribe", *given, *words]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--actors", "2"], "--actors is for a cluster: add --ray"),
        (["--ray", "local", "--workers", "2"], "--workers is for one machine"),
        (["--ray", "ray://host:1"], "--ray takes local, auto or HOST:PORT"),
        (["--ray", "host:name"], "--ray takes local, auto or HOST:PORT"),
    ],
)
def test_options_that_do_not_go_together(folder, capsys, words: list[str], told: str):
    code, err = refused(capsys, *transcribe(folder, *words))
    assert (code, told in err) == (2, True)


def test_a_cluster_is_for_folders_and_files_of_prompts(folder, capsys):
    file = str(folder / "in/a.wav")
    code, err = refused(capsys, "transcribe", file, "--model", "demo", "--ray", "local")
    assert (code, "--ray is for a folder" in err) == (2, True)
    code, err = refused(capsys, "transcribe", "-", "--live", "--model", "demo", "--ray", "local")
    assert (code, "--live is heard on one machine: drop --ray" in err) == (2, True)
    code, err = refused(capsys, "generate", "a", "--ray", "local")
    assert (code, "--ray is for many prompts: give them with --prompts" in err) == (2, True)


def test_where_there_is_no_cluster(folder, capsys):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        code, err = refused(capsys, *transcribe(folder, "--ray", address))
    assert code == 1
    assert f"no Ray cluster at {address}: " in err


def test_without_ray_the_extra_is_named(folder, capsys, monkeypatch):
    imported = builtins.__import__

    def without(name: str, *given, **keywords):
        if name == "ray":
            raise ImportError(name)
        return imported(name, *given, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    words = ["generate", "--prompts", str(folder / "p.txt"), "--ray", "local"]
    code, err = refused(capsys, *words)
    assert (code, "--ray needs Ray: pip install 'kvcast[ray]'" in err) == (1, True)


@pytest.mark.parametrize(("words", "least", "most"), [("2", 2, 2), ("1-8", 1, 8)])
def test_replicas(words: str, least: int, most: int):
    assert replica_range(words) == (least, most)


@pytest.mark.parametrize("words", ["0", "3-2", "two", "1-", "-1", "1-2-3"])
def test_replicas_that_are_none(capsys, words: str):
    code, err = refused(capsys, "serve", "demo", "--ray", "local", f"--replicas={words}")
    assert (code, "must be a number, as 2, or a range, as 1-8" in err) == (2, True)


def test_replicas_are_of_a_cluster(capsys):
    code, err = refused(capsys, "serve", "demo", "--replicas", "2")
    assert (code, "--replicas are of a cluster: add --ray" in err) == (2, True)
