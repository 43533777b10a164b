"""Backends in their processes: who takes part, who does not and why, turns and peaks."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit import far
from kit.far import FINDS_THIS
from kvcast.machine.child import Remote, RemoteError
from kvcast_bench import machine
from kvcast_bench.runner import Local, Runner
from kvcast_bench.workloads.causal import Causal
from scripted_backend import Lean, Scripted
from tiny_models import TINY

CAUSAL = Causal(dimensions=TINY, prompt=5, new=2, batch=[1, 2])


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PATIENCE", 0.2)  # figures do not matter here


def runner(host: type[Remote] = Local, runs: int = 1) -> Runner:
    return Runner(workload=CAUSAL, threads=1, runs=runs, host=host)


class Far(Remote):
    def __init__(
        self, served: object, environment: dict[str, str], python: str | None = None
    ) -> None:
        super().__init__(served, {**environment, **FINDS_THIS}, python)


def test_everybody_has_a_process_and_answers_in_turn():
    backends = [Lean(name="a"), Lean(name="b", missing=1)]
    with runner(Far).loaded(backends) as (loaded, absent):
        assert absent == {}
        assert len({player.remote.pid for player in loaded}) == 2
        assert all(player.facts["load_seconds"] >= 0 for player in loaded)
        assert all(player.facts["import_seconds"] > 0 for player in loaded)
        assert loaded[0].facts["versions"].keys() == {"numpy"}
        results = runner(Far).turns(loaded, CAUSAL.trials())
    assert [trial["rows"] for trial, _ in results] == [1, 2, 1]  # the last repeats itself
    first = results[0][1]
    assert first["a"].stands
    assert first["a"].last["peak_bytes"] > 1e7
    assert first["b"].failure == "KvcastError: gave [2] tokens where 1 x 3 were asked"


def test_who_cannot_take_part_says_why():
    backends = [
        Scripted(name="missing", packages=("no-such-package",)),
        Scripted(name="unfit", reason="needs another model"),
        Scripted(name="broken", broken="out of\nmemory"),
        Scripted(name="here"),
    ]
    with runner().loaded(backends) as (loaded, absent):
        assert [player.backend.name for player in loaded] == ["here"]
    assert absent == {
        "missing": "not installed: pip install no-such-package",
        "unfit": "needs another model",
        "broken": "failed: ValueError: out of memory",
    }


class Elsewhere(Scripted):
    environment = "KVCAST_TEST_ELSEWHERE"

    def variables(self) -> dict[str, str]:
        return {"KVCAST_TEST_GIVEN": "given"}

    def load(self) -> None:
        raise ValueError(f"{os.environ['KVCAST_TEST_GIVEN']}, {os.environ['KVCAST_TEST_HERE']}")


def test_who_lives_elsewhere_is_run_by_the_python_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def reason(backend: Scripted, host: type[Remote] = Local) -> str:
        with runner(host).loaded([backend]) as (_, absent):
            return absent[backend.name]

    homeless = "needs an environment of its own, and KVCAST_TEST_ELSEWHERE names no Python: "
    monkeypatch.delenv(Elsewhere.environment, raising=False)
    assert reason(Elsewhere()).startswith(homeless)
    python = tmp_path / "python"
    monkeypatch.setenv(Elsewhere.environment, str(python))
    assert reason(Elsewhere()).startswith(homeless)
    python.write_text(f'#!/bin/sh\nKVCAST_TEST_HERE=there exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    lacking = reason(Elsewhere(packages=("no-such-package",)))
    assert lacking == f"not installed: {python} -m pip install no-such-package"
    assert reason(Elsewhere(), Far) == "failed: ValueError: given, there"


def test_only_those_who_want_to_take_part_in_a_trial():
    @dataclass(kw_only=True)
    class Choosy(Scripted):
        def takes(self, trial: Any) -> bool:
            return trial["rows"] == 2

    with runner().loaded([Scripted(name="all"), Choosy(name="choosy")]) as (loaded, _):
        results = runner().turns(loaded, CAUSAL.trials())
    assert [list(by_name) for _, by_name in results] == [["all"], ["all", "choosy"], ["all"]]


class Engine:
    """A model whose runtime's steps and prefills take no time, and are called by nobody."""

    runtime = tokenizer = dimensions = None

    def __init__(self, *parts: Any) -> None:
        pass


class Timed(Scripted):
    def load(self) -> None:
        self.engine = Engine()

    def generate(self, prompts: Any, new: int, ticks: Any) -> list[list[int]]:
        assert isinstance(self.engine, Engine)
        return super().generate(prompts, new, ticks)


def test_a_breakdown_is_a_turn_with_a_clock_around_the_runtime():
    with runner(runs=3).loaded([Timed(name="ours")]) as (loaded, _):
        results = runner(runs=3).turns(loaded, CAUSAL.trials(), "break_down")
    for _, by_name in results:
        result = by_name["ours"]
        assert len(result.answers) == 3
        assert result.last.keys() == {"whole", "prefill", "step", "loop", "calls"}
        assert result.last["whole"] == result.last["loop"] > 0


def test_a_breakdown_that_fails_says_why():
    with runner().loaded([Scripted(name="another")]) as (loaded, _):
        (_, by_name), *_ = runner().turns(loaded, CAUSAL.trials(), "break_down")
    assert "has no attribute 'runtime'" in str(by_name["another"].failure)


def test_an_object_in_this_process_fails_as_in_another():
    with Local(far.Far(1), {}) as local:
        assert local.call("add", number=2) == 3
        with pytest.raises(RemoteError, match=r"^TypeError: .*number"):
            local.call("add")
