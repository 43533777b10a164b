"""An installed kvcast has types: the documentation's Python passes strict type checkers."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from install.test_docs import BLOCKS
from install.wheels import Install

TYPED = """
from pathlib import Path
from typing import assert_type
from collections.abc import Sequence
import kvcast

whisper = kvcast.load("demo", threads=2)
assert_type(whisper, kvcast.WhisperModel)
assert_type(kvcast.load("demo-chat"), kvcast.TextModel)
assert_type(kvcast.load("demo-t5"), kvcast.T5Model)
assert_type(kvcast.load("demo-unilm", quantize="none"), kvcast.UnilmModel)
with kvcast.load(Path("demo")) as model:
    assert_type(model, kvcast.Model)
for segment in model.transcribe("a.wav", beam=5, language="en"):
    assert_type(segment.text, str)
many = int("2")
ids: Sequence[int] = [1, 2]
messages = [{"role": "user", "content": "a"}]
assert_type(model.generate("a", max_new_tokens=3), kvcast.TextGeneration)
assert_type(model.generate(ids, n=1).text, str)
assert_type(model.generate("a", n=2, beam=2), list[kvcast.TextGeneration])
assert_type(model.generate(["a", "b"]), list[kvcast.TextGeneration])
assert_type(model.generate(["a", "b"], n=many), list[list[kvcast.TextGeneration]])
assert_type(model.session("a").generate(), kvcast.TextGeneration)
assert_type(model.chat(messages), kvcast.TextGeneration)
assert_type(model.chat(messages, n=many), list[kvcast.TextGeneration])
for piece in model.chat(messages, stream=True):
    assert_type(piece, str)
assert_type(model.stream(model.chat_tokens(messages)).result, kvcast.TextGeneration)
if isinstance(model, kvcast.WhisperModel):
    assert_type(model, kvcast.WhisperModel)
else:
    assert_type(model, kvcast.Model)

async def main() -> None:
    assert_type(await model.agenerate("a"), kvcast.TextGeneration)
    assert_type(await model.achat(messages, n=many), list[kvcast.TextGeneration])
    assert_type((await model.atranscribe("a.wav")).text, str)
    async for segment in model.transcribe("a.wav"):
        assert_type(segment.text, str)
    async for piece in await model.achat(messages, stream=True):
        assert_type(piece, str)
    async for piece in model.stream("a"):
        assert_type(piece, str)
"""
MISTAKES = """
whisper.generat("a")
kvcast.load("demo", device="cuda")
kvcast.load(3)
model.transcribe("a.wav", beam="5")
model.transcribe("a.wav", beam_size=5)
model.generate("a", max_new_tokens="3")
model.generate("a", max_tokens=3)
model.generate(3)
model.generate("a", n=2).text
model.chat("a")
model.chat(messages, stream="yes")
model.chat(messages, stream=True).text
"""


@pytest.fixture(scope="module")
def python(install: Install, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("types")
    return install(folder, "--no-deps", beside=Path(sys.executable))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for number, block in enumerate(BLOCKS):
        (tmp_path / f"example_{number}.py").write_text(block)
    (tmp_path / "typed.py").write_text(TYPED + MISTAKES)
    return tmp_path


def mistaken(report: str) -> set[tuple[str, int]]:
    """Return the files and lines of a report's errors."""
    found = re.findall(r"(\w+\.py):(\d+)(?::\d+)?(?: -|:) error: ", report)
    return {(name, int(line)) for name, line in found}


def expected() -> set[tuple[str, int]]:
    first = (TYPED + "\n").count("\n") + 1
    return {("typed.py", first + i) for i in range(len(MISTAKES.strip().splitlines()))}


@pytest.mark.slow
def test_mypy_understands_the_documentation_and_every_call(python: Path, files: Path):
    (files / "mypy.ini").write_text(
        "[mypy]\nstrict = True\n[mypy-soundfile.*]\nignore_missing_imports = True\n"
    )
    words = [sys.executable, "-m", "mypy", "--python-executable", python, "."]
    environ = {name: value for name, value in os.environ.items() if name != "MYPYPATH"}
    done = subprocess.run(
        words, cwd=files, capture_output=True, text=True, check=False, env=environ
    )
    assert mistaken(done.stdout) == expected(), done.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_pyright_understands_them_as_well(python: Path, files: Path):
    words = ["pyright", "--pythonpath", python, "."]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        words, cwd=files, capture_output=True, text=True, check=False, env=environ
    )
    assert mistaken(done.stdout) == expected(), done.stdout
