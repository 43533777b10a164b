"""The command line and the parts below it agree on names; the other tests use a scripted model."""

import argparse
import inspect
from collections.abc import Callable
from types import ModuleType

import pytest

import kvcast
import kvcast.cli
from kvcast.cli import export, generate, main, transcribe
from kvcast.cli.arguments import Parser, keywords
from kvcast.loading.params import OF_TEXTS, ExportParams, LoadParams
from kvcast.runtimes.target import TARGETS
from kvcast.spec.runtimes import RUNTIMES, exported
from kvcast.speech.params import TranscribeParams
from kvcast.text.params import PromptParams


def parsed(command: ModuleType, *words: str) -> argparse.Namespace:
    parser = Parser(prog="kvcast")
    command.add_arguments(parser)
    return parser.parse_args(words)


def taken(function: Callable[..., object]) -> dict[str, object]:
    """Return the keywords of a function with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    keywords = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    keywords.pop("on_phase", None)  # the command line's own, for its progress
    keywords.pop("grammar", None)  # an object; the command line has an option for each kind
    return keywords


def without_lists(defaults: dict[str, object]) -> dict[str, object]:
    """Return values as the API has them; argparse needs a list to append to."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in defaults.items()}


OF_FILES = {"suppress_tokens", "suppress_sequences", "renormalize_logits"}
"""What a model's files recommend, and nobody types."""


@pytest.mark.parametrize(
    ("command", "words", "params", "function", "left_out"),
    [
        (transcribe, ["a"], LoadParams, kvcast.load, set(OF_TEXTS)),
        (generate, ["a"], LoadParams, kvcast.load, set()),
        # Files have their own rates.
        (transcribe, ["a"], TranscribeParams, kvcast.WhisperModel.transcribe, {"sampling_rate"}),
        (generate, ["a"], PromptParams, kvcast.TextModel.generate, OF_FILES),
        (generate, ["a"], PromptParams, kvcast.T5Model.generate_each, OF_FILES),
        (generate, ["a"], PromptParams, kvcast.UnilmModel.stream, OF_FILES),
        (export, ["demo", "--output", "folder"], ExportParams, kvcast.export_bundle, set()),
    ],
)
def test_commands_and_functions_have_the_same_options_and_defaults(
    command, words, params, function, left_out
):
    given = without_lists(keywords(parsed(command, *words), params))
    asked = {name: value for name, value in taken(function).items() if name not in left_out}
    assert list(given) == list(asked)
    assert given == asked
    assert params(**given) == params()


def test_runtimes_are_those_that_have_code():
    assert tuple(TARGETS) == exported()
    for command in (transcribe, generate):
        assert main([command.__name__.split(".")[-1], "a", "--runtime", "abacus"]) == 2
    assert set(RUNTIMES) - set(TARGETS) == {"eager"}
