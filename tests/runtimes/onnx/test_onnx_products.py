"""ONNX Runtime's int8 products are exact on processors whose own sum in 16 bits.

qemu is such a processor: Intel's Haswell, with AVX2 and without VNNI.
"""

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from kit.dimensions import LLAMA
from kit.models import bundle, open_folder
from kvcast.families.programs import Argument, ProgramSignature
from kvcast.runtimes.onnx import session as onnx_session
from kvcast.runtimes.onnx.graph_writer import GraphWriter
from kvcast.runtimes.onnx.matrices import Int8Columns

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


def product_of(
    matrix: Int8Columns, weight_oi: NDArray[np.float32], bias_o: NDArray[np.float32]
) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """Return a product with a matrix named "matrix", of x [n, inputs]."""
    x_ni = Argument(name="x", shape=("n", weight_oi.shape[1]), dtype="float32")
    write = GraphWriter(
        ProgramSignature(arguments=(x_ni,), outputs=("y",)), {"matrix": weight_oi}, {}
    )
    result = matrix.product(write, write.inputs["x"], write.constant("bias", bias_o))
    options = ort.SessionOptions()
    if onnx_session.products_saturate():
        options.add_session_config_entry("session.x64quantprecision", "1")
    graph = ir.to_proto(write.model({"y": result})).SerializeToString()
    session = ort.InferenceSession(graph, options)
    return lambda x: session.run(None, {"x": x})[0]


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


def test_a_rows_int8_product_depends_on_no_other_row() -> None:
    """Neither on an outlier beside it, nor on how many rows there are; of zeros it is the bias."""
    generator = np.random.default_rng(0)
    weight_oi = generator.normal(size=(24, 32)).astype(np.float32)
    bias_o = generator.normal(size=24).astype(np.float32)
    x_ni = generator.normal(size=(5, 32)).astype(np.float32)
    x_ni[2, 7], x_ni[3] = 1000, 0
    run = product_of(Int8Columns("matrix"), weight_oi, bias_o)
    together_no = run(x_ni)
    for n in range(len(x_ni)):
        np.testing.assert_array_equal(run(x_ni[n : n + 1])[0], together_no[n])
    np.testing.assert_array_equal(together_no[3], bias_o)
    exact_no = x_ni @ weight_oi.T + bias_o
    # Half a code of each factor, in 32 terms of either sign.
    largest_n = np.abs(x_ni).max(axis=1, keepdims=True)
    allowed_no = 32 * largest_n * np.abs(weight_oi).max(axis=1) / 127
    assert (np.abs(together_no - exact_no) <= allowed_no).all()


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
