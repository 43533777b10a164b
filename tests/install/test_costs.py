import re
import subprocess
import sys
from pathlib import Path

import pytest

BURN = """
import time

def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
"""
CHEAP = "from burn import burn\ndef test_it():\n    burn(0.1)\n"
DEAR = (
    "import subprocess, sys\nfrom burn import burn\ndef test_one():\n    burn(0.2)\n"
    "def test_child():\n"
    "    subprocess.run([sys.executable, '-c', 'from burn import burn; burn(0.3)'], check=True)\n"
)


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_run_ends_with_its_processor_time_and_its_dearest_files(tmp_path: Path, processes: str):
    files = {
        "pytest.ini": f"[pytest]\npythonpath = . {Path(__file__).parents[1]}",
        "conftest.py": "pytest_plugins = ['kit.costs']",
        "burn.py": BURN,
        "test_cheap.py": CHEAP,
        "test_dear.py": DEAR,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    kept = tmp_path / "costs"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-n", processes, "-m", "not slow"],
        cwd=tmp_path,
        env={
            "KVCAST_TEST_COSTS": str(kept),
            "PYTHONPATH": str(tmp_path),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    head, *rows = kept.read_text().splitlines()
    told = re.fullmatch(
        r"pytest -m 'not slow': (\d+\.\d) CPU-minutes, of which tests (\d+\.\d)", head
    )
    assert told is not None, head
    parsed = [re.fullmatch(r" *(\d+\.\d) s  (.+)", row) for row in rows]
    seconds = {row[2]: float(row[1]) for row in parsed if row is not None}
    assert list(seconds) == ["test_dear.py", "test_cheap.py"]
    assert seconds["test_dear.py"] >= 0.5, "its own time and its child's"
    assert seconds["test_cheap.py"] >= 0.1
    assert "\n".join(rows) in ran.stdout
