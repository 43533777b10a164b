"""Backends in their processes: who takes part, who does not and why, turns and peaks."""

from dataclasses import dataclass
from typing import Any

import pytest

from bench_fakes import FINDS_THIS, Scripted
from bench_models import TINY
from kvcast.bench import idle
from kvcast.bench.remote import Local, Remote
from kvcast.bench.runner import Runner
from kvcast.bench.workloads.causal import Causal
from kvcast.errors import KvcastError

CAUSAL = Causal(dimensions=TINY, prompt=5, new=2, batch=[1, 2])


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "PATIENCE", 0.2)  # figures do not matter here


def runner(host: type[Remote] = Local, runs: int = 1) -> Runner:
    return Runner(workload=CAUSAL, threads=1, runs=runs, host=host)


class Far(Remote):
    """A process that finds the tests' modules."""

    def __init__(self, served: object, environment: dict[str, str]) -> None:
        super().__init__(served, {**environment, **FINDS_THIS})


def test_everybody_has_a_process_and_answers_in_turn():
    backends = [Scripted(name="a"), Scripted(name="b", missing=1)]
    with runner(Far).loaded(backends) as (loaded, absent):
        assert absent == {}
        assert len({pid for one in loaded for pid in one.pids}) == 2
        assert all(one.load >= 0 and one.imports > 0 for one in loaded)
        assert loaded[0].versions.keys() == {"numpy"}
        results = runner(Far).turns(loaded)
    assert [trial["rows"] for trial, _ in results] == [1, 2]
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
        assert [one.name for one in loaded] == ["here"]
    assert absent == {
        "missing": "not installed: pip install no-such-package",
        "unfit": "needs another model",
        "broken": "failed: ValueError: out of memory",
    }


def test_only_those_who_want_to_take_part_in_a_trial():
    @dataclass(kw_only=True)
    class Choosy(Scripted):
        def takes(self, trial: Any) -> bool:
            return trial["rows"] == 2

    with runner().loaded([Scripted(name="all"), Choosy(name="choosy")]) as (loaded, _):
        results = runner().turns(loaded)
    assert [list(by_name) for _, by_name in results] == [["all"], ["all", "choosy"]]


def test_a_breakdown_has_medians_of_the_runs_that_count():
    class Timed(Scripted):
        def timed(self, clock: Any) -> Any:
            clock.seconds["prefill"] = clock.seconds["step"] = 0.001
            return self

    (found, _) = runner(runs=3).breakdown(Timed(), CAUSAL.trials())
    assert found["parts"].keys() == {"prefill", "step", "loop"}
    assert found["parts"]["step"] == 0.001
    assert found["whole"] == pytest.approx(sum(found["parts"].values()), abs=1e-3)
    assert found["others"] >= 0


def test_a_breakdown_that_fails_is_an_error():
    with pytest.raises(KvcastError, match=r"no breakdown of .*has no attribute 'timed'"):
        runner().breakdown(Scripted(), CAUSAL.trials())
