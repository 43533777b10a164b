"""Whatever a model is given as, the same words come out, and it is exported once."""

import json
import os
import shutil
from pathlib import Path

import pytest

import kvcast
from kit.in_transformers import demo_in_transformers
from kit.models import exported, own_cache
from kvcast.bundle.manifest import read_bundle
from kvcast.checkpoints.source import fingerprint, locate, open_checkpoint
from kvcast.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples/sense-and-sensibility.flac"


def text(capsys: pytest.CaptureFixture[str], model: str | Path, *words: str) -> str:
    code = main(["transcribe", "--model", str(model), *words, str(EXAMPLE)])
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    return " ".join(printed.out.split())


@pytest.fixture(scope="module")
def hugging_face_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "whisper-tiny.en"
    checkpoint = open_checkpoint(locate("demo"))
    demo_in_transformers(checkpoint).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(checkpoint.text["tokenizer.json"])
    return folder


@pytest.mark.slow
def test_hugging_face_and_ctranslate2_folders_and_the_demo_agree(hugging_face_folder, capsys):
    words = ("--quantize", "none")
    expected = text(capsys, "demo", *words)
    assert "He was not an ill-disposed young man." in expected
    assert text(capsys, hugging_face_folder, *words) == expected
    assert text(capsys, locate("demo"), *words) == expected


def test_an_exported_bundle_is_kept_and_a_damaged_one_made_again(tmp_path, monkeypatch, capsys):
    def answer() -> str:
        words = ["generate", "--model", "demo-unilm", "--runtime", "onnx", "3 March 2021"]
        assert main(words) == 0
        return capsys.readouterr().out

    def kept() -> Path:
        folders = (Path(os.environ["KVCAST_CACHE"]) / "bundles").glob("*/bundle.json")
        manifests = {path.parent: json.loads(path.read_text("utf-8")) for path in folders}
        (bundle,) = (
            folder
            for folder, manifest in manifests.items()
            if [manifest[key] for key in ("family", "quantize", "runtime")]
            == ["unilm", "int8", "onnx"]
        )
        return bundle

    assert answer() == "2021-03-03\n"
    # What the test damages is its own.
    shutil.copytree(kept(), tmp_path / "bundles" / kept().name)
    own_cache(monkeypatch, tmp_path)
    bundle = kept()
    manifest = bundle / "bundle.json"
    written = manifest.stat().st_mtime_ns
    assert answer() == "2021-03-03\n"
    assert manifest.stat().st_mtime_ns == written
    graphs = read_bundle(bundle).graphs
    (bundle / graphs["decode"].file).write_bytes(b"damaged")
    phases: list[str] = []
    kvcast.load("demo-unilm", runtime="onnx", threads=1, on_phase=phases.append)
    assert (phases[0], phases[-2:]) == ("reading", ["sealing", "proving"])
    assert answer() == "2021-03-03\n"
    assert read_bundle(bundle).verification["tokens"] > 0


def test_a_bundle_refuses_options_it_was_not_exported_with(error_line):
    bundle = str(exported("demo", quantize="none"))
    for words in (("--quantize", "int4"), ("--runtime", "eager")):
        assert main(["transcribe", "--model", bundle, *words, str(EXAMPLE)]) == 2
        assert error_line()


def test_an_fp32_bundle_proves_every_token() -> None:
    manifest = read_bundle(exported("demo", quantize="none"))
    assert manifest.source == {"name": "demo", "sha256": fingerprint(locate("demo"))}
    record = manifest.verification
    assert record["tokens_equal"] == record["tokens"] == 56
    assert 0 < record["max_logit_error"] < 1e-3
