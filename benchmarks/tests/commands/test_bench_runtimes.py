"""`kvcast bench runtimes` for real, short, and what it says to mistakes."""

import json
import shutil
from pathlib import Path

import jsonschema
import pytest
from transformers import WhisperConfig, WhisperForConditionalGeneration

from kvcast.checkpoints.source import locate, read_dimensions
from kvcast.cli import main
from kvcast_bench import machine, runner
from kvcast_bench.random_t5 import write_t5
from kvcast_bench.writing.huggingface import write_huggingface
from tiny_models import TINY_T5_CONFIG, tiny_checkpoint

ROOT = Path(__file__).parents[3]
CARD = str(ROOT / "tests" / "data" / "cards" / "001.wav")
SCHEMA = json.loads((ROOT / "docs" / "bench.schema.json").read_text(encoding="utf-8"))
EAGER = "dtype of eager PyTorch is always fp32: drop --dtype bf16"
SHORT = ["--threads", "1", "--runs", "1"]


@pytest.fixture
def chat(tmp_path: Path) -> str:
    write_huggingface(tiny_checkpoint(), tmp_path / "chat")
    return str(tmp_path / "chat")


@pytest.fixture
def whisper(tmp_path: Path) -> str:
    """Random weights of few numbers, and the packaged model's tokenizer."""
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


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PATIENCE", 0.2)  # figures do not matter here


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
def test_a_whisper_and_its_recomputing_baseline_are_measured(
    whisper: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runner.Runner, "rates", lambda *_: None)  # they take long
    words = ["--runtimes", "eager", "--quantize", "fp32", "bf16", "--position", "5"]
    assert main(["bench", "runtimes", CARD, "--model", whisper, *SHORT, *words]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    jsonschema.validate(document, SCHEMA)
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
@pytest.mark.usefixtures("_impatient")
def test_a_decoder_only_model_is_measured_on_several_runtimes(
    chat: str, capsys: pytest.CaptureFixture[str]
):
    words = ["--runtimes", "eager", "onnx", "--quantize", "fp32", "--prompt", "8", "--new", "4"]
    assert main(["bench", "runtimes", "--model", chat, *SHORT, *words]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    jsonschema.validate(document, SCHEMA)
    eager, onnx = document["rows"]
    assert (eager["backend"], onnx["backend"]) == ("eager-fp32", "onnx-fp32")
    # The same weights, so the same tokens.
    assert eager["facts"]["tokens"] == onnx["facts"]["tokens"]
    assert onnx["metrics"]["first"]["times"]["onnx"] == 1
    assert eager["metrics"]["step"]["floor"] > 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "a Whisper needs a recording"),
        ([CARD, "--runs", "0"], 2, "argument --runs: must be 1 or more, not 0"),
        ([CARD, "--position", "448"], 2, "position must be below 448"),
        ([CARD, "--prompt", "9"], 2, "--prompt says nothing of Whispers"),
        ([CARD, "--runtimes", "tflite"], 2, "tflite"),
        ([CARD, "--reference", "absent.txt"], 66, "absent.txt does not exist"),
        (["absent.wav"], 66, "absent.wav"),
        ([CARD, "--model", "demo-unilm"], 1, "bench runtimes takes Whispers and decoder-only"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["bench", "runtimes", *words]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_options_of_a_whisper_are_refused_for_others(
    chat: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_t5(TINY_T5_CONFIG, tmp_path / "t5")
    for words, message in (
        ([CARD, "--model", chat], "AUDIO says nothing of decoder-only models"),
        (["--model", chat, "--prompt", "60"], "60 + 65 tokens are more than the 64"),
        (["--model", str(tmp_path / "t5")], "bench runtimes takes Whispers and decoder-only"),
    ):
        assert main(["bench", "runtimes", *words]) != 0
        assert message in capsys.readouterr().err


def test_a_bundle_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "bundle.json").write_text("{}")
    assert main(["bench", "runtimes", CARD, "--model", str(tmp_path)]) == 1
    assert "needs the checkpoint, and the model is a kvcast bundle" in capsys.readouterr().err
