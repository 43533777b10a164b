"""Who is quiet, and what others used."""

import os
import time
from functools import partial

import psutil
import pytest

from kit.far import FINDS_THIS, Far
from kvcast.machine.child import Remote
from kvcast_bench import machine
from kvcast_bench.machine import IdleGate, cpu_seconds


def test_quiet_is_when_the_processes_use_no_processor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "IDLE", 1.0)  # whatever else runs on the machine of the tests
    with Remote(Far(0), FINDS_THIS) as remote:
        remote.call("spin", seconds=0.3)
        assert IdleGate([remote.pid]).settle()
        rest = cpu_seconds(remote.pid)
        assert rest >= 0.2
        assert IdleGate([remote.pid]).settle()
        assert cpu_seconds(remote.pid) == rest


def test_a_machine_that_others_use_is_not_quiet(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "IDLE", -1.0)
    monkeypatch.setattr(machine, "PATIENCE", 0.3)
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
        monkeypatch.setattr(machine, "cpu_seconds", partial(next, iter([100.0, 100.0 + own])))
        monkeypatch.setattr(time, "monotonic", partial(next, iter([3.0, 13.0])))
        return IdleGate([]).watch(lambda: {})[1]

    assert others(35.0, own=4.0) == pytest.approx(3 / 20)
    # Counters of hundredths may show less than our own.
    assert others(35.0, own=7.01) == 0
    assert others(0.0, own=0.0) == 0
