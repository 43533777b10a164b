"""The documentation's Python runs as it is printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(encoding="utf-8"), re.DOTALL
)


def test_there_are_blocks_to_run() -> None:
    assert len(BLOCKS) >= 3


@pytest.mark.parametrize(
    "block",
    [
        # What asks for other models than the README's first command exports takes longer.
        pytest.param(block, id=str(i), marks=[] if 'load("demo",' in block else pytest.mark.slow)
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
