"""The command line and the layers below it: the same options, and few public imports."""

import argparse
import ast
import inspect
import pickle
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest import mock

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
    parameters = inspect.signature(function).parameters.values()
    keywords = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    keywords.pop("on_phase", None)  # the command line's own, for its progress
    keywords.pop("grammar", None)  # an object; the command line has an option for each kind
    return keywords


def without_lists(defaults: dict[str, object]) -> dict[str, object]:
    """Return values as the API has them; argparse needs a list to append to."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in defaults.items()}


OF_PYTHON = {"suppress_tokens", "suppress_sequences", "renormalize_logits", "progress"}
"""What a model's files recommend, and nobody types; the command line has its own progress."""


@pytest.mark.parametrize(
    ("command", "words", "params", "function", "left_out"),
    [
        (transcribe, ["a"], LoadParams, kvcast.load, set(OF_TEXTS)),
        (generate, ["a"], LoadParams, kvcast.load, set()),
        # Files have their own rates, and the command line its own progress.
        (
            transcribe,
            ["a"],
            TranscribeParams,
            kvcast.WhisperModel.transcribe,
            {"sampling_rate", "progress"},
        ),
        (generate, ["a"], PromptParams, kvcast.TextModel.generate, OF_PYTHON),
        (generate, ["a"], PromptParams, kvcast.T5Model.generate_each, OF_PYTHON),
        (generate, ["a"], PromptParams, kvcast.UnilmModel.stream, OF_PYTHON),
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


SOURCES = sorted(Path(kvcast.cli.__file__).parent.glob("*.py"))
# Neither runtimes, models nor file formats: `loading` knows what it opens.
ALLOWED = set(
    shlex.split(
        """kvcast kvcast.audio kvcast.cli kvcast.cluster kvcast.decoding kvcast.engine kvcast.errors
        kvcast.families kvcast.foreign_options kvcast.inspect kvcast.loading kvcast.machine
        kvcast.options
        kvcast.quantizing kvcast.saving kvcast.server kvcast.spec kvcast.speech kvcast.text
        kvcast.transcripts kvcast.verification kvcast.whisper"""
    )
)
HEAVY = {"numpy", "torch", "onnxruntime", "onnx", "rich", "soundfile", "soxr", "tokenizers"}
HEAVY |= {"jinja2", "transformers"}


def imports(path: Path) -> list[tuple[str, str]]:
    """Return (module, name) of every import of kvcast in a source file."""
    imported = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported += [(node.module or "", alias.name) for alias in node.names]
    return [(module, name) for module, name in imported if module.split(".")[0] == "kvcast"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_only_public_names_of_few_modules_are_used(path: Path):
    for module, name in imports(path):
        assert not any(part.startswith("_") for part in [*module.split("."), name] if part)
        package = ".".join(module.split(".")[:2])
        assert package in ALLOWED, f"{path.name} imports {module}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_private_attribute_of_another_module_is_touched(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            is_own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
            is_dunder = node.attr.startswith("__") and node.attr.endswith("__")
            assert is_own or is_dunder, f"{path.name}: {ast.unparse(node)}"


def run_apart(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_and_drawing_import_nothing_heavy():
    """In one process, whose assertion names the command and the modules."""
    program = (
        "import sys\nfrom kvcast.cli import COMMANDS, bench, main\n"
        "def check(words, heavy):\n"
        "    try: main(words)\n"
        "    except SystemExit as end: assert end.code in (None, 0)\n"
        "    loaded = {name.split('.')[0] for name in sys.modules}\n"
        "    assert 'argparse' in loaded and not loaded & heavy, (words, loaded & heavy)\n"
        f"heavy = {HEAVY}\n"
        "heavy.add(bench.PACKAGE)\n"
        "for name in COMMANDS.keys() - {'bench'}: check([name, '--help'], heavy)\n"
        "check(['--help'], heavy)\ncheck(['--version'], heavy)\n"
        "for view in ('masks', 'bias'): check(['inspect', view], heavy - {'numpy'})\n"
    )
    run_apart(program)


def test_dir_and_tab_completion_name_the_public_api_and_import_nothing():
    program = (
        "import rlcompleter, sys, kvcast\n"
        "assert {*kvcast.__all__} <= {*dir(kvcast)}\n"
        "def completed(prefix):\n"
        "    completer, found = rlcompleter.Completer({'kvcast': kvcast}), []\n"
        "    while (match := completer.complete(f'kvcast.{prefix}', len(found))) is not None:\n"
        "        found.append(match.rstrip('()'))\n"
        "    return found\n"
        "assert completed('lo') == ['kvcast.load']\n"
        "public = {f'kvcast.{name}' for name in kvcast.__all__ if name[0] != '_'}\n"
        "assert public <= {*completed('')}\n"
        "for name in [*kvcast.__all__, '__']:\n"
        "    for end in range(1, len(name) + 1): assert completed(name[:end])\n"
        "assert 'numpy' not in sys.modules\n"
    )
    run_apart(program)


def test_a_public_name_can_be_replaced_pickled_and_inspected(monkeypatch):
    own = kvcast.load
    monkeypatch.setattr(kvcast, "load", "replaced")
    assert kvcast.load == vars(kvcast)["load"] == "replaced"
    monkeypatch.undo()
    del kvcast.load
    with mock.patch("kvcast.load", new="patched"):
        assert kvcast.load == "patched"
    assert "load" not in vars(kvcast)
    with pytest.raises(AttributeError):
        del kvcast.load
    assert kvcast.load is own is dict(inspect.getmembers(kvcast))["load"]
    assert pickle.loads(pickle.dumps(kvcast.load)) is own
    assert pickle.loads(pickle.dumps(kvcast.Segment)) is kvcast.Segment
    assert inspect.ismodule(kvcast)
    assert inspect.getdoc(kvcast).startswith("Transformer decoders")


def test_chat_imports_nothing_of_recordings_and_shows_its_prompt_before_markdown_is_there():
    program = (
        "import sys, kvcast.cli.chat, kvcast.cli.line_editor\n"
        "needless = {'kvcast.transcripts', 'kvcast.audio', 'rich.markdown', 'numpy'}\n"
        "assert not needless & {*sys.modules}, needless & {*sys.modules}\n"
    )
    run_apart(program)


def test_opening_a_model_imports_only_what_opening_needs():
    program = (
        "import sys, kvcast\nkvcast.load('demo', threads=1)\n"
        "later = {'soundfile', 'soxr', 'av', 'numpy.random', 'kvcast.runtimes.traffic'}\n"
        "assert not later & {*sys.modules}, later & {*sys.modules}\n"
    )
    run_apart(program)


def test_the_module_runs_as_the_command_does():
    done = subprocess.run(
        [sys.executable, "-m", "kvcast", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"kvcast {kvcast.__version__}\n"
