"""Who does what when, with players that only follow a script; who is quiet; what others used."""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import psutil
import pytest

from bench_fakes import FINDS_THIS, Far
from kvcast.bench import turns
from kvcast.bench.turns import IdleGate, cpu_seconds, take_turns
from kvcast.errors import KvcastError
from kvcast.machine.remote import Remote


class Stage:
    """Writes down all that happens, and is the gate."""

    def __init__(self, settles: bool = True) -> None:
        self.events: list[str] = []
        self.settles = settles

    def settle(self) -> bool:
        self.events.append("settle")
        return self.settles

    def watch(self, turn: Callable[[], Mapping[str, Any]]) -> tuple[Mapping[str, Any], float]:
        return turn(), 0.25


class Scripted:
    """Takes the given seconds in turn; None is a failure."""

    def __init__(self, stage: Stage, name: str, *seconds: float | None) -> None:
        self.stage, self.name, self.seconds = stage, name, list(seconds)

    def __call__(self) -> Mapping[str, Any]:
        self.stage.events.append(self.name)
        seconds = self.seconds.pop(0)
        if seconds is None:
            raise KvcastError("out of breath")
        return {"seconds": seconds, "text": f"{seconds}", "peak_bytes": round(10 * seconds)}


def test_everybody_takes_turns_and_all_is_quiet_before_each():
    stage = Stage()
    players = {name: Scripted(stage, name, 1, 2, 3) for name in "abc"}
    take_turns(players, stage, runs=2, what="beam 5")
    assert stage.events == ["settle", "a", "settle", "b", "settle", "c"] * 3


def test_the_warm_up_does_not_count():
    stage = Stage()
    result = take_turns({"a": Scripted(stage, "a", 100, 3, 1, 2)}, stage, runs=3, what="beam 5")[
        "a"
    ]
    assert result.series("seconds") == [3, 1, 2]
    assert result.others == [0.25] * 3
    assert (result.last["text"], result.last["peak_bytes"]) == ("2", 20)


def test_who_fails_has_no_more_turns_and_the_others_go_on():
    stage = Stage()
    players = {"a": Scripted(stage, "a", 1, None), "b": Scripted(stage, "b", 1, 1, 1)}
    results = take_turns(players, stage, runs=2, what="beam 5")
    assert [event for event in stage.events if event != "settle"] == ["a", "b", "a", "b", "b"]
    assert results["a"].failure == "out of breath"
    assert not results["a"].stands
    assert results["b"].stands
    assert results["b"].series("seconds") == [1, 1]


def test_turns_that_began_before_all_was_quiet_are_counted():
    stage = Stage(settles=False)
    assert (
        take_turns({"a": Scripted(stage, "a", 1, 1, 1)}, stage, runs=2, what="beam 5")[
            "a"
        ].unsettled
        == 2
    )


def test_quiet_is_when_the_processes_use_no_processor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(turns, "IDLE", 1.0)  # whatever else runs on the machine of the tests
    with Remote(Far(0), FINDS_THIS) as remote:
        remote.call("spin", seconds=0.3)
        assert IdleGate([remote.pid]).settle()
        rest = cpu_seconds(remote.pid)
        assert rest >= 0.2
        assert IdleGate([remote.pid]).settle()
        assert cpu_seconds(remote.pid) == rest


def test_a_machine_that_others_use_is_not_quiet(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(turns, "IDLE", -1.0)
    monkeypatch.setattr(turns, "PATIENCE", 0.3)
    assert not IdleGate([]).settle()


def test_a_watched_turn_gives_its_answer_and_the_share_of_others():
    answer, others = IdleGate([]).watch(lambda: {"seconds": 1})
    assert answer == {"seconds": 1}
    assert 0 <= others <= 1


def test_what_others_used_is_all_but_our_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)

    def others(percent: float, own: float) -> float:
        """Of a turn of 10 seconds on two cores."""
        monkeypatch.setattr(psutil, "cpu_percent", lambda: percent)
        monkeypatch.setattr(turns, "cpu_seconds", partial(next, iter([100.0, 100.0 + own])))
        monkeypatch.setattr(time, "monotonic", partial(next, iter([3.0, 13.0])))
        return IdleGate([]).watch(lambda: {})[1]

    assert others(35.0, own=4.0) == pytest.approx(3 / 20)
    # Counters of hundredths may show less than our own.
    assert others(35.0, own=7.01) == 0
    assert others(0.0, own=0.0) == 0
