"""The idle gate: who is quiet, and what others used."""

import pytest

from bench_fakes import FINDS_THIS, Far
from kvcast.bench import idle
from kvcast.bench.idle import IdleGate, cpu_seconds, machine_seconds, others_share
from kvcast.machine.remote import Remote


def test_quiet_is_when_the_processes_use_no_processor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(idle, "IDLE", 1.0)  # whatever else runs on the machine of the tests
    with Remote(Far(0), FINDS_THIS) as remote:
        remote.call("spin", seconds=0.3)
        assert IdleGate([remote.pid]).settle()
        rest = cpu_seconds(remote.pid)
        assert rest >= 0.2
        assert IdleGate([remote.pid]).settle()
        assert cpu_seconds(remote.pid) == rest


def test_a_machine_that_others_use_is_not_quiet(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(idle, "IDLE", -1.0)
    monkeypatch.setattr(idle, "PATIENCE", 0.3)
    assert not IdleGate([]).settle()


def test_a_watched_turn_gives_its_answer_and_the_share_of_others():
    answer, others = IdleGate([]).watch(lambda: {"seconds": 1})
    assert answer == {"seconds": 1}
    assert 0 <= others <= 1


def test_what_others_used_is_all_but_our_own():
    before, after = (100.0, 400.0), (107.0, 420.0)
    assert others_share(before, after, own=4.0) == 3 / 20
    # Counters of hundredths may show less than our own.
    assert others_share(before, after, own=7.01) == 0
    assert others_share(before, before, own=0.0) == 0


def test_the_machines_counters_grow_by_what_there_was_to_use():
    before = machine_seconds()
    IdleGate([]).watch(lambda: sum(range(10**7)))
    used, available = (b - a for a, b in zip(before, machine_seconds(), strict=True))
    assert 0 < used <= available
