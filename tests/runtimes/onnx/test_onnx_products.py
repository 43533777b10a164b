"""ONNX Runtime's int8 products are exact on processors whose own sum in 16 bits.

qemu is such a processor: Intel's Haswell, with AVX2 and without VNNI.
"""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from kit.dimensions import LLAMA
from kit.models import bundle, open_folder
from kvcast.runtimes.onnx import session as onnx_session

TOKENS = np.random.default_rng(1).integers(0, LLAMA.vocab_size, 40)
SCRIPT = """
import sys
from pathlib import Path

import numpy as np

from kvcast.bundle.manifest import read_bundle
from kvcast.runtimes.onnx.session import products_saturate
from kvcast.runtimes.target import TARGETS

folder, tokens, logits = map(Path, sys.argv[1:])
manifest = read_bundle(folder)
runtime = TARGETS["onnx"].open(manifest.family, folder, manifest, 1)
found, _ = runtime.decode([np.load(tokens)], runtime.new_cache(1, 40), positions=range(40))
np.save(logits, found[0])
print(products_saturate())
"""


def logits_here() -> NDArray[np.float32]:
    runtime = open_folder(bundle(LLAMA, "int8"))
    logits, _ = runtime.decode([TOKENS], runtime.new_cache(1, 40), positions=range(40))
    return logits[0].copy()


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("qemu-x86_64"),
    reason="needs qemu-user, and a Python for x86",
)
@pytest.mark.slow
def test_a_processor_without_vnni_gives_the_same_logits(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", TOKENS)
    files = [bundle(LLAMA, "int8"), tmp_path / "tokens.npy", tmp_path / "logits.npy"]
    command = ["qemu-x86_64", "-cpu", "Haswell", sys.executable, "-c", SCRIPT, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    np.testing.assert_allclose(np.load(files[-1]), logits_here(), atol=1e-3)


@pytest.mark.parametrize("saturate", [True, False])
def test_slower_products_are_for_such_processors_alone(
    saturate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {}

    class Options:
        def add_session_config_entry(self, name: str, value: str) -> None:
            entries[name] = value

    monkeypatch.setattr(onnx_session, "products_saturate", lambda: saturate)
    monkeypatch.setattr(onnx_session.ort, "SessionOptions", Options)
    monkeypatch.setattr(onnx_session, "OnnxGraph", lambda *_: None)
    onnx_session.onnx_session(Path("graph.onnx"), 1)
    assert entries.get("session.x64quantprecision") == ("1" if saturate else None)


def test_what_is_asked_is_a_valid_graph() -> None:
    onnx.checker.check_model(onnx_session._PRODUCT, full_check=True)
