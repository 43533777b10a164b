"""The documentation's Python runs as it is printed."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    (ROOT / "docs" / name).read_text("utf-8") for name in ("python.md", "structured-output.md")
]
BLOCKS = [block for page in PAGES for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
COMMANDS = re.search(r"```sh\n(.*?)\n```", PAGES[1], re.DOTALL)[1].splitlines()


def quick(block: str) -> bool:
    return 'load("demo", threads=2)' in block and ".live(" not in block


def test_there_are_blocks_to_run() -> None:
    assert len(BLOCKS) >= 3
    assert sum(map(quick, BLOCKS)) >= 2
    assert len(COMMANDS) >= 3


@pytest.mark.parametrize(
    "block",
    [
        # What asks for other bundles than the README's first command exports takes longer, and so
        # does live speech.
        pytest.param(block, id=str(i), marks=[] if quick(block) else pytest.mark.slow)
        for i, block in enumerate(BLOCKS)
    ],
)
def test_block_runs(block: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_structured_output_is_what_the_command_asks_for(command: str) -> None:
    program, *words = shlex.split(command)
    assert program == "kvcast"
    done = subprocess.run(
        [sys.executable, "-m", "kvcast", *words, "--quiet"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    if "--json-schema" in words:
        schema = json.loads(words[words.index("--json-schema") + 1])
        jsonschema.validate(json.loads(done.stdout), schema)
    elif "--regex" in words:
        assert re.fullmatch(words[words.index("--regex") + 1], done.stdout.strip())
    else:
        assert re.fullmatch(r"[0-9]{1,3}( \+ [0-9]{1,3})*( \+)?", done.stdout.strip())
