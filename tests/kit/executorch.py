"""Small random models that ExecuTorch supports, and the C++ programs of the documentation.

Lowering one takes seconds.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.dimensions import CROSS_BIASED_T5, MISTRAL, ROFORMER, SHALLOW, SMALL_T5
from kit.letters import VOCAB

FILE = "executorch/model.pte"  # in a bundle
# A ring and a linear cache side by side.
MIXED = replace(MISTRAL, windows=(7, None), vocab_size=VOCAB)
MODELS: Mapping[str, Any] = {
    "whisper": SHALLOW,
    "t5": replace(SMALL_T5, heads=2, decoder_layers=1),
    # The one with several layers of cross caches.
    "cross-biased t5": replace(CROSS_BIASED_T5, heads=2),
    "decoder": MIXED,
    "unilm": replace(ROFORMER, layers=1),
}
# Lowering takes seconds: an encoder-decoder and a decoder are lowered always, the others seldom.
T5, CROSS_BIASED, UNILM = (
    pytest.param(name, marks=pytest.mark.slow) for name in ("t5", "cross-biased t5", "unilm")
)


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
