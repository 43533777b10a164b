"""Which small models' tests are slow, a bundle's file, and the documentation's C++ programs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kit.marks import slow

FILE = "executorch/model.pte"  # in a bundle
# Lowering takes long: one encoder-decoder is lowered always, the others seldom.
T5, DECODER, UNILM = (slow(name) for name in ("t5", "decoder", "unilm"))
_FOLDER = Path(__file__).parents[3] / "docs" / "executorch"


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
