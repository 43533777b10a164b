"""`kvcast export` for `onnx` and `native` where there is no PyTorch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import kvcast
from kit.models import own_cache
from kit.tiny_gguf import tiny_llama
from kvcast.bundle.manifest import read_bundle
from kvcast.checkpoints.source import locate
from kvcast.cli import main
from kvcast.errors import KvcastError
from kvcast.runtimes import reference
from kvcast.spec.runtimes import CALIBRATED

EXAMPLE = Path(__file__).parents[2] / "examples/sense-and-sensibility.flac"
EXPORTS = """
import json, sys
for name in ("torch", "transformers", "torchao", "executorch"):
    sys.modules[name] = None  # importing it fails
import kvcast
for model, folder, options in json.loads(sys.argv[1]):
    kvcast.export_bundle(model, folder, **options)
assert sys.modules["torch"] is None
"""


def exported_without_torch(*exports: tuple[Path, Path, dict[str, str]]) -> None:
    words = json.dumps([(str(model), str(folder), options) for model, folder, options in exports])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXPORTS, words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_speech_and_text_are_exported_and_proven_without_torch(tmp_path, capsys):
    llama = tiny_llama(tmp_path / "llama.gguf")
    models = {"speech": locate("demo"), "text": llama, "unilm": locate("demo-unilm")}
    cases = {
        "speech onnx": {"quantize": "int8"},
        "speech native": {"quantize": "int4"},
        "text onnx": {"quantize": "none"},
        "text onnx int8": {"quantize": "int8", "cache": "int8"},  # smoothed
        "text native": {"quantize": "none"},
        "unilm onnx": {"quantize": "none"},
        "unilm native": {"quantize": "int8"},
    }
    exported_without_torch(
        *(
            (models[case.split()[0]], tmp_path / case, {"runtime": case.split()[1], **options})
            for case, options in cases.items()
        )
    )
    for case, options in cases.items():
        manifest = read_bundle(tmp_path / case)
        kernels = "plain" if "native" in case else ""
        assert manifest.verification["reference"].startswith(f"native fp32, {kernels}")
        assert "torch" not in manifest.tools
        if options["quantize"] == "none":
            assert manifest.verification["tokens_equal"] == manifest.verification["tokens"] > 0
    for runtime in ("onnx", "native"):
        words = ["transcribe", "--model", str(tmp_path / f"speech {runtime}"), str(EXAMPLE)]
        assert main(words) == 0
        assert "He was not an ill-disposed young man." in capsys.readouterr().out
    exact = (llama, "eager"), (tmp_path / "text onnx", None), (tmp_path / "text native", None)
    written = [
        kvcast.load(folder, runtime=runtime).generate([1, 5, 9], max_new_tokens=20).tokens
        for folder, runtime in exact
    ]
    assert written == written[:1] * 3


def test_what_exports_lack_is_one_line(monkeypatch, tmp_path):
    for name in ("torch", "onnx_ir"):
        monkeypatch.setitem(sys.modules, name, None)
    needs = {
        ("onnx", "int8"): r"exporting to ONNX Runtime needs onnx_ir: .*'kvcast\[onnx\]'",
        ("aoti", "none"): r"exporting to AOTInductor needs torch: .*'kvcast\[export\]'",
        ("executorch", "none"): r"exporting to ExecuTorch needs torch: .*'kvcast\[executorch\]'",
        ("native", CALIBRATED): r"int4-calibrated needs torch: .*'kvcast\[export\]'",
    }
    for (runtime, quantize), message in needs.items():
        with pytest.raises(KvcastError, match=f"^{message}$"):
            kvcast.export_bundle("none", tmp_path / "b", runtime=runtime, quantize=quantize)
    with pytest.raises(KvcastError, match=r"^eager PyTorch needs torch: .*'kvcast\[export\]'$"):
        kvcast.load("demo-unilm", runtime="eager")


def test_without_a_library_pytorch_is_the_reference(monkeypatch, tmp_path):
    own_cache(monkeypatch, tmp_path / "cache")
    monkeypatch.setattr(reference, "is_there", lambda _: False)
    folder = kvcast.export_bundle("demo-unilm", tmp_path / "b", runtime="onnx", quantize="none")
    record = read_bundle(folder).verification
    assert record["reference"] == "eager fp32, all tokens at once"
    assert record["tokens_equal"] == record["tokens"] > 0
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(KvcastError, match=r"install g\+\+ or clang\+\+, or pip install 'kvcast"):
        kvcast.export_bundle("demo-unilm", tmp_path / "c", runtime="onnx", quantize="none")
