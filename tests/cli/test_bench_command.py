"""`kvcast bench` hands over to a package of its own, which the wheel lacks."""

import sys
from types import ModuleType

import pytest

from kvcast.cli import bench, main


def test_the_words_are_handed_over(monkeypatch, capsys):
    package = ModuleType(bench.PACKAGE)
    commands = ModuleType(f"{bench.PACKAGE}.cli")

    def add_arguments(parser):
        parser.add_argument("--rounds", type=int)
        parser.set_defaults(run=lambda args: print(f"{args.rounds} rounds") or 7)

    commands.add_arguments = add_arguments
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, commands.__name__, commands)
    monkeypatch.setattr(bench, "find_spec", lambda name: name == bench.PACKAGE)
    assert main(["bench", "--rounds", "2"]) == 7
    assert capsys.readouterr().out == "2 rounds\n"


@pytest.mark.parametrize("words", [[], ["--help"], ["transcribe", "talk.mp3"], ["gpu", "--help"]])
def test_without_the_package_one_line_says_how_to_get_it(words, monkeypatch, error_line):
    monkeypatch.setattr(bench, "find_spec", lambda _: None)
    assert main(["bench", *words]) == 1
    assert error_line() == f"kvcast: {bench.MISSING}\n"
    assert "pip install --editable benchmarks" in bench.MISSING
