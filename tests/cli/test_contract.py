"""The command line and the parts below it agree on names; the other tests use a scripted model."""

import dataclasses
import inspect
import sys
from types import ModuleType

import kvcast
import kvcast.bench
import kvcast.cli
from cli.cli_fakes import FakeSegment
from kvcast.cli import export, main, transcribe
from kvcast.cli.arguments import OptionGroup, Parser
from kvcast.cli.transcribe_options import LOADING, TRANSCRIBING
from kvcast.tasks.loading import RUNTIMES, open_model
from kvcast.tasks.targets import TARGETS


def keywords(command: ModuleType, words: list[str], *groups: OptionGroup) -> dict[str, object]:
    parser = Parser(prog="kvcast")
    command.add_arguments(parser)
    args = parser.parse_args(words)
    return {k: v for group in groups for k, v in group.keywords(args).items()}


def test_load_takes_the_loading_options_and_has_the_same_defaults():
    given = keywords(transcribe, ["a"], LOADING)
    for function in (kvcast.load, open_model):
        parameters = dict(inspect.signature(function).parameters)
        assert parameters.pop("model").default is inspect.Parameter.empty
        del parameters["on_phase"]  # the command line's own, for its progress
        assert parameters.pop("cache").default is None  # an option of generate's alone
        assert {"model": given["model"]} | {
            name: parameter.default for name, parameter in parameters.items()
        } == given


def test_runtimes_are_those_that_open_and_export():
    def choices(group: OptionGroup) -> list[str]:
        (found,) = [item for item in group.options if item.keyword == "runtime"]
        return sorted(found.settings["choices"])

    assert choices(LOADING) == sorted(RUNTIMES)
    assert choices(export.EXPORTING) == sorted(TARGETS)


def test_export_takes_the_export_options():
    words = ["demo", "--output", "folder"]
    inspect.signature(kvcast.export_bundle).bind(
        "demo", **keywords(export, words, export.EXPORTING)
    )


def test_transcribe_takes_the_other_options_and_has_the_same_defaults():
    from kvcast.tasks.model import WhisperModel

    given = keywords(transcribe, ["a"], *TRANSCRIBING)
    taken = inspect.signature(WhisperModel.transcribe).parameters
    defaults = {name: p.default for name, p in taken.items() if p.default is not p.empty}
    assert given == defaults


def test_the_scripted_segment_has_the_real_ones_fields():
    from kvcast.tasks.transcribe import Segment

    names = {field.name for field in dataclasses.fields(FakeSegment)}
    assert {field.name for field in dataclasses.fields(Segment)} == names


def test_bench_transcribe_is_handed_over(monkeypatch):
    benchmark = ModuleType("kvcast.bench.transcribe", "Time it.")
    benchmark.add_arguments = lambda parser: parser.add_argument("--rounds", type=int)
    benchmark.run = lambda args: 40 + args.rounds
    monkeypatch.setitem(sys.modules, "kvcast.bench.transcribe", benchmark)
    monkeypatch.setattr(kvcast.bench, "transcribe", benchmark, raising=False)
    monkeypatch.delitem(sys.modules, "kvcast.cli.bench", raising=False)
    monkeypatch.delattr(kvcast.cli, "bench", raising=False)
    assert main(["bench", "transcribe", "--rounds", "2"]) == 42
    monkeypatch.delitem(sys.modules, "kvcast.cli.bench")  # it knows the stand-in only
    monkeypatch.delattr(kvcast.cli, "bench")
