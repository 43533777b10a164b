"""Whatever becomes of a child process is an answer."""

import sys

import pytest

from kvcast.machine.child import Answer, ask


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
