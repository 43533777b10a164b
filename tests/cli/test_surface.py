"""What the command line may lean on: public names, and nothing heavy before it is needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kvcast.cli

SOURCES = sorted(Path(kvcast.cli.__file__).parent.glob("*.py"))
# Neither runtimes, models nor file formats: `loading` knows what it opens.
ALLOWED = (
    "kvcast",
    "kvcast.audio",
    "kvcast.cli",
    "kvcast.cluster",
    "kvcast.decoding",
    "kvcast.engine",
    "kvcast.errors",
    "kvcast.families",
    "kvcast.inspect",
    "kvcast.loading",
    "kvcast.options",
    "kvcast.quantizing",
    "kvcast.saving",
    "kvcast.server",
    "kvcast.spec",
    "kvcast.speech",
    "kvcast.text",
    "kvcast.transcripts",
    "kvcast.verification",
    "kvcast.whisper",
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


def test_help_and_drawing_import_nothing_heavy():
    """All in one process, which says when a module is too much."""
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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_module_runs_as_the_command_does():
    done = subprocess.run(
        [sys.executable, "-m", "kvcast", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"kvcast {kvcast.__version__}\n"
