"""The base install: transcribes and generates from bundles where there is no torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bundles import exported

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/sense-and-sensibility.flac"
EXPORT_ONLY = ("torch", "onnx", "onnxscript", "transformers")


@pytest.fixture(scope="module")
def base_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second virtual environment with nothing but kvcast's base dependencies."""
    folder = tmp_path_factory.mktemp("base-install") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin/python"
    lock = ROOT / "requirements.lock"
    subprocess.run([python, "-m", "pip", "install", "-q", "-c", lock, ROOT], check=True)
    return python


@pytest.fixture(scope="module")
def bundle() -> Path:
    return exported("demo")


def run(python: Path, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "kvcast", *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


def test_export_dependencies_are_absent(base_python: Path) -> None:
    names = repr(EXPORT_ONLY)
    code = f"import importlib.util as u; print([n for n in {names} if u.find_spec(n)])"
    found = subprocess.run([base_python, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_bundle_transcribes_without_torch(base_python: Path, bundle: Path) -> None:
    done = run(base_python, "transcribe", "--model", bundle, EXAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "He was not an ill-disposed young man." in done.stdout


def test_a_bundle_generates_without_torch(base_python: Path) -> None:
    bundle = exported("demo-chat")
    words = ("--model", bundle, "--max-new-tokens", "8", "--quiet")
    plain = run(base_python, "generate", *words, "The capital of France is")
    assert (plain.returncode, plain.stderr) == (0, "")
    assert "Paris" in plain.stdout
    chat = run(base_python, "generate", *words, "--chat", "What is the capital of France?")
    assert (chat.returncode, chat.stderr) == (0, "")
    assert "Paris" in chat.stdout


def test_a_checkpoint_says_what_exporting_needs(base_python: Path, tmp_path: Path) -> None:
    from kvcast.checkpoints.source import locate

    cache = str(tmp_path)
    done = run(base_python, "transcribe", "--model", locate("demo"), EXAMPLE, KVCAST_CACHE=cache)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'kvcast[export]'" in done.stderr


def test_eager_says_what_it_needs(base_python: Path) -> None:
    from kvcast.checkpoints.source import locate

    words = ("transcribe", "--model", locate("demo"), "--runtime", "eager", EXAMPLE)
    done = run(base_python, *words)
    assert done.returncode == 1
    assert "pip install 'kvcast[export]'" in done.stderr
