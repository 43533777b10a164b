"""Options of a cluster are refused in one line, before anything is loaded."""

import builtins
import os
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvcast.cli import main
from kvcast.cluster.connection import check_shared, connected, not_started
from kvcast.cluster.params import LOCAL, replica_range
from kvcast.errors import UsageError
from kvcast.server.params import ServeParams


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.wav").write_text("sound")
    (tmp_path / "p.txt").write_text("a\n")
    return tmp_path


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
        (["--ray", "http://x:1"], "--ray takes local, auto or HOST:PORT, not http://x:1"),
        (["--ray", "foo"], "--ray takes local, auto or HOST:PORT, not foo"),
        (["--ray", ":6379"], "--ray takes local, auto or HOST:PORT, not :6379"),
    ],
)
def test_options_that_do_not_go_together(folder, error_line, words: list[str], told: str):
    assert main(transcribe(folder, *words)) == 2
    assert told in error_line()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("transcribe in/a.wav --model demo --ray local", "--ray is for a folder"),
        ("transcribe - --live --model demo --ray local", "--live runs on one machine: drop --ray"),
        ("generate a --ray local", "--ray is for many prompts: give them with --prompts"),
        ("serve demo --replicas 2", "--replicas is for a cluster: add --ray"),
        *(
            (f"serve demo --ray local --replicas={range_}", "must be a number, as 2, or a range")
            for range_ in ("0", "3-2", "two", "1-", "-1", "1-2-3")
        ),
    ],
)
def test_commands_that_need_no_cluster_or_another(folder, error_line, monkeypatch, words, told):
    monkeypatch.chdir(folder)
    assert main(words.split()) == 2
    assert told in error_line()


def test_where_there_is_no_cluster(folder, error_line):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        assert main(transcribe(folder, "--ray", address)) == 1
    assert f"no Ray cluster at {address}: " in error_line()


def test_a_machine_of_no_cluster(folder, error_line, monkeypatch):
    ray = pytest.importorskip("ray")

    def init(**_) -> None:
        raise ConnectionError("Could not find any running Ray instance: set the `--address` flag")

    monkeypatch.setattr(ray, "init", init)
    assert main(transcribe(folder, "--ray", "auto")) == 1
    err = error_line()
    assert "this machine belongs to no Ray cluster: give the HOST:PORT" in err
    assert "--address" not in err


def test_without_ray_the_extra_is_named(folder, error_line, monkeypatch):
    imported = builtins.__import__

    def without(name: str, *given, **keywords):
        if name == "ray":
            raise ImportError(name)
        return imported(name, *given, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["generate", "-m", "m", "--prompts", str(folder / "p.txt"), "--ray", "local"]) == 1
    assert "--ray needs Ray: pip install 'kvcast[ray]'" in error_line()


@pytest.mark.parametrize(("words", "least", "most"), [("2", 2, 2), ("1-8", 1, 8)])
def test_replicas(words: str, least: int, most: int):
    assert replica_range(words) == (least, most)


def test_a_port_that_is_taken(error_line):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "demo", "--ray", "local", "--port", str(port)]) == 74
    err = error_line()
    assert f"cannot listen at 127.0.0.1:{port}: " in err
    assert "choose another --host or --port" in err


SERVE = SimpleNamespace(host="0.0.0.0", port=8000)


@pytest.mark.parametrize(
    ("http", "routes", "told"),
    [
        (SERVE, {}, "listens at 0.0.0.0:8000: give --host 0.0.0.0 --port 8000"),
        (SimpleNamespace(host="1.1.1.1", port=9000), {}, "give --host 1.1.1.1 --port 9000"),
        (SimpleNamespace(host=None, port=8000), {}, "listens nowhere"),
        (SimpleNamespace(host="1.1.1.1", port=8000), {"a": "/a", "b": "/"}, "application, b, at /"),
    ],
)
def test_where_ray_serve_runs_for_others(http: Any, routes: dict[str, str], told: str):
    with pytest.raises(UsageError, match=re.escape(told)):
        check_shared(http, routes, ServeParams(host="1.1.1.1"))
    check_shared(SERVE, {"a": "/a"}, ServeParams(host=SERVE.host))


def test_a_failing_ray_serve_is_explained():
    params = ServeParams(host="1.1.1.1", port=9)
    lines = "ray::ProxyActor\nTraceback\nRuntimeError: "
    error = not_started(RuntimeError(f"{lines}Failed to bind to address '1.1.1.1:9'."), params)
    assert error.exit_code == 74
    assert str(error).startswith("cannot listen at 1.1.1.1:9 of the cluster's machines;")
    error = not_started(TimeoutError("HTTP proxies\nnot available"), params)
    assert str(error) == "Ray Serve does not start: HTTP proxies not available"


def test_ray_s_processes_are_of_other_groups(monkeypatch):
    ray = pytest.importorskip("ray")
    from ray._private import services

    groups: list[int] = []

    def init(**_) -> None:
        with services.ConsolePopen(["sleep", "60"]) as started:
            groups.append(os.getpgid(started.pid))
            started.kill()

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr("kvcast.cluster.connection._silence", lambda: None)
    kept = services.ConsolePopen
    with connected(LOCAL):
        assert services.ConsolePopen is kept
    [group] = groups
    assert group != os.getpgrp()
