"""Objects in other processes: what they answer, and how they fail."""

from pathlib import Path

import psutil
import pytest

import kvcast
from kit.far import FINDS_THIS, Far
from kvcast.machine.child import Local, Remote, RemoteError

SOURCE = Path(kvcast.__file__).parents[1]
ENVIRONMENT = {**FINDS_THIS, "MARK": "far"}


def far(start: int = 1) -> Remote:
    return Remote(Far(start), ENVIRONMENT)


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


@pytest.mark.parametrize("ballast", [0, 2**22], ids=["small", "larger than pipes"])
def test_an_object_that_cannot_be_made_is_an_error(ballast: int):
    with pytest.raises(RemoteError, match=r"^ValueError: start is negative$"):
        Remote(Far(-1, bytes(ballast)), ENVIRONMENT)


def test_an_object_of_a_module_that_is_not_there_is_an_error():
    with pytest.raises(RemoteError, match=r"^ModuleNotFoundError: No module named 'kit'$"):
        Remote(Far(1, bytes(2**22)), {"PYTHONPATH": str(SOURCE)})


def test_a_process_that_ends_is_an_error_with_its_last_words():
    with far() as remote:
        with pytest.raises(RemoteError, match=r"status 3: out of memory$"):
            remote.call("die")
        assert not psutil.pid_exists(remote.pid)


def test_an_object_in_this_process_fails_in_the_same_way():
    with Local(Far(1), {}) as local:
        assert local.call("add", number=2) == 3
        with pytest.raises(RemoteError, match=r"^TypeError: .*number"):
            local.call("add")
