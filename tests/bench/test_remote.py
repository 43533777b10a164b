"""Objects in other processes: what they answer, and how they fail."""

from pathlib import Path

import pytest

from kvcast.bench import quiet
from kvcast.bench.quiet import Usage, Watch, cpu_seconds
from kvcast.bench.remote import Remote, RemoteError

ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parent), "MARK": "far"}


def far(start: int = 1) -> Remote:
    return Remote("far_side:Far", {"start": start}, ENVIRONMENT)


def test_calls_are_answered_whatever_the_object_prints():
    with far() as remote:
        assert remote.call("add", number=2) == 3
        assert remote.call("add", number=4) == 7
        assert remote.call("environment", name="MARK") == "far"


def test_an_error_is_one_line_and_the_object_lives_on():
    with far() as remote:
        with pytest.raises(RemoteError, match=r"^TypeError: .*number"):
            remote.call("add")
        assert remote.call("add", number=1) == 2


def test_an_object_that_cannot_be_made_is_an_error():
    with pytest.raises(RemoteError, match=r"^ValueError: start is negative$"):
        far(-1)


def test_a_process_that_ends_is_an_error_with_its_last_words():
    with far() as remote:
        with pytest.raises(RemoteError, match=r"status 3: out of memory$"):
            remote.call("die")
        assert cpu_seconds(remote.pid) == 0


def test_quiet_is_when_the_processes_use_no_processor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quiet, "IDLE", 1.0)  # whatever else runs on the machine of the tests
    with far() as remote:
        remote.call("spin", seconds=0.3)
        assert Watch([remote.pid]).settle()
        rest = cpu_seconds(remote.pid)
        assert rest >= 0.2
        assert Watch([remote.pid]).settle()
        assert cpu_seconds(remote.pid) == rest


def test_a_machine_that_others_use_is_not_quiet(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quiet, "IDLE", -1.0)
    monkeypatch.setattr(quiet, "PATIENCE", 0.3)
    assert not Watch([]).settle()


def test_what_others_used_is_all_but_our_own():
    before, after = Usage(busy=100.0, available=400.0), Usage(busy=107.0, available=420.0)
    assert after.others(before, own=4.0) == (3.0, 20.0)
    assert after.share(before) == 0.35
    # Counters of hundredths may show less than our own.
    assert after.others(before, own=7.01) == (0.0, 20.0)
