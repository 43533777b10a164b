"""`kvcast bench runtimes` for real, short."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import WhisperConfig, WhisperForConditionalGeneration

from kvcast.checkpoints.source import locate, read_dimensions
from kvcast_bench import runner

ROOT = Path(__file__).parents[3]
CARD = str(ROOT / "tests" / "data" / "cards" / "001.wav")
EAGER = "dtype of eager PyTorch is always fp32: drop --dtype bf16"
SHORT = ["--threads", "1", "--runs", "1"]


@pytest.fixture
def whisper(tmp_path: Path) -> str:
    packaged = locate("demo")
    config = WhisperConfig(
        vocab_size=read_dimensions(packaged).vocab_size,
        d_model=32,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=128,
        decoder_layers=2,
        decoder_attention_heads=2,
        decoder_ffn_dim=128,
    )
    WhisperForConditionalGeneration(config).save_pretrained(tmp_path / "whisper")
    shutil.copy(packaged / "tokenizer.json", tmp_path / "whisper")
    return str(tmp_path / "whisper")


@pytest.mark.slow
def test_a_whisper_and_its_recomputing_baseline_are_measured(
    whisper: str, measured: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runner.Runner, "rates", lambda *_: None)  # they take long
    words = ["--runtimes", "eager", "--quantize", "fp32", "bf16", "--position", "5"]
    document = measured("runtimes", CARD, "--model", whisper, *SHORT, *words)
    names = ["eager-fp32", "eager-fp32-recompute"]
    assert [backend["name"] for backend in document["backends"]] == names
    trials = [row["trial"]["measure"] for row in document["rows"]]
    assert trials == ["step", "step", "encode", "encode", "transcribe", "transcribe"]
    cached_text, text = (row["facts"]["text"] for row in document["rows"][-2:])
    assert text == cached_text
    for row in document["rows"]:
        ((_, metric),) = row["metrics"].items()
        assert metric["median"] > 0
    assert document["absent"] == [
        {"name": name, "reason": EAGER} for name in ("eager-bf16", "eager-bf16-recompute")
    ]


@pytest.mark.slow
def test_a_decoder_only_model_is_measured_on_several_runtimes(
    chat: str, measured: Callable[..., Any]
):
    words = ["--runtimes", "eager", "onnx", "--quantize", "fp32", "--prompt", "8", "--new", "4"]
    document = measured("runtimes", "--model", chat, *SHORT, *words)
    eager, onnx = document["rows"]
    assert (eager["backend"], onnx["backend"]) == ("eager-fp32", "onnx-fp32")
    # The same weights, so the same tokens.
    assert eager["facts"]["tokens"] == onnx["facts"]["tokens"]
    assert onnx["metrics"]["first"]["times"]["onnx"] == 1
    assert eager["metrics"]["step"]["floor"] > 0
