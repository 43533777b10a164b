"""The example of docs/realtime.md runs as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import kvcast
from server.serving import serving

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/realtime.md").read_text("utf-8")
ADDRESS = "http://127.0.0.1:8000"


@pytest.mark.slow
def test_the_example_runs():
    [block] = re.findall(r"```python\n(.*?)\n```", PAGE, re.DOTALL)
    assert ADDRESS in block
    with serving({"demo": kvcast.load("demo", quantize="none", threads=2)}) as server:
        words = [sys.executable, "-W", "error", "-W", "ignore:connect()", "-c"]
        words.append(block.replace(ADDRESS, server.url))
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("And Mr. John Dashwood had then leisure")
    assert done.stdout.rstrip().endswith("amiable himself.")


def test_options_have_the_documented_defaults():
    from kvcast.server.params import ServeParams

    params = ServeParams()
    assert f"`--live-sessions` ({params.live_sessions})" in PAGE
    assert f"`--live-idle` ({params.live_idle:g})" in PAGE
