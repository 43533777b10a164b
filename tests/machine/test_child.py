"""Child processes: a function's result, an object's calls, and how they fail."""

import sys
from pathlib import Path

import psutil
import pytest

import kvcast
from kit.far import FINDS_THIS, Far
from kvcast.machine.child import Answer, Remote, RemoteError, ask


def test_a_result_comes_back():
    assert ask("posixpath:basename", "a/b", seconds=60) == Answer(result="b")


@pytest.mark.parametrize(
    ("function", "words", "problem"),
    [
        ("json:loads", ["{"], "JSONDecodeError: Expecting property name"),
        ("nosuchmodule:x", [], "nosuchmodule is not installed"),
        ("kvcast.checkpoints.source:locate", ["no such model"], "no model 'no such model'"),
    ],
)
def test_exceptions_are_one_line(function: str, words: list[str], problem: str):
    answer = ask(function, *words, seconds=60)
    assert answer.problem.startswith(problem)
    assert "\n" not in answer.problem
    assert not answer.ended


def test_a_crash_or_a_hang_ends_it():
    assert ask("os:abort", seconds=60) == Answer(
        problem="its process ended with signal 6", ended=True
    )
    assert ask("signal:pause", seconds=3) == Answer(problem="no answer within 3 s", ended=True)


def test_other_output_is_no_answer():
    answer = ask("os:system", "echo '{\"found\": 1}'; seq 100000 >&2", seconds=60)
    assert answer == Answer(result=0)


@pytest.mark.parametrize("executable", [None, "", "/no/such/python"])
def test_without_an_interpreter_there_is_no_answer(executable, monkeypatch):
    monkeypatch.setattr(sys, "executable", executable)
    answer = ask("posixpath:basename", "a", seconds=60)
    assert answer.problem.startswith("cannot start")
    assert not answer.ended


def test_modules_of_the_parent_are_found_and_none_of_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "found_only_here.py").write_text("def where(): return __file__\n")
    (tmp_path / "kvcast.py").write_text("raise OSError\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "own")
    answer = ask("found_only_here:where", seconds=60)
    assert answer.result == str(tmp_path / "own" / "found_only_here.py")


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
