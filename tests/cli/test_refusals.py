"""Precisions that a runtime lacks and models of another task are refused before any work."""

from pathlib import Path

import pytest

from kit.dimensions import LLAMA
from kit.models import bundle, own_cache
from kvcast.cli import main
from kvcast.loading import opening as loading

LOADED = {
    "--runtime onnx --dtype bf16": "dtype of ONNX Runtime is always fp32: drop --dtype bf16",
    "--runtime onnx --quantize 8da8w": "quantize of ONNX Runtime must be one of none, int8, int4",
    "--runtime executorch --quantize int8": "quantize of ExecuTorch must be one of none, 8da8w",
    "--runtime executorch --dtype bf16": "dtype of ExecuTorch is always fp32: drop --dtype bf16",
    "--runtime executorch --cache int8": "cache of ExecuTorch is always fp32: drop --cache int8",
    "--runtime aoti --quantize 8da4w": "quantize of AOTInductor must be one of none, int8, int4",
    "--runtime aoti --cache int8": "drop --cache int8",
    "--runtime eager --quantize 8da8w": "quantize of eager PyTorch must be one of none, int8, int4",
    "--runtime eager --dtype fp16": "dtype of eager PyTorch is always fp32: drop --dtype fp16",
    "--runtime eager --cache int8": "cache of eager PyTorch is always fp32: drop --cache int8",
    "--runtime abacus": "invalid choice: 'abacus'",
    "--dtype int8": "invalid choice: 'int8'",
}
EXPORTED = {words: told for words, told in LOADED.items() if "eager" not in words} | {
    "--runtime eager": "invalid choice: 'eager'",
    "--runtime onnx --device cuda": "drop --device and --max-autotune",
    "--runtime onnx --max-autotune": "drop --device and --max-autotune",
    "--runtime executorch --device cuda": "drop --device and --max-autotune",
    "--runtime aoti --quantize int4 --device cuda": "int4 matrices run on the CPU only",
    "--device tpu": "invalid choice: 'tpu'",
}


@pytest.mark.parametrize("words", LOADED)
def test_generate_refuses(words: str, error_line):
    assert main(["generate", "--model", "demo-t5", *words.split(), "1 May 2020"]) == 2
    assert LOADED[words] in error_line()


@pytest.mark.parametrize("words", EXPORTED)
def test_export_refuses(words: str, tmp_path, error_line):
    assert main(["export", "demo-t5", "-o", str(tmp_path / "b"), *words.split()]) == 2
    assert EXPORTED[words] in error_line()
    assert not (tmp_path / "b").exists()


def test_export_refuses_cuda_where_there_is_none(tmp_path, error_line, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ["export", "demo-t5", "-o", str(tmp_path / "b"), "--runtime", "aoti"]
    assert main([*words, "--device", "cuda"]) == 2
    assert "there is none here" in error_line()


OF_AUDIO = "turns recordings into text and takes no prompt: use kvcast transcribe, or another model"
OF_TEXT = "generates text and does not listen: use kvcast generate, or another model"


@pytest.fixture(autouse=True)
def _nothing_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("too late to refuse")

    for name in ("export_folder", "check_in_child", "_open_bundle", "_eager", "model_of"):
        monkeypatch.setattr(loading, name, fail)
    own_cache(monkeypatch, tmp_path / "cache")


@pytest.mark.parametrize("options", [[], ["--runtime", "eager"]])
@pytest.mark.parametrize(
    ("command", "model", "reason"),
    [
        ("generate", "demo", OF_AUDIO),
        ("transcribe", "demo-unilm", OF_TEXT),
        ("detect", "demo-unilm", OF_TEXT),
    ],
)
def test_a_checkpoint(command, model, reason, options, tmp_path, error_line):
    (tmp_path / "a.wav").touch()
    assert main([command, str(tmp_path / "a.wav"), "--model", model, "-q", *options]) == 2
    assert error_line() == f"kvcast: {model} {reason}\n"


def test_a_bundle(tmp_path, error_line):
    (tmp_path / "a.wav").touch()
    folder = bundle(LLAMA, runtime="native")
    assert main(["transcribe", str(tmp_path / "a.wav"), "--model", str(folder), "-q"]) == 2
    assert error_line() == f"kvcast: {folder} {OF_TEXT}\n"
