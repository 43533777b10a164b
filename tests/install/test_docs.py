"""The documentation's Python and its commands run as they are printed, in this process.

Each block has names of its own, so that it lacks what it does not import.
"""

import json
import re
import shlex
from pathlib import Path

import jsonschema
import pytest

from kvcast.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [
    (ROOT / "docs" / name).read_text("utf-8")
    for name in ("python.md", "structured-output.md", "verify.md")
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
def test_block_runs(block, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    exec(block, {"__name__": "__main__"})
    printed = capfd.readouterr()
    assert printed.err == ""
    assert printed.out.strip()


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_structured_output_matches_the_commands_grammar(command, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    program, *words = shlex.split(command)
    assert program == "kvcast"
    assert main([*words, "--quiet"]) == 0
    printed = capfd.readouterr()
    assert printed.err == ""
    if "--json-schema" in words:
        schema = json.loads(words[words.index("--json-schema") + 1])
        jsonschema.validate(json.loads(printed.out), schema)
    elif "--regex" in words:
        assert re.fullmatch(words[words.index("--regex") + 1], printed.out.strip())
    else:
        assert re.fullmatch(r"[0-9]{1,3}( \+ [0-9]{1,3})*( \+)?", printed.out.strip())
