"""The server's documentation runs as it is printed."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.serving import command

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/serve.md").read_text("utf-8")
BLOCKS = re.findall(r"```(sh|python)\n(.*?)\n```", PAGE, re.DOTALL)
ADDRESS = "http://127.0.0.1:8000"
SAID = {
    "sense-and-sensibility": "Dashwood had then leisure",
    "demo-chat": "2 + 3 = 5",
    "text2text": "2021-03-03",
}


def test_there_are_blocks_of_both_kinds():
    assert {kind for kind, _ in BLOCKS} == {"sh", "python"}
    assert all(any(name in block for name in SAID) for _, block in BLOCKS)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with command("demo", "demo-chat", "demo-t5", "demo-unilm", "--quiet") as running:
        yield running.url


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs(address: str, number: int):
    kind, block = BLOCKS[number]
    if kind == "sh" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    assert ADDRESS in block
    block = block.replace(ADDRESS, address)
    words = ["bash", "-c", block] if kind == "sh" else [sys.executable, "-W", "error", "-c", block]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert next(text for name, text in SAID.items() if name in block) in done.stdout
