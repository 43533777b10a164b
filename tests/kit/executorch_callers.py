"""The C++ programs from the documentation, built as described there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[2] / "docs" / "executorch"


def built(name: str, folder: Path) -> Path:
    """Return the program of `docs/executorch/<name>.cpp`, or skip the test without g++."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    program = folder / name
    subprocess.run(
        ["sh", _FOLDER / "build.sh", _FOLDER / f"{name}.cpp", program],
        env=os.environ | {"PYTHON": sys.executable},
        check=True,
    )
    return program
